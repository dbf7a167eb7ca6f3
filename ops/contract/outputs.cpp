#include "outputs.h"

#include <initializer_list>
#include <limits>

namespace rmsnorm_deploy {
namespace {

constexpr std::int32_t kAllStrided = (1 << kRowTensors) - 1;

// The strides of a tensor of x's shape, or null where it is contiguous.
const std::int64_t* strides_of(const rms_norm_params& p, int tensor) {
  if (!(p.strided >> tensor & 1)) return nullptr;
  switch (tensor) {
    case kRowsOfX:
      return p.x_strides;
    case kRowsOfResidual:
      return p.residual ? p.residual_strides : nullptr;
    case kRowsOfY:
      return p.y ? p.y_strides : nullptr;
    case kRowsOfSum:
      return p.sum ? p.sum_strides : nullptr;
    default:
      return p.quantised_type ? p.quantised_strides : nullptr;
  }
}

bool is_written(int tensor) { return tensor >= kRowsOfY; }

bool types_fit(const rms_norm_params& p, bool float64) {
  const bool plain = !p.y_type && !p.quantised_type && !p.least && !p.most;
  if (plain) return !p.quantised;
  if (float64) return false;
  const std::int32_t y_type = type_of_y(p);
  const bool sixteen = y_type == RMS_NORM_FLOAT16 || y_type == RMS_NORM_BFLOAT16;
  if (y_type != RMS_NORM_FLOAT32 && y_type != p.x_type && !(sixteen && p.x_type == RMS_NORM_FLOAT32)) return false;
  if (!p.quantised_type) return !p.quantised;
  if (p.quantised_type != RMS_NORM_INT8 && p.quantised_type != RMS_NORM_UINT8 &&
      p.quantised_type != RMS_NORM_FLOAT8E4M3FN) {
    return false;
  }
  if (!element_size(p.quantised_scale_type) || p.quantised_scale_type == RMS_NORM_FLOAT64) return false;
  return !p.quotient_type || p.quotient_type == RMS_NORM_FLOAT32 ||
         (p.quotient_type == y_type && p.quantised_scale_type == y_type);
}

bool pointers_fit(const rms_norm_params& p) {
  if (!p.y && !p.quantised && !p.least && !p.most) return false;
  if (p.quantised_type && (!p.quantised || !p.quantised_scale)) return false;
  if (p.quantised_type == RMS_NORM_FLOAT8E4M3FN && p.zero_point) return false;
  // What only this version writes is in nobody's place, nor is y where its elements are of another type than x's.
  const void* const written[] = {p.quantised, p.least, p.most, type_of_y(p) == p.x_type ? nullptr : p.y};
  const void* const used[] = {p.x,   p.residual,  p.scale, p.bias, p.quantised_type ? p.quantised_scale : nullptr,
                              p.sum, p.zero_point};
  for (int i = 0; i < 4; ++i) {
    if (!written[i]) continue;
    for (const void* other : used) {
      if (written[i] == other) return false;
    }
    for (int k = 0; k < i; ++k) {
      if (written[i] == written[k]) return false;
    }
  }
  return !p.y || (p.y != p.quantised && p.y != static_cast<void*>(p.least) && p.y != static_cast<void*>(p.most));
}

// Whether the normalised dimensions lie as in a contiguous tensor, everything is within reach of 64 bits, and no two
// rows of an output overlap.
bool strides_fit(const rms_norm_params& p, const Sizes& sizes, int tensor) {
  const std::int64_t* const strides = strides_of(p, tensor);
  if (!strides) return true;
  std::int64_t next = 1;
  for (std::int32_t i = p.axis_begin + p.axis_count - 1; i >= p.axis_begin; --i) {
    if (p.shape[i] != 1 && strides[i] != next) return false;
    next *= p.shape[i];
  }
  std::int32_t order[RMS_NORM_MAX_RANK];  // leading dimensions, by stride
  std::int32_t count = 0;
  for (std::int32_t i = 0; i < p.axis_begin; ++i) {
    if (p.shape[i] == 1) continue;
    if (strides[i] < 0) return false;
    std::int32_t at = count++;
    for (; at > 0 && strides[order[at - 1]] > strides[i]; --at) order[at] = order[at - 1];
    order[at] = i;
  }
  std::int64_t extent = sizes.size;
  for (std::int32_t k = 0; k < count; ++k) {
    const std::int64_t stride = strides[order[k]];
    if (is_written(tensor) && stride < extent) return false;
    std::int64_t more = 0;
    if (__builtin_mul_overflow(stride, p.shape[order[k]] - 1, &more) || __builtin_add_overflow(extent, more, &extent)) {
      return false;
    }
  }
  return extent <= std::numeric_limits<std::int64_t>::max() / 8;
}

// Whether two tensors' rows begin at the same distances from the tensors' beginnings.
bool same_rows(const rms_norm_params& p, const Sizes& sizes, int one, int other) {
  const std::int64_t* const a = strides_of(p, one);
  const std::int64_t* const b = strides_of(p, other);
  std::int64_t contiguous = sizes.size;
  for (std::int32_t i = p.axis_begin - 1; i >= 0; --i) {
    if (p.shape[i] != 1 && (a ? a[i] : contiguous) != (b ? b[i] : contiguous)) return false;
    contiguous *= p.shape[i];
  }
  return true;
}

}  // namespace

std::int32_t type_of_y(const rms_norm_params& params) noexcept { return params.y_type ? params.y_type : params.x_type; }

bool has_outputs(const rms_norm_params& params) noexcept {
  return params.y_type || params.quantised_type || params.quantised || params.least || params.most || params.strided;
}

int check_outputs(const rms_norm_params& p, const Sizes& sizes) noexcept {
  if (!types_fit(p, sizes.float64)) return RMS_NORM_BAD_TYPE;
  if (p.strided & ~kAllStrided) return RMS_NORM_BAD_STRIDE;
  if (p.quantised_type && p.quantised_by_row != 0 && p.quantised_by_row != 1) return RMS_NORM_BAD_VALUE;
  for (std::int32_t i = p.axis_begin + p.axis_count; i < p.rank; ++i) {
    if (p.shape[i] != 1) return RMS_NORM_BAD_SHAPE;
  }
  if (sizes.total == 0) return RMS_NORM_OK;
  for (int tensor = 0; tensor < kRowTensors; ++tensor) {
    if (!strides_fit(p, sizes, tensor)) return RMS_NORM_BAD_STRIDE;
  }
  if (!pointers_fit(p)) return RMS_NORM_BAD_POINTER;
  const void* const tensors[] = {p.x, p.residual, p.y, p.sum};
  for (const int output : {kRowsOfY, kRowsOfSum}) {
    for (const int input : {kRowsOfX, kRowsOfResidual}) {
      if (tensors[output] && tensors[output] == tensors[input] && !same_rows(p, sizes, output, input)) {
        return RMS_NORM_BAD_STRIDE;
      }
    }
  }
  return RMS_NORM_OK;
}

Rows rows_of(const rms_norm_params& p, const Sizes& sizes) noexcept {
  Rows rows;
  rows.run = 1;
  for (std::int64_t& step : rows.step) step = sizes.size;
  for (std::int32_t i = p.axis_begin - 1; i >= 0; --i) {
    if (p.shape[i] == 1) continue;
    for (int tensor = 0; tensor < kRowTensors; ++tensor) {
      const std::int64_t* const strides = strides_of(p, tensor);
      if (!strides) continue;
      if (rows.run == 1) {
        rows.step[tensor] = strides[i];
      } else if (strides[i] != rows.step[tensor] * rows.run) {
        return rows;
      }
    }
    rows.run *= p.shape[i];
  }
  return rows;
}

std::int64_t offset_of_row(const rms_norm_params& p, std::int64_t size, RowTensor tensor, std::int64_t row) noexcept {
  const std::int64_t* const strides = strides_of(p, tensor);
  if (!strides) return row * size;
  std::int64_t offset = 0;
  for (std::int32_t i = p.axis_begin - 1; i >= 0 && row; --i) {
    offset += row % p.shape[i] * strides[i];
    row /= p.shape[i];
  }
  return offset;
}

}  // namespace rmsnorm_deploy
