#include "plan.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "cache.h"
#include "scalar.h"

namespace rmsnorm_deploy {
namespace {

template <typename T>
const T* at(const void* base, std::int64_t index) {
  return static_cast<const T*>(base) + index;
}
template <typename T>
T* at(void* base, std::int64_t index) {
  return static_cast<T*>(base) + index;
}

const void* advance(const void* base, std::int64_t bytes) { return base ? at<unsigned char>(base, bytes) : nullptr; }
void* advance(void* base, std::int64_t bytes) { return base ? at<unsigned char>(base, bytes) : nullptr; }

bool sixteen_bit(std::int32_t type) { return type == RMS_NORM_FLOAT16 || type == RMS_NORM_BFLOAT16; }

template <typename From, typename To>
void convert_all(const void* data, std::int64_t count, std::int32_t round_type, void* result) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    narrow(round_to(widen(*at<From>(data, i)), round_type), *at<To>(result, i));
  }
}

template <typename To>
void convert_from(const void* data, std::int32_t type, std::int64_t count, std::int32_t round_type,
                  void* result) noexcept {
  switch (type) {
    case RMS_NORM_FLOAT32:
      return convert_all<float, To>(data, count, round_type, result);
    case RMS_NORM_FLOAT16:
      return convert_all<Half, To>(data, count, round_type, result);
    case RMS_NORM_BFLOAT16:
      return convert_all<Bfloat, To>(data, count, round_type, result);
    default:
      return convert_all<double, To>(data, count, round_type, result);
  }
}

// One norm group in float64: `size` values that are `step` elements apart.
struct DoubleArgs {
  const void* x;
  const void* residual;
  void* y;
  void* sum;
  const double* scale;
  const double* bias;
  std::int64_t scale_step;
  std::int64_t bias_step;
  std::int64_t size;
  std::int64_t measured;
  std::int64_t step;
  std::int32_t round_type;
  Attributes attributes;
};

template <typename T>
void double_group(const DoubleArgs& a) noexcept {
  const T* x = static_cast<const T*>(a.x);
  if (a.residual) {
    const T* residual = static_cast<const T*>(a.residual);
    T* sum = static_cast<T*>(a.sum);
    for (std::int64_t i = 0; i < a.size; ++i) {
      narrow(widen(x[i * a.step]) + widen(residual[i * a.step]), sum[i * a.step]);
    }
    x = sum;
  }
  // Several chains, and a fresh start every so often, keep the error of a long sum small.
  constexpr int kChains = 8;
  constexpr std::int64_t kBlock = 512;
  double total = 0;
  for (std::int64_t i = 0; i < a.measured;) {
    double sums[kChains] = {};
    const std::int64_t end = std::min(a.measured, i + kBlock);
    for (; i + kChains <= end; i += kChains) {
      for (int k = 0; k < kChains; ++k) {
        const double v = widen(x[(i + k) * a.step]);
        sums[k] += v * v;
      }
    }
    for (; i < end; ++i) {
      const double v = widen(x[i * a.step]);
      sums[0] += v * v;
    }
    total += ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }
  const double mean = total / static_cast<double>(a.measured);
  const double unbounded = std::sqrt(mean + a.attributes.epsilon) + a.attributes.epsilon_outside;
  const double rms = unbounded < a.attributes.rms_floor ? a.attributes.rms_floor : unbounded;
  T* y = static_cast<T*>(a.y);
  for (std::int64_t i = 0; i < a.size; ++i) {
    const double n = round_to(widen(x[i * a.step]) / rms, a.round_type);
    double v = round_to(n * a.scale[i * a.scale_step], a.round_type);
    if (a.bias) v = round_to(v + a.bias[i * a.bias_step], a.round_type);
    narrow(v, y[i * a.step]);
  }
}

}  // namespace

int element_index(std::int32_t type) noexcept {
  return type == RMS_NORM_FLOAT16 ? kFloat16 : type == RMS_NORM_BFLOAT16 ? kBfloat16 : kFloat32;
}

void convert(const void* data, std::int32_t type, std::int64_t count, std::int32_t round_type, std::int32_t to,
             void* result) noexcept {
  if (to == RMS_NORM_FLOAT32 && type != RMS_NORM_FLOAT64) {
    if (const KernelTable* table = kernels()) {
      return table->weights[element_index(type)][element_index(round_type)](data, static_cast<float*>(result), count);
    }
  }
  if (to == RMS_NORM_FLOAT32) {
    convert_from<float>(data, type, count, round_type, result);
  } else {
    convert_from<double>(data, type, count, round_type, result);
  }
}

bool Plan::layout(Weights& weights, const void* data, const std::int64_t* strides, bool already_rounded) const {
  const std::int32_t begin = params_->axis_begin;
  const std::int32_t end = begin + params_->axis_count;
  const std::int64_t* shape = params_->shape;
  for (std::int32_t i = end; i < params_->rank; ++i)
    weights.by_column = weights.by_column || (strides[i] && shape[i] > 1);

  // The wanted layout: leading dimensions along which the values differ, then the normalised ones, then columns.
  const std::int32_t last = weights.by_column ? params_->rank : end;
  std::int64_t wanted[RMS_NORM_MAX_RANK] = {};
  std::int64_t count = 1;
  bool same = true;
  for (std::int32_t i = last - 1; i >= 0; --i) {
    const bool spread = i >= begin || (strides[i] != 0 && shape[i] > 1);
    if (!spread) continue;
    wanted[i] = count;
    if (shape[i] > 1) same = same && strides[i] == count;
    count *= shape[i];
  }
  std::copy(wanted, wanted + begin, weights.outer_strides);

  const std::int32_t to = double_ ? RMS_NORM_FLOAT64 : RMS_NORM_FLOAT32;
  const std::int32_t round_type = already_rounded ? RMS_NORM_FLOAT64 : params_->round_type;
  const bool exact = already_rounded || round_type == params_->scale_type || element_size(round_type) > 4 ||
                     (round_type == RMS_NORM_FLOAT32 && params_->scale_type != RMS_NORM_FLOAT64);
  if (same && exact && params_->scale_type == to) {
    weights.data = data;
    return true;
  }
  const std::int64_t bytes = element_size(to);
  weights.owned.reset(new (std::nothrow) unsigned char[static_cast<std::size_t>(count * bytes)]);
  if (!weights.owned) return false;
  weights.data = weights.owned.get();
  const std::int64_t from_bytes = element_size(params_->scale_type);
  if (same) {
    convert(data, params_->scale_type, count, round_type, to, weights.owned.get());
    return true;
  }
  // An odometer over the wanted layout. Its last dimension is a run that is converted at once where it is contiguous,
  // and filled with one value where scale or bias is broadcast along it.
  std::int32_t inmost = last - 1;
  while (inmost > 0 && (wanted[inmost] == 0 || shape[inmost] == 1)) --inmost;
  const std::int64_t run = wanted[inmost] == 0 ? 1 : shape[inmost];
  const std::int64_t step = run == 1 ? 0 : strides[inmost];
  std::int64_t index[RMS_NORM_MAX_RANK] = {};
  std::int64_t from = 0;
  for (std::int64_t done = 0; done < count; done += run) {
    unsigned char* const result = weights.owned.get() + done * bytes;
    const void* const source = advance(data, from * from_bytes);
    if (step == 1) {
      convert(source, params_->scale_type, run, round_type, to, result);
    } else {
      for (std::int64_t i = 0; i < (step ? run : 1); ++i) {
        convert(advance(source, i * step * from_bytes), params_->scale_type, 1, round_type, to, result + i * bytes);
      }
      if (step == 0 && double_) std::fill_n(at<double>(result, 0), run, *at<double>(result, 0));
      if (step == 0 && !double_) std::fill_n(at<float>(result, 0), run, *at<float>(result, 0));
    }
    for (std::int32_t i = inmost - 1; i >= 0; --i) {
      if (wanted[i] == 0 || shape[i] == 1) continue;
      from += strides[i];
      if (++index[i] < shape[i]) break;
      from -= strides[i] * shape[i];
      index[i] = 0;
    }
  }
  return true;
}

int Plan::prepare(const rms_norm_params& params, bool already_rounded) noexcept {
  kernels_ = kernels();
  if (!kernels_) return params.version == RMS_NORM_PARAMS_VERSION ? RMS_NORM_BAD_ISA : RMS_NORM_BAD_VERSION;
  Sizes sizes = {};
  const int code = check(params, sizes);
  if (code != RMS_NORM_OK) return code;
  params_ = &params;
  double_ = sizes.float64;
  outer_ = sizes.outer;
  size_ = sizes.size;
  inner_ = sizes.inner;
  measured_ = sizes.measured;
#define VALUE(name, neutral, since) params.name,
  attributes_ = {RMS_NORM_FLOAT_ATTRIBUTES(VALUE)};
#undef VALUE
  if (sizes.total == 0) return RMS_NORM_OK;
  const std::int64_t bytes = element_size(params.x_type);

  if (!layout(scale_, params.scale, params.scale_strides, already_rounded) ||
      (params.bias && !layout(bias_, params.bias, params.bias_strides, already_rounded))) {
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
  if (double_) {
    units_ = outer_ * inner_;
    unit_values_ = size_;
  } else if (inner_ == 1) {
    units_ = outer_;
    unit_values_ = size_;
    unit_bytes_ = size_ * bytes;
    const std::int64_t each = far_bytes() / (params.residual ? 4 : 2);
    far_ = sizes.total * bytes >= each && whole_lines(params.y) && whole_lines(params.sum);
  } else {
    tiles_ = (inner_ + kColumnTile - 1) / kColumnTile;
    units_ = outer_ * tiles_;
    unit_values_ = size_ * std::min(inner_, kColumnTile);
  }
  return RMS_NORM_OK;
}

// Whether an output can be written past the caches: every row is in lines of its own, which nothing has just read.
bool Plan::whole_lines(const void* output) const noexcept {
  constexpr std::uintptr_t kLine = 64;
  return reinterpret_cast<std::uintptr_t>(output) % kLine == 0 && unit_bytes_ % kLine == 0 &&
         (!output || (output != params_->x && output != params_->residual));
}

std::int64_t Plan::offset(const Weights& weights, std::int64_t outer) const noexcept {
  std::int64_t result = 0;
  for (std::int32_t i = params_->axis_begin - 1; i >= 0 && outer; --i) {
    result += outer % params_->shape[i] * weights.outer_strides[i];
    outer /= params_->shape[i];
  }
  return result;
}

void Plan::run(std::int64_t begin, std::int64_t end) const noexcept {
  if (double_) {
    run_double(begin, end);
  } else if (inner_ == 1) {
    run_rows(begin, end);
  } else {
    run_columns(begin, end);
  }
}

void Plan::run_rows(std::int64_t begin, std::int64_t end) const noexcept {
  const RowsKernel kernel = kernels_->rows[element_][mode_][rounding_];
  while (begin < end) {
    const std::int64_t rows = std::min(end - begin, same_weights_ - (begin ? begin % same_weights_ : 0));
    const std::int64_t skip = begin * unit_bytes_;
    RowsArgs a = {};
    a.x = advance(params_->x, skip);
    a.residual = advance(params_->residual, skip);
    a.y = advance(params_->y, skip);
    a.sum = advance(params_->sum, skip);
    a.scale = at<float>(scale_.data, offset(scale_, begin));
    a.bias = bias_.data ? at<float>(bias_.data, offset(bias_, begin)) : nullptr;
    a.rows = rows;
    a.size = size_;
    a.measured = measured_;
    a.far = far_;
    a.attributes = attributes_;
    kernel(a);
    begin += rows;
  }
}

void Plan::run_columns(std::int64_t begin, std::int64_t end) const noexcept {
  const ColumnsKernel kernel = kernels_->columns[element_][mode_][rounding_];
  const std::int64_t bytes = element_size(params_->x_type);
  while (begin < end) {
    const std::int64_t outer = begin / tiles_;
    const std::int64_t first = begin % tiles_;
    const std::int64_t tiles = std::min(end - begin, tiles_ - first);
    const std::int64_t skip = outer * size_ * inner_ * bytes;
    ColumnsArgs a = {};
    a.x = advance(params_->x, skip);
    a.residual = advance(params_->residual, skip);
    a.y = advance(params_->y, skip);
    a.sum = advance(params_->sum, skip);
    a.scale = at<float>(scale_.data, offset(scale_, outer));
    a.bias = bias_.data ? at<float>(bias_.data, offset(bias_, outer)) : nullptr;
    a.scale_by_column = scale_.by_column;
    a.bias_by_column = bias_.by_column;
    a.size = size_;
    a.inner = inner_;
    a.begin = first * kColumnTile;
    a.end = std::min(inner_, (first + tiles) * kColumnTile);
    a.measured = measured_;
    a.attributes = attributes_;
    kernel(a);
    begin += tiles;
  }
}

void Plan::run_double(std::int64_t begin, std::int64_t end) const noexcept {
  const std::int64_t bytes = element_size(params_->x_type);
  for (; begin < end; ++begin) {
    const std::int64_t outer = begin / inner_;
    const std::int64_t column = begin % inner_;
    const std::int64_t skip = (outer * size_ * inner_ + column) * bytes;
    DoubleArgs a = {};
    a.x = advance(params_->x, skip);
    a.residual = advance(params_->residual, skip);
    a.y = advance(params_->y, skip);
    a.sum = advance(params_->sum, skip);
    a.scale = at<double>(scale_.data, offset(scale_, outer) + (scale_.by_column ? column : 0));
    a.scale_step = scale_.by_column ? inner_ : 1;
    a.bias = bias_.data ? at<double>(bias_.data, offset(bias_, outer) + (bias_.by_column ? column : 0)) : nullptr;
    a.bias_step = bias_.by_column ? inner_ : 1;
    a.size = size_;
    a.measured = measured_;
    a.step = inner_;
    a.round_type = params_->round_type;
    a.attributes = attributes_;
    switch (params_->x_type) {
      case RMS_NORM_FLOAT32:
        double_group<float>(a);
        break;
      case RMS_NORM_FLOAT16:
        double_group<Half>(a);
        break;
      case RMS_NORM_BFLOAT16:
        double_group<Bfloat>(a);
        break;
      default:
        double_group<double>(a);
    }
  }
}

}  // namespace rmsnorm_deploy
