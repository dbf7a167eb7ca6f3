#include "plan.h"

#include <algorithm>
#include <cmath>

#include "../contract/check.h"
#include "cache.h"
#include "convert.h"
#include "dispatch.h"

namespace rmsnorm_deploy {
namespace {

bool sixteen_bit(std::int32_t type) { return type == RMS_NORM_FLOAT16 || type == RMS_NORM_BFLOAT16; }

}  // namespace

bool all_moderate(const float* values, std::int64_t count) noexcept {
  return std::all_of(values, values + count, [](float value) { return std::fabs(value) <= kMostModerate; });
}

int Plan::prepare(const rms_norm_params& params, bool already_rounded, bool moderate) noexcept {
  kernels_ = kernels();
  const std::int64_t far_away = far_bytes();
  if (!kernels_ || far_away < 0) {
    if (params.version != RMS_NORM_PARAMS_VERSION) return RMS_NORM_BAD_VERSION;
    return kernels_ ? RMS_NORM_BAD_STREAMING : RMS_NORM_BAD_ISA;
  }
  Sizes sizes = {};
  const int code = check(params, sizes);
  if (code != RMS_NORM_OK) return code;
  params_ = &params;
  float64_ = sizes.float64;
  outer_ = sizes.outer;
  size_ = sizes.size;
  inner_ = sizes.inner;
  measured_ = sizes.measured;
#define VALUE(name, neutral, since) params.name,
  attributes_ = {RMS_NORM_FLOAT_ATTRIBUTES(VALUE)};
#undef VALUE
  if (sizes.total == 0) return RMS_NORM_OK;
  const std::int64_t bytes = element_size(params.x_type);

  if (!scale_.lay_out(params, params.scale, params.scale_strides, float64_, already_rounded) ||
      (params.bias && !bias_.lay_out(params, params.bias, params.bias_strides, float64_, already_rounded))) {
    return RMS_NORM_OUT_OF_MEMORY;
  }
  same_weights_ = 1;
  for (std::int32_t i = params.axis_begin - 1; i >= 0; --i) {
    if (scale_.outer_strides[i] || (params.bias && bias_.outer_strides[i])) break;
    same_weights_ *= params.shape[i];
  }
  element_ = element_index(params.x_type);
  mode_ = (params.residual ? kResidual : 0) | (params.bias ? kBias : 0);
  rounding_ = sixteen_bit(params.round_type) ? kRoundTwice : kRoundOnce;
  outputs_ = has_outputs(params);
  if (outputs_) prepare_outputs(sizes, moderate);
  if (float64_) {
    units_ = outer_ * inner_;
    unit_values_ = size_;
  } else if (inner_ == 1) {
    units_ = outer_;
    unit_values_ = size_;
    unit_bytes_ = size_ * bytes;
    const std::int64_t each = far_away / (params.residual ? 4 : 2);
    far_ = !outputs_ && sizes.total * bytes >= each && whole_lines(params.y) && whole_lines(params.sum);
  } else {
    tiles_ = (inner_ + kColumnTile - 1) / kColumnTile;
    units_ = outer_ * tiles_;
    unit_values_ = size_ * std::min(inner_, kColumnTile);
  }
  return RMS_NORM_OK;
}

void Plan::prepare_outputs(const Sizes& sizes, bool moderate) noexcept {
  rows_ = rows_of(*params_, sizes);
  const rms_norm_params& p = *params_;
  const bool more = p.y_type || p.quantised_type || p.least || p.most;
  // What only seems to lie apart has the kernels of rows that do not.
  apart_ = rows_.run != outer_ || std::any_of(rows_.step, rows_.step + kRowTensors,
                                              [&](std::int64_t step) { return step != size_ && outer_ > 1; });
  outputs_ = more || apart_;
  const bool to_bytes = p.quantised_type == RMS_NORM_INT8 || p.quantised_type == RMS_NORM_UINT8;
  const bool of_floats = p.x_type == RMS_NORM_FLOAT32 && type_of_y(p) == RMS_NORM_FLOAT32 && !float64_;
  bytes_ = to_bytes && of_floats && !p.bias && !p.least && !p.most && !p.quantised_by_row && measured_ == size_ &&
           (moderate || (same_weights_ == outer_ && all_moderate(static_cast<const float*>(scale_.data), size_)));
}

// Whether an output can be written past the caches: every row is in lines of its own, which nothing has just read.
bool Plan::whole_lines(const void* output) const noexcept {
  constexpr std::uintptr_t kLine = 64;
  return reinterpret_cast<std::uintptr_t>(output) % kLine == 0 && unit_bytes_ % kLine == 0 &&
         (!output || (output != params_->x && output != params_->residual));
}

}  // namespace rmsnorm_deploy
