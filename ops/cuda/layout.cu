#include <limits>

#include "../contract/check.h"
#include "layout.h"

namespace rmsnorm_deploy {
namespace cuda {
namespace {

// Append the dimensions [begin, end) of x to `w`, merged where they can be walked as one, and none where nothing
// changes along them. Returns the number of dimensions that `w` now has.
std::int32_t append(Weights& w, std::int32_t had, const std::int64_t* shape, const std::int64_t* strides,
                    std::int32_t begin, std::int32_t end) {
  std::int32_t count = had;
  bool changes = false;
  for (std::int32_t i = begin; i < end; ++i) {
    if (shape[i] == 1) continue;
    changes = changes || strides[i] != 0;
    if (count > had && w.stride[count - 1] == strides[i] * shape[i]) {
      w.extent[count - 1] *= shape[i];
      w.stride[count - 1] = strides[i];
    } else {
      w.extent[count] = shape[i];
      w.stride[count] = strides[i];
      ++count;
    }
  }
  return changes ? count : had;
}

bool type_fits(const Weights& w, std::int32_t x_type) { return w.type == x_type || w.type == RMS_NORM_FLOAT32; }

// Whether chunks of a tensor's rows, of so many bytes, lie at multiples of that.
bool rows_in_chunks(const void* base, const Outputs& out, int tensor, std::int64_t element, std::int64_t bytes) {
  bool result = reinterpret_cast<std::uintptr_t>(base) % static_cast<std::uintptr_t>(bytes) == 0;
  for (std::int32_t i = 0; i < out.dimensions; ++i) result = result && out.stride[tensor][i] * element % bytes == 0;
  return result;
}

}  // namespace

bool aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % kChunkBytes == 0; }

Weights weights(const rms_norm_params& p, const void* data, const std::int64_t* strides) {
  Weights w = {};
  w.data = data;
  w.type = p.scale_type;
  if (!data) return w;
  const std::int32_t axis_end = p.axis_begin + p.axis_count;
  w.outer_end = append(w, 0, p.shape, strides, 0, p.axis_begin);
  w.axes_end = append(w, w.outer_end, p.shape, strides, p.axis_begin, axis_end);
  w.inner_end = append(w, w.axes_end, p.shape, strides, axis_end, p.rank);
  w.single = w.axes_end == w.outer_end;
  return w;
}

bool fit_rows(const Weights& w, std::int32_t x_type, std::int64_t rows, RowWeights& result) {
  result = {w.data, 0, 1, 1, w.type, w.single};
  if (!w.data) return true;
  if (!type_fits(w, x_type)) return false;
  if (!w.single && (w.axes_end - w.outer_end != 1 || w.stride[w.outer_end] != 1 || !aligned(w.data))) return false;
  for (std::int32_t i = w.outer_end - 1; i >= 0; --i) {
    if (w.stride[i] == 0) {
      if (result.row_stride == 0) result.repeat *= static_cast<std::uint32_t>(w.extent[i]);
      continue;
    }
    if (result.row_stride != 0 || rows > std::numeric_limits<std::uint32_t>::max()) return false;
    result.row_stride = w.stride[i];
    result.period = static_cast<std::uint32_t>(w.extent[i]);
  }
  return w.single || result.row_stride * element_size(w.type) % kChunkBytes == 0;
}

bool fit_columns(const Weights& w, std::int32_t x_type) {
  return !w.data || (type_fits(w, x_type) && w.outer_end == 0 && w.axes_end <= 1 && w.inner_end == w.axes_end);
}

bool outputs_of(const rms_norm_params& p, const Sizes& sizes, Outputs& out) {
  out.quantised = p.quantised;
  out.quantised_scale = p.quantised_scale;
  out.zero_point = p.zero_point;
  out.least = p.least;
  out.most = p.most;
  out.y_type = type_of_y(p);
  out.quantised_type = p.quantised_type;
  out.quantised_scale_type = p.quantised_scale_type;
  out.quotient_type = p.quotient_type ? p.quotient_type : RMS_NORM_FLOAT32;
  out.by_row = p.quantised_by_row != 0;
  if (!p.quantised_type) out.zero_point = nullptr;
  std::int64_t behind = sizes.outer;  // rows in one place of the dimension
  for (std::int32_t i = 0; i < p.axis_begin; ++i) {
    behind /= p.shape[i];
    if (p.shape[i] == 1) continue;
    std::int64_t step[kRowTensors];
    bool merges = out.dimensions > 0;
    for (int t = 0; t < kRowTensors; ++t) {
      // From the first row to that which is one further along this dimension.
      step[t] = offset_of_row(p, sizes.size, static_cast<RowTensor>(t), behind);
      merges = merges && out.stride[t][out.dimensions - 1] == step[t] * p.shape[i];
    }
    const std::int32_t at = merges ? out.dimensions - 1 : out.dimensions++;
    out.extent[at] = (merges ? out.extent[at] : 1) * p.shape[i];
    for (int t = 0; t < kRowTensors; ++t) out.stride[t][at] = step[t];
  }
  const std::int64_t element = element_size(p.x_type);
  const std::int64_t values = kChunkBytes / element;
  const void* const tensors[] = {p.x, p.residual, p.y, p.sum, p.quantised};
  bool contiguous = out.dimensions <= 1;
  for (int t = 0; t < kRowTensors; ++t) {
    const std::int64_t bytes = t == kRowsOfY ? element_size(out.y_type) : t == kRowsOfQuantised ? 1 : element;
    const std::int64_t chunk = t == kRowsOfQuantised ? values : kChunkBytes;
    out.in_chunks |= rows_in_chunks(tensors[t], out, t, bytes, chunk) << t;
    contiguous = contiguous && (out.dimensions == 0 || out.stride[t][0] == sizes.size);
  }
  return !contiguous || out.y_type != p.x_type || p.quantised_type || p.least || p.most;
}

}  // namespace cuda
}  // namespace rmsnorm_deploy
