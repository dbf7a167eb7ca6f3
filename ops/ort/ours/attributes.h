// The attributes of this project's operators, as a node of them has them.
#ifndef RMSNORM_DEPLOY_ORT_OURS_ATTRIBUTES_H_
#define RMSNORM_DEPLOY_ORT_OURS_ATTRIBUTES_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "../../include/rms_norm.h"
#include "../abi.h"
#include "../tensors.h"

namespace rmsnorm_deploy {

// The values of a node without attributes.
struct NormAttributes {
  std::vector<std::int64_t> axes = {-1};  // ascending
  std::int32_t stash_type = RMS_NORM_FLOAT32;
  std::int32_t round_type = RMS_NORM_FLOAT32;  // the attribute scale_type
  std::int64_t partial_size = std::numeric_limits<std::int64_t>::max();
#define RMSNORM_DEPLOY_MEMBER(name, neutral, since) float name = neutral;
  RMS_NORM_FLOAT_ATTRIBUTES(RMSNORM_DEPLOY_MEMBER)
#undef RMSNORM_DEPLOY_MEMBER
};

// Read and judge them, for an X of `x_type`. One that an operator lacks is absent, as one that is left out is.
NormAttributes norm_attributes(const Node& node, const ort::KernelInfo* info, std::int32_t x_type);

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_OURS_ATTRIBUTES_H_
