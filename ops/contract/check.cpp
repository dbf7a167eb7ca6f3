#include "check.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "outputs.h"

namespace rmsnorm_deploy {
namespace {

// Product of `count` dimensions, or -1 where one is negative or the product does not fit.
std::int64_t product(const std::int64_t* shape, std::int32_t count) {
  std::int64_t result = 1;
  for (std::int32_t i = 0; i < count; ++i) {
    if (shape[i] < 0 || __builtin_mul_overflow(result, shape[i], &result)) return -1;
  }
  return result;
}

bool types_fit(const rms_norm_params& p, bool float64) {
  if (!element_size(p.x_type) || !element_size(p.scale_type)) return false;
  if (p.stash_type != RMS_NORM_FLOAT32 && p.stash_type != RMS_NORM_FLOAT64) return false;
  return p.round_type == p.x_type || p.round_type == RMS_NORM_FLOAT32 || (p.round_type == RMS_NORM_FLOAT64 && float64);
}

}  // namespace

std::int64_t element_size(std::int32_t type) noexcept {
  switch (type) {
    case RMS_NORM_FLOAT32:
      return 4;
    case RMS_NORM_FLOAT64:
      return 8;
    case RMS_NORM_FLOAT16:
    case RMS_NORM_BFLOAT16:
      return 2;
    default:
      return 0;
  }
}

int check(const rms_norm_params& p, Sizes& sizes) noexcept {
  if (p.version != RMS_NORM_PARAMS_VERSION) return RMS_NORM_BAD_VERSION;
  sizes.float64 = p.stash_type == RMS_NORM_FLOAT64 || p.x_type == RMS_NORM_FLOAT64;
  if (!types_fit(p, sizes.float64)) return RMS_NORM_BAD_TYPE;
  if (p.rank < 1 || p.rank > RMS_NORM_MAX_RANK || p.axis_begin < 0 || p.axis_count < 1 ||
      p.axis_begin > p.rank - p.axis_count) {
    return RMS_NORM_BAD_SHAPE;
  }
  const std::int32_t axis_end = p.axis_begin + p.axis_count;
  sizes.outer = product(p.shape, p.axis_begin);
  sizes.size = product(p.shape + p.axis_begin, p.axis_count);
  sizes.inner = product(p.shape + axis_end, p.rank - axis_end);
  sizes.total = product(p.shape, p.rank);
  if (sizes.outer < 0 || sizes.size < 0 || sizes.inner < 0 || sizes.total < 0 ||
      sizes.total > std::numeric_limits<std::int64_t>::max() / 8) {
    return RMS_NORM_BAD_SHAPE;
  }
  if (p.partial_size < 1 || (p.partial_size < sizes.size && p.axis_count != 1)) return RMS_NORM_BAD_PARTIAL;
  sizes.measured = std::min(sizes.size, p.partial_size);
#define VALUE(name, neutral, since) p.name,
  for (const float value : {RMS_NORM_FLOAT_ATTRIBUTES(VALUE)}) {
    if (!(value >= 0.0f) || std::isinf(value)) return RMS_NORM_BAD_VALUE;
  }
#undef VALUE
  for (std::int32_t i = 0; i < p.rank; ++i) {
    if (p.scale_strides[i] < 0 || (p.bias && p.bias_strides[i] < 0)) return RMS_NORM_BAD_STRIDE;
  }
  if (!p.residual != !p.sum) return RMS_NORM_BAD_POINTER;
  const bool outputs = has_outputs(p);
  if (sizes.total > 0 && (!p.x || !p.scale || (!p.y && !outputs) || (p.y && p.y == p.sum))) return RMS_NORM_BAD_POINTER;
  return outputs ? check_outputs(p, sizes) : RMS_NORM_OK;
}

}  // namespace rmsnorm_deploy

extern "C" const char* rmsnorm_deploy_error_text(int code) {
  switch (code) {
    case RMS_NORM_OK:
      return "no error";
    case RMS_NORM_BAD_VERSION:
      return "the version of the params struct is 0, or newer than this library";
    case RMS_NORM_BAD_TYPE:
      return "an element type is unknown, or this combination of types is not supported";
    case RMS_NORM_BAD_SHAPE:
      return "the rank, a dimension, or the run of axes is outside its range, or has dimensions behind it where only "
             "rows are supported";
    case RMS_NORM_BAD_POINTER:
      return "a pointer is missing or has no place, two tensors must not be the same, or residual and sum do not come "
             "together";
    case RMS_NORM_BAD_PARTIAL:
      return "partial_size must be at least 1, and needs exactly one axis where it is below the dimension";
    case RMS_NORM_BAD_VALUE:
#define NAME(name, neutral, since) " " #name
      return "quantised_by_row must be 0 or 1, and each of these finite and not negative:" RMS_NORM_FLOAT_ATTRIBUTES(
          NAME);
#undef NAME
    case RMS_NORM_BAD_STRIDE:
      return "a stride is negative, rows of an output overlap, the normalised dimensions are not contiguous, or what "
             "is "
             "normalised in place has other strides there";
    case RMS_NORM_BAD_ISA:
      return "RMSNORM_DEPLOY_ISA names an instruction set that this library or this machine lacks";
    case RMS_NORM_OUT_OF_MEMORY:
      return "no memory for the converted scale and bias";
    case RMS_NORM_BAD_STREAMING:
      return "RMSNORM_DEPLOY_STREAMING holds no number of bytes";
    default:
      return "unknown error code";
  }
}
