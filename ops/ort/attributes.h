// Reading the attributes of a node. One that the node lacks leaves `value` as it is: at its default.
#ifndef RMSNORM_DEPLOY_ORT_ATTRIBUTES_H_
#define RMSNORM_DEPLOY_ORT_ATTRIBUTES_H_

#include <cstdint>
#include <vector>

#include "abi.h"
#include "tensors.h"

namespace rmsnorm_deploy {

// These throw an Error where the attribute is of another type.
void read(const Node& node, const ort::KernelInfo* info, const char* name, std::int64_t* value);
void read(const Node& node, const ort::KernelInfo* info, const char* name, std::vector<std::int64_t>* value);

// The same for a float; an Error also where it is negative or not finite.
void read(const Node& node, const ort::KernelInfo* info, const char* name, float* value);

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_ATTRIBUTES_H_
