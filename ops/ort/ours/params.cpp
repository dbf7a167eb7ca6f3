#include "params.h"

#include <algorithm>

#include "../../contract/versions.h"
#include "../errors.h"

namespace rmsnorm_deploy {

std::int32_t arithmetic_of(const NormAttributes& attributes, const Types& types) {
  return attributes.stash_type == RMS_NORM_FLOAT64 || types.x == RMS_NORM_FLOAT64 ? RMS_NORM_FLOAT64 : RMS_NORM_FLOAT32;
}

void set_attributes(const Node& node, const NormAttributes& attributes, const Types& types, const Shape& x,
                    rms_norm_params& params) {
  params.version = RMS_NORM_PARAMS_VERSION;
  set_neutral(params, 1);
  params.x_type = types.x;
  params.scale_type = types.scale;
  params.round_type = attributes.round_type;
  params.stash_type = attributes.stash_type;
  params.partial_size = attributes.partial_size;
#define RMSNORM_DEPLOY_SET(name, neutral, since) params.name = attributes.name;
  RMS_NORM_FLOAT_ATTRIBUTES(RMSNORM_DEPLOY_SET)
#undef RMSNORM_DEPLOY_SET
  params.rank = static_cast<std::int32_t>(x.rank);
  std::copy(x.dims, x.dims + x.rank, params.shape);

  const std::vector<std::int64_t>& axes = attributes.axes;
  const std::int64_t first = axes[0] < 0 ? axes[0] + params.rank : axes[0];
  const std::int64_t count = static_cast<std::int64_t>(axes.size());
  if (first < 0 || first > params.rank - count) {
    throw Error(ort::kInvalidArgument,
                node.owner + ": axes " + text_of(axes.data(), axes.size()) + " are outside X of shape " + x.text());
  }
  params.axis_begin = static_cast<std::int32_t>(first);
  params.axis_count = static_cast<std::int32_t>(count);
}

}  // namespace rmsnorm_deploy
