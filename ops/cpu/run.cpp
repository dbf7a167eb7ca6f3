// A plan at work: its units handed to the kernel.
#include <algorithm>
#include <type_traits>

#include "../contract/check.h"
#include "address.h"
#include "convert.h"
#include "float64.h"
#include "plan.h"
#include "quantise.h"

namespace rmsnorm_deploy {

namespace {

RowFactors factors_from(const RowFactors& factors, std::int64_t row) noexcept {
  return {factors.high + row, factors.low + row, factors.divides + row};
}

PieceEnds ends_from(const PieceEnds& ends, std::int64_t piece) noexcept {
  return {ends.least + piece, ends.most + piece, ends.margin + piece};
}

}  // namespace

void Plan::run(const Tensors& t, std::int64_t begin, std::int64_t end) const noexcept {
  if (float64_) {
    run_float64(t, begin, end);
  } else if (outputs_) {
    run_outputs(t, begin, end, {});
  } else if (inner_ == 1) {
    run_rows(t, begin, end);
  } else {
    run_columns(t, begin, end);
  }
}

// What all kinds of kernels are handed alike: the tensors, `skip` bytes behind their beginning, and the statistic.
template <typename Args>
Args Plan::args_at(const Tensors& t, std::int64_t skip) const noexcept {
  Args a = {};
  a.x = advance(t.x, skip);
  a.residual = advance(t.residual, skip);
  if constexpr (!std::is_same_v<Args, RangesArgs>) a.y = advance(t.y, skip);
  a.sum = advance(t.sum, skip);
  a.size = size_;
  a.measured = measured_;
  a.attributes = attributes_;
  return a;
}

void Plan::run_rows(const Tensors& t, std::int64_t begin, std::int64_t end) const noexcept {
  const RowsKernel kernel = kernels_->rows[element_][mode_][rounding_];
  while (begin < end) {
    const std::int64_t rows = std::min(end - begin, same_weights_ - (begin ? begin % same_weights_ : 0));
    const std::int64_t skip = begin * unit_bytes_;
    auto a = args_at<RowsArgs>(t, skip);
    a.scale = at<float>(scale_.data, scale_.offset(*params_, begin));
    a.bias = bias_.data ? at<float>(bias_.data, bias_.offset(*params_, begin)) : nullptr;
    a.rows = rows;
    a.far = far_;
    kernel(a);
    begin += rows;
  }
}

// Where row `row` of a tensor begins, or null where there is no tensor.
template <typename Pointer>
Pointer Plan::row_of(RowTensor tensor, Pointer base, std::int64_t row) const noexcept {
  if (!base) return base;
  const std::int32_t type = tensor == kRowsOfY ? type_of_y(*params_) : params_->x_type;
  const std::int64_t bytes = tensor == kRowsOfQuantised ? 1 : element_size(type);
  return advance(base, offset_of_row(*params_, size_, tensor, row) * bytes);
}

void Plan::run_outputs(const Tensors& t, std::int64_t begin, std::int64_t end,
                       const RowFactors& factors) const noexcept {
  const rms_norm_params& p = *params_;
  const std::int32_t y_type = type_of_y(p);
  const int y_element = element_index(y_type);
  OutputsArgs a = {};
  int result = rounding_;
  int finished = element_;  // what the last two kernels take
  if (y_type != p.x_type) {
    if (p.x_type == RMS_NORM_FLOAT32) {
      a.narrow = kernels_->narrow[y_element];
      finished = y_element;
    } else if (rounding_ == kRoundOnce) {
      result = kResultFloat;
      finished = kFloat32;
    } else if (t.y) {
      a.widen = kernels_->weights[element_][kFloat32];
    }
  }
  const int quantised = p.quantised_type ? quantised_index(p.quantised_type) : 0;
  const OutputsKernel kernel = bytes_ ? kernels_->bytes[mode_][quantised] : kernels_->outputs[element_][mode_][result];
  a.size = size_;
  a.measured = measured_;
  a.attributes = attributes_;
  a.x_step = rows_.step[kRowsOfX];
  a.residual_step = rows_.step[kRowsOfResidual];
  a.sum_step = rows_.step[kRowsOfSum];
  a.y_step = rows_.step[kRowsOfY];
  a.y_bytes = element_size(y_type);
  if (t.least || t.most) a.extremes = kernels_->extremes[finished];
  if (p.quantised_type) {
    const bool narrow = p.quotient_type && p.quotient_type != RMS_NORM_FLOAT32;
    a.quantise = kernels_->quantise[finished][quantised][narrow];
    a.quantised_step = rows_.step[kRowsOfQuantised];
    a.by_row = p.quantised_by_row;
  }
  // Few enough rows at once for their scales as floats.
  constexpr std::int64_t kMost = 64;
  float scales[kMost];
  std::int32_t zeros[kMost];
  a.quantised_scale = scales;
  a.zero_point = zeros;
  if (a.quantise && !a.by_row) quantised_values(p, t.quantised_scale, t.zero_point, 0, 1, scales, zeros);
  while (begin < end) {
    std::int64_t rows = std::min(end - begin, same_weights_ - begin % same_weights_);
    rows = std::min(rows, rows_.run - begin % rows_.run);
    if (a.quantise && a.by_row) {
      rows = std::min(rows, kMost);
      quantised_values(p, t.quantised_scale, t.zero_point, begin, rows, scales, zeros);
    }
    a.x = row_of(kRowsOfX, t.x, begin);
    a.residual = row_of(kRowsOfResidual, t.residual, begin);
    a.y = row_of(kRowsOfY, t.y, begin);
    a.sum = row_of(kRowsOfSum, t.sum, begin);
    a.quantised = a.quantise ? row_of(kRowsOfQuantised, t.quantised, begin) : nullptr;
    a.scale = at<float>(scale_.data, scale_.offset(p, begin));
    a.bias = bias_.data ? at<float>(bias_.data, bias_.offset(p, begin)) : nullptr;
    a.least = t.least ? t.least + begin : nullptr;
    a.most = t.most ? t.most + begin : nullptr;
    if (factors.high) a.factors = factors_from(factors, begin);
    a.rows = rows;
    kernel(a);
    begin += rows;
  }
}

std::int64_t Plan::pieces() const noexcept { return (size_ + kernels_->piece - 1) / kernels_->piece; }

void Plan::run_ranges(const Tensors& t, std::int64_t begin, std::int64_t end, const RowFactors& factors,
                      const PieceEnds& ends) const noexcept {
  constexpr std::int64_t kFew = 2;
  const std::int64_t each = pieces();
  while (begin < end) {
    const std::int64_t rows = std::min(end - begin, same_weights_ - begin % same_weights_);
    auto a = args_at<RangesArgs>(t, begin * unit_bytes_);
    a.scale = at<float>(scale_.data, scale_.offset(*params_, begin));
    a.rows = rows;
    a.factors = factors_from(factors, begin);
    a.ends = ends_from(ends, begin * each);
    a.few = units_ * each <= kFew;
    kernels_->ranges[mode_](a);
    begin += rows;
  }
}

void Plan::widen_range(const Tensors& t, const RowFactors& factors, const PieceEnds& ends, float* least,
                       float* most) const noexcept {
  const std::int64_t each = pieces();
  float down = 0;
  float up = 0;
  for (std::int64_t i = 0; i < units_ * each; ++i) {
    down = std::min(down, ends.least[i] + ends.margin[i]);
    up = std::max(up, ends.most[i] - ends.margin[i]);
  }
  const auto* const values = static_cast<const float*>(t.sum ? t.sum : t.x);
  for (std::int64_t i = 0; i < units_ * each; ++i) {
    if (ends.least[i] - ends.margin[i] > down && ends.most[i] + ends.margin[i] < up) continue;
    const std::int64_t row = i / each;
    const std::int64_t begin = i % each * kernels_->piece;
    const auto* const scale = at<float>(scale_.data, scale_.offset(*params_, row)) + begin;
    kernels_->ends(values + row * size_ + begin, scale, factors, row, std::min(size_ - begin, kernels_->piece), least,
                   most);
  }
}

void Plan::run_columns(const Tensors& t, std::int64_t begin, std::int64_t end) const noexcept {
  const ColumnsKernel kernel = kernels_->columns[element_][mode_][rounding_];
  const std::int64_t bytes = element_size(params_->x_type);
  while (begin < end) {
    const std::int64_t outer = begin / tiles_;
    const std::int64_t first = begin % tiles_;
    const std::int64_t tiles = std::min(end - begin, tiles_ - first);
    const std::int64_t skip = outer * size_ * inner_ * bytes;
    auto a = args_at<ColumnsArgs>(t, skip);
    a.scale = at<float>(scale_.data, scale_.offset(*params_, outer));
    a.bias = bias_.data ? at<float>(bias_.data, bias_.offset(*params_, outer)) : nullptr;
    a.scale_by_column = scale_.by_column;
    a.bias_by_column = bias_.by_column;
    a.inner = inner_;
    a.begin = first * kColumnTile;
    a.end = std::min(inner_, (first + tiles) * kColumnTile);
    kernel(a);
    begin += tiles;
  }
}

void Plan::run_float64(const Tensors& t, std::int64_t begin, std::int64_t end) const noexcept {
  const std::int64_t bytes = element_size(params_->x_type);
  for (; begin < end; ++begin) {
    const std::int64_t outer = begin / inner_;
    const std::int64_t column = begin % inner_;
    const std::int64_t skip = (outer * size_ * inner_ + column) * bytes;
    auto a = args_at<Float64Args>(t, skip);
    if (outputs_) {
      a.x = row_of(kRowsOfX, t.x, begin);
      a.residual = row_of(kRowsOfResidual, t.residual, begin);
      a.y = row_of(kRowsOfY, t.y, begin);
      a.sum = row_of(kRowsOfSum, t.sum, begin);
    }
    a.scale = at<double>(scale_.data, scale_.offset(*params_, outer) + (scale_.by_column ? column : 0));
    a.scale_step = scale_.by_column ? inner_ : 1;
    a.bias =
        bias_.data ? at<double>(bias_.data, bias_.offset(*params_, outer) + (bias_.by_column ? column : 0)) : nullptr;
    a.bias_step = bias_.by_column ? inner_ : 1;
    a.step = inner_;
    a.x_type = params_->x_type;
    a.round_type = params_->round_type;
    float64_group(a);
  }
}

}  // namespace rmsnorm_deploy
