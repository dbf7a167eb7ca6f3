#include "rows.h"

#include <algorithm>
#include <limits>
#include <new>

#include "../../contract/check.h"
#include "../../cpu/convert.h"
#include "../../cpu/formula.h"
#include "../../cpu/plan.h"
#include "../../cpu/scalar.h"
#include "../errors.h"

namespace rmsnorm_deploy {
namespace {

void* advance(void* base, std::int32_t type, std::int64_t count) {
  return base ? static_cast<unsigned char*>(base) + element_size(type) * count : nullptr;
}
const void* advance(const void* base, std::int32_t type, std::int64_t count) {
  return static_cast<const unsigned char*>(base) + element_size(type) * count;
}

// 1 / rms of `rows` rows.
template <typename T>
void inverse_rms(const T* x, std::int64_t rows, std::int64_t size, double epsilon, float* result) {
  Attributes attributes;
  attributes.epsilon = epsilon;
  for (std::int64_t row = 0; row < rows; ++row) {
    double total = 0;
    for (std::int64_t i = 0; i < size; ++i) {
      const double value = widen(x[row * size + i]);
      total += value * value;
    }
    result[row] = static_cast<float>(1.0 / rms_of(total / static_cast<double>(size), attributes));
  }
}

}  // namespace

Floats floats_of(const Constant& constant, const Input& input, std::int32_t type) {
  Floats floats;
  if (constant.data) {
    floats.data = reinterpret_cast<const float*>(constant.data.get());
  } else if (input.data && type == RMS_NORM_FLOAT32) {
    floats.data = static_cast<const float*>(input.data);
  } else if (input.data) {
    const std::int64_t count = std::max<std::int64_t>(input.shape.count(), 1);
    floats.owned.reset(new unsigned char[static_cast<std::size_t>(count) * sizeof(float)]);
    convert(input.data, type, input.shape.count(), RMS_NORM_FLOAT32, RMS_NORM_FLOAT32, floats.owned.get());
    floats.data = reinterpret_cast<const float*>(floats.owned.get());
  }
  return floats;
}

void widen_floats(const void* from, std::int32_t type, std::int64_t count, float* to) {
  convert(from, type, count, RMS_NORM_FLOAT32, RMS_NORM_FLOAT32, to);
}

rms_norm_params plain_params(std::int32_t type, const Shape& x, std::int64_t axis, float epsilon) {
  rms_norm_params params = {};
  params.version = RMS_NORM_PARAMS_VERSION;
  params.x_type = type;
  params.round_type = type == RMS_NORM_FLOAT64 ? RMS_NORM_FLOAT64 : RMS_NORM_FLOAT32;
  params.scale_type = params.round_type;
  params.stash_type = params.round_type;
  params.rank = static_cast<std::int32_t>(x.rank);
  params.axis_begin = static_cast<std::int32_t>(axis);
  params.axis_count = params.rank - params.axis_begin;
  params.partial_size = std::numeric_limits<std::int64_t>::max();
  params.epsilon = epsilon;
  std::copy(x.dims, x.dims + x.rank, params.shape);
  return params;
}

void inverse_rms(const void* x, std::int32_t type, std::int64_t rows, std::int64_t size, double epsilon,
                 float* result) {
  switch (type) {
    case RMS_NORM_FLOAT32:
      return inverse_rms(static_cast<const float*>(x), rows, size, epsilon, result);
    case RMS_NORM_FLOAT16:
      return inverse_rms(static_cast<const Half*>(x), rows, size, epsilon, result);
    case RMS_NORM_BFLOAT16:
      return inverse_rms(static_cast<const Bfloat*>(x), rows, size, epsilon, result);
    default:
      return inverse_rms(static_cast<const double*>(x), rows, size, epsilon, result);
  }
}

void FloatRows::run(std::int64_t begin, std::int64_t end) const noexcept {
  constexpr std::int64_t kTogether = 4096;
  const std::int64_t most = std::max<std::int64_t>(1, kTogether / size);
  std::unique_ptr<float[]> scratch;
  if (y_type != RMS_NORM_FLOAT32) {
    scratch.reset(new (std::nothrow) float[static_cast<std::size_t>(most * size)]);
    if (!scratch) {
      code = RMS_NORM_OUT_OF_MEMORY;
      return;
    }
  }
  for (std::int64_t row = begin; row < end; row += most) {
    const std::int64_t rows = std::min(most, end - row);
    float* const normed = scratch ? scratch.get() : static_cast<float*>(advance(y, y_type, row * size));
    const float* from = normed;
    if (skip) {
      float* const added =
          sum && x_type == RMS_NORM_FLOAT32 ? static_cast<float*>(advance(sum, x_type, row * size)) : normed;
      for (std::int64_t i = 0; i < rows; ++i) add(row + i, added + i * size);
      from = added;
      if (sum && x_type != RMS_NORM_FLOAT32) {
        narrow_floats(added, rows * size, x_type, advance(sum, x_type, row * size));
      }
      if (inverse) inverse_rms(added, rows, size, static_cast<double>(epsilon), inverse + row);
    } else if (x_type == RMS_NORM_FLOAT32) {
      from = static_cast<const float*>(advance(x, x_type, row * size));
    } else {
      widen_floats(advance(x, x_type, row * size), x_type, rows * size, normed);
    }
    norm(from, rows, normed);
    if (scratch) narrow_floats(normed, rows * size, y_type, advance(y, y_type, row * size));
  }
}

// One row of (x + skip) + bias.
void FloatRows::add(std::int64_t row, float* result) const noexcept {
  constexpr std::int64_t kPiece = 256;
  float widened[2][kPiece];
  const std::int64_t skip_row = row % skip_rows;
  for (std::int64_t done = 0; done < size; done += kPiece) {
    const std::int64_t count = std::min(kPiece, size - done);
    const void* a = advance(x, x_type, row * size + done);
    const void* b = advance(skip, x_type, skip_row * size + done);
    if (x_type != RMS_NORM_FLOAT32) {
      widen_floats(a, x_type, count, widened[0]);
      widen_floats(b, x_type, count, widened[1]);
      a = widened[0];
      b = widened[1];
    }
    const float* const left = static_cast<const float*>(a);
    const float* const right = static_cast<const float*>(b);
    float* const to = result + done;  // may be where x or skip is
    if (bias) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = (left[i] + right[i]) + bias[done + i];
    } else {
      for (std::int64_t i = 0; i < count; ++i) to[i] = left[i] + right[i];
    }
  }
}

void FloatRows::norm(const float* from, std::int64_t rows, float* to) const noexcept {
  Shape shape;
  shape.rank = 2;
  shape.dims[0] = rows;
  shape.dims[1] = size;
  rms_norm_params params = plain_params(RMS_NORM_FLOAT32, shape, 1, epsilon);
  params.x = from;
  params.y = to;
  params.scale = scale;
  params.scale_strides[1] = 1;
  Plan plan;
  if (const int failure = plan.prepare(params, true)) {
    code = failure;
  } else {
    plan.run(Tensors(params), 0, plan.units());
  }
}

void run_rows(const Node& node, ort::KernelContext* context, const FloatRows& rows, std::int64_t count) {
  run_parallel(node, context, rows, count, rows.size);
  if (const int code = rows.code) throw Error(ort::kFail, node.owner + ": " + rmsnorm_deploy_error_text(code));
}

}  // namespace rmsnorm_deploy
