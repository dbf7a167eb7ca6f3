// The operators as onnxruntime custom ops: one for each combination of operator and types.
#ifndef RMSNORM_DEPLOY_ORT_OPS_H_
#define RMSNORM_DEPLOY_ORT_OPS_H_

#include "abi.h"

namespace rmsnorm_deploy {

constexpr char kDomain[] = "rmsnorm_deploy";

// Number of custom ops, and each by its index. They live as long as the library, since sessions keep pointers to them.
std::size_t op_count() noexcept;
const ort::CustomOp* op_at(std::size_t index) noexcept;

// Remember the interface of the runtime that registers the ops: shape inference is not handed one.
void set_api(const ort::Api* api) noexcept;

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_OPS_H_
