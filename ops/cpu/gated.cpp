#include "gated.h"

#include <algorithm>

#include "../contract/gate.h"
#include "../contract/versions.h"
#include "address.h"
#include "convert.h"
#include "dispatch.h"
#include "gated_group.h"

namespace rmsnorm_deploy {

int GatedPlan::prepare(const rms_norm_params& params, const rms_norm_gate& gate, bool already_rounded) noexcept {
  kernels_ = kernels();
  if (!kernels_) return params.version != RMS_NORM_PARAMS_VERSION ? RMS_NORM_BAD_VERSION : RMS_NORM_BAD_ISA;
  Sizes sizes = {};
  const int code = check_gated(params, gate, sizes);
  if (code != RMS_NORM_OK || sizes.total == 0) return code;
  params_ = &params;
  gate_ = &gate;
  float64_ = sizes.float64;
  slow_ = sizes.float64 || sizes.inner != 1;
  size_ = sizes.size;
  inner_ = sizes.inner;
  units_ = sizes.outer * sizes.inner;
#define VALUE(name, neutral, since) params.name,
  attributes_ = {RMS_NORM_FLOAT_ATTRIBUTES(VALUE)};
#undef VALUE
  // what is computed in double precision takes its scale so, and rounds as the arithmetic of the node does
  if (!scale_.lay_out(params, params.scale, params.scale_strides, slow_, already_rounded && slow_ == float64_)) {
    return RMS_NORM_OUT_OF_MEMORY;
  }
  for (std::int32_t i = params.axis_begin - 1; i >= 0; --i) {
    if (scale_.outer_strides[i]) break;
    same_weights_ *= params.shape[i];
  }
  return RMS_NORM_OK;
}

void GatedPlan::run(std::int64_t begin, std::int64_t end) const noexcept {
  if (!slow_) return run_rows(begin, end);
  const std::int64_t bytes = element_size(params_->x_type);
  for (; begin < end; ++begin) {
    const std::int64_t outer = begin / inner_;
    const std::int64_t column = begin % inner_;
    const std::int64_t first = outer * size_ * inner_ + column;
    GatedGroup a = {};
    a.x = advance(params_->x, first * bytes);
    a.y = advance(params_->y, first * bytes);
    a.gate = advance(gate_->gate, first * element_size(gate_->type));
    a.scale = at<double>(scale_.data, scale_.offset(*params_, outer) + (scale_.by_column ? column : 0));
    a.scale_step = scale_.by_column ? inner_ : 1;
    a.step = inner_;
    a.size = size_;
    a.x_type = params_->x_type;
    a.gate_type = gate_->type;
    a.round_type = params_->round_type;
    a.silu = gate_->activation == RMS_NORM_SILU;
    a.place = gate_->place;
    a.attributes = attributes_;
    gated_group(a);
  }
}

void GatedPlan::run_rows(std::int64_t begin, std::int64_t end) const noexcept {
  const int element = element_index(params_->x_type);
  const bool twice = params_->round_type != RMS_NORM_FLOAT32;
  const GatedKernel kernel = kernels_->gated[element][gate_->type == RMS_NORM_FLOAT32][twice];
  while (begin < end) {
    const std::int64_t rows = std::min(end - begin, same_weights_ - begin % same_weights_);
    GatedArgs a = {};
    a.x = advance(params_->x, begin * size_ * element_size(params_->x_type));
    a.y = advance(params_->y, begin * size_ * element_size(params_->x_type));
    a.gate = advance(gate_->gate, begin * size_ * element_size(gate_->type));
    a.scale = at<float>(scale_.data, scale_.offset(*params_, begin));
    a.rows = rows;
    a.size = size_;
    a.silu = gate_->activation == RMS_NORM_SILU;
    a.place = gate_->place;
    a.attributes = attributes_;
    kernel(a);
    begin += rows;
  }
}

}  // namespace rmsnorm_deploy

extern "C" int rmsnorm_deploy_cpu_run_gated(const rms_norm_params* params, const rms_norm_gate* gate) {
  using namespace rmsnorm_deploy;
  if (!params || !gate) return RMS_NORM_BAD_POINTER;
  rms_norm_params room;
  GatedPlan plan;
  const int code = plan.prepare(current(*params, room), *gate, false);
  if (code == RMS_NORM_OK) plan.run(0, plan.units());
  return code;
}
