// A plan at work: its units handed to the kernel.
#include <algorithm>

#include "../contract/check.h"
#include "address.h"
#include "float64.h"
#include "plan.h"

namespace rmsnorm_deploy {

void Plan::run(std::int64_t begin, std::int64_t end) const noexcept {
  if (float64_) {
    run_float64(begin, end);
  } else if (inner_ == 1) {
    run_rows(begin, end);
  } else {
    run_columns(begin, end);
  }
}

// What all kinds of kernels are handed alike: the tensors, `skip` bytes behind their beginning, and the statistic.
template <typename Args>
Args Plan::args_at(std::int64_t skip) const noexcept {
  Args a = {};
  a.x = advance(params_->x, skip);
  a.residual = advance(params_->residual, skip);
  a.y = advance(params_->y, skip);
  a.sum = advance(params_->sum, skip);
  a.size = size_;
  a.measured = measured_;
  a.attributes = attributes_;
  return a;
}

void Plan::run_rows(std::int64_t begin, std::int64_t end) const noexcept {
  const RowsKernel kernel = kernels_->rows[element_][mode_][rounding_];
  while (begin < end) {
    const std::int64_t rows = std::min(end - begin, same_weights_ - (begin ? begin % same_weights_ : 0));
    const std::int64_t skip = begin * unit_bytes_;
    auto a = args_at<RowsArgs>(skip);
    a.scale = at<float>(scale_.data, scale_.offset(*params_, begin));
    a.bias = bias_.data ? at<float>(bias_.data, bias_.offset(*params_, begin)) : nullptr;
    a.rows = rows;
    a.far = far_;
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
    auto a = args_at<ColumnsArgs>(skip);
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

void Plan::run_float64(std::int64_t begin, std::int64_t end) const noexcept {
  const std::int64_t bytes = element_size(params_->x_type);
  for (; begin < end; ++begin) {
    const std::int64_t outer = begin / inner_;
    const std::int64_t column = begin % inner_;
    const std::int64_t skip = (outer * size_ * inner_ + column) * bytes;
    auto a = args_at<Float64Args>(skip);
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
