// Rows of float32 whose result is wanted in 8 bits: it becomes bytes before it is stored anywhere. No scale here is
// more than kMostModerate, and the mean is that of the whole row, so that x / rms can neither overflow nor be so small
// that it matters.
#ifndef RMSNORM_DEPLOY_CPU_ISA_BYTES_H_
#define RMSNORM_DEPLOY_CPU_ISA_BYTES_H_

#include "quantise.h"
#include "rows.h"

namespace {

// y of one row in 8 bits, and as it is where `y` is given.
template <int kQuantised, bool kDivide>
INLINE void exact_bytes_pass(const float* x, float* y, const float* scale, Factor factor, std::int64_t size,
                             const Blocks<kQuantised>& blocks, unsigned char* to) {
  const Vector high = set1(factor.high);
  const Vector low = set1(factor.low);
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Vector v = finished<float, kPlain, kRoundOnce, kDivide>(load(x + i), high, low, load(scale + i), set1(0));
    if (y) store(y + i, v);
    store_bytes(to + i, blocks.divided(v));
  }
  if (i < size) {
    const std::int64_t count = size - i;
    const Vector s = load_first(scale + i, count);
    const Vector v = finished<float, kPlain, kRoundOnce, kDivide>(load_first(x + i, count), high, low, s, set1(0));
    if (y) store_first(y + i, v, count);
    store_bytes_first(to + i, blocks.divided(v), count);
  }
}

// The same for any row.
template <int kQuantised>
__attribute__((noinline, cold)) static void any_bytes_pass(const float* x, float* y, const float* scale, Factor factor,
                                                           bool divides, std::int64_t size,
                                                           const Blocks<kQuantised>& blocks, unsigned char* to) {
  if (divides) {
    exact_bytes_pass<kQuantised, true>(x, y, scale, factor, size, blocks, to);
  } else {
    exact_bytes_pass<kQuantised, false>(x, y, scale, factor, size, blocks, to);
  }
}

// The same by products. Without y, x times scale is near enough: y is 3 roundings off what it stands for, the product
// and the multiplier 2.
template <int kQuantised, bool kKeeps>
INLINE void bytes_pass(const float* x, float* y, const float* scale, Factor factor, std::int64_t size,
                       const Blocks<kQuantised>& blocks, unsigned char* to) {
  const Vector high = set1(factor.high);
  const Vector low = set1(factor.low);
  const double all = static_cast<double>(factor.high) + static_cast<double>(factor.low);
  float multiplier;
  if (__builtin_expect(!blocks.multiplier(kKeeps ? 1.0 : all, &multiplier), 0)) {
    return any_bytes_pass<kQuantised>(x, y, scale, factor, false, size, blocks, to);
  }
  std::int64_t i = 0;
  for (; i + kBlock * kLanes <= size; i += kBlock * kLanes) {
    Vector v[kBlock];
#pragma GCC unroll 4
    for (int k = 0; k < kBlock; ++k) {
      const std::int64_t at = i + k * kLanes;
      if constexpr (kKeeps) {
        v[k] = finished<float, kPlain, kRoundOnce, false>(load(x + at), high, low, load(scale + at), set1(0));
        store(y + at, v[k]);
      } else {
        v[k] = load(x + at) * load(scale + at);
      }
    }
    if (__builtin_expect(blocks.put(v, set1(multiplier), to + i), 1)) continue;
    if constexpr (kKeeps) {  // x may be y, and gone
      for (int k = 0; k < kBlock; ++k) store_bytes(to + i + k * kLanes, blocks.divided(v[k]));
    } else {
      any_bytes_pass<kQuantised>(x + i, nullptr, scale + i, factor, false, kBlock * kLanes, blocks, to + i);
    }
  }
  if (i < size) {
    exact_bytes_pass<kQuantised, false>(x + i, kKeeps ? y + i : nullptr, scale + i, factor, size - i, blocks, to + i);
  }
}

template <int kMode, int kQuantised>
static void bytes_kernel(const OutputsArgs& a) {
  constexpr bool kAdds = kMode == kResidual;
  const std::int64_t size = a.size;
  const float* const x = static_cast<const float*>(a.x);
  const float* const residual = kAdds ? static_cast<const float*>(a.residual) : x;
  float* const sum = kAdds ? static_cast<float*>(a.sum) : nullptr;
  float* const y = static_cast<float*>(a.y);
  const Blocks<kQuantised> blocks(a.quantised_scale[0], a.zero_point[0]);
  in_batches(
      a.rows, rows_together(size), a.measured, a.attributes, a.factors,
      [&](std::int64_t row, std::int64_t) __attribute__((always_inline)) {
        return first_pass<float, kMode, false>(x + row * a.x_step, residual + row * a.residual_step,
                                               kAdds ? sum + row * a.sum_step : nullptr, size, a.measured, a.attributes,
                                               NothingElse{});
      },
      [&](std::int64_t row, std::int64_t i, const Factors& factors) __attribute__((always_inline)) {
        const float* const values = kAdds ? sum + row * a.sum_step : x + row * a.x_step;
        unsigned char* const to = static_cast<unsigned char*>(a.quantised) + row * a.quantised_step;
        const Factor factor = {factors.high[i], factors.low[i]};
        if (__builtin_expect(factors.divides[i], 0)) {
          any_bytes_pass<kQuantised>(values, y ? y + row * a.y_step : nullptr, a.scale, factor, true, size, blocks, to);
        } else if (y) {
          bytes_pass<kQuantised, true>(values, y + row * a.y_step, a.scale, factor, size, blocks, to);
        } else {
          bytes_pass<kQuantised, false>(values, nullptr, a.scale, factor, size, blocks, to);
        }
      });
}

// The ends of the range of x times scale, and of zero, which is in every range that is asked for here.
struct Ends {
  static constexpr bool kWhole = true;
  const float* scale;
  Vector least;
  Vector most;
  ALWAYS_INLINE void operator()(Vector v, std::int64_t at) { take(v * load(scale + at)); }
  ALWAYS_INLINE void first(Vector v, std::int64_t at, std::int64_t count) { take(v * load_first(scale + at, count)); }
  ALWAYS_INLINE void take(Vector v) {
    least = at_most(v, least);
    most = at_least(v, most);
  }
};

template <bool kDivide>
INLINE void ends_of_row(const float* x, const float* scale, Factor factor, std::int64_t size, Ends& ends) {
  const Vector high = set1(factor.high);
  const Vector low = set1(factor.low);
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    ends.take(finished<float, kPlain, kRoundOnce, kDivide>(load(x + i), high, low, load(scale + i), set1(0)));
  }
  if (i < size) {
    const Vector v = load_first(x + i, size - i);
    ends.take(finished<float, kPlain, kRoundOnce, kDivide>(v, high, low, load_first(scale + i, size - i), set1(0)));
  }
}

static void ends_kernel(const float* x, const float* scale, const RowFactor& row, std::int64_t size, float* least,
                        float* most) {
  const Factor factor = {row.high, row.low};
  Ends ends = {nullptr, set1(*least), set1(*most)};
  if (row.divides) {
    ends_of_row<true>(x, scale, factor, size, ends);
  } else {
    ends_of_row<false>(x, scale, factor, size, ends);
  }
  *least = least_of(ends.least);
  *most = most_of(ends.most);
}

// What is known of a row without its range.
INLINE RowFactor row_factor(const Factors& factors, std::int64_t i) {
  return {factors.high[i], factors.low[i], factors.divides[i], 0.0f, 0.0f, __builtin_inff()};
}

// `least` and `most` are those of x times scale: the factor times a value of that is at most 6 roundings off the y of
// it.
INLINE RowFactor row_factor(const Factors& factors, std::int64_t i, float least, float most) {
  const float high = factors.high[i];
  least *= high;
  most *= high;
  // What is added covers what is subnormal, or was made zero, on the way to a product or to y.
  const float margin = (most > -least ? most : -least) * 0x1p-20f + (high * 0x1p-124f + 0x1p-90f);
  if (__builtin_expect(factors.divides[i] || margin == __builtin_inff(), 0)) return row_factor(factors, i);
  return {high, factors.low[i], false, least, most, margin};
}

template <int kMode>
static void ranges_kernel(const RangesArgs& a) {
  constexpr bool kAdds = kMode == kResidual;
  const std::int64_t size = a.size;
  const float* const x = static_cast<const float*>(a.x);
  const float* const residual = kAdds ? static_cast<const float*>(a.residual) : x;
  float* const sum = kAdds ? static_cast<float*>(a.sum) : nullptr;
  const auto pass = [&](std::int64_t row, auto&& also) __attribute__((always_inline)) {
    const std::int64_t at = row * size;
    return first_pass<float, kMode, false>(x + at, residual + at, kAdds ? sum + at : nullptr, size, a.measured,
                                           a.attributes, also);
  };
  if (a.alone) {
    const double total = wide_sum(pass(0, NothingElse{}));
    Factors factors;
    set_factor(factors, 0, rms_of(total * (1.0 / static_cast<double>(a.measured)), a.attributes));
    a.factors[0] = row_factor(factors, 0);
    return;
  }
  Vector lows[kBatch];
  Vector highs[kBatch];
  in_batches(
      a.rows, rows_together(size), a.measured, a.attributes, nullptr,
      [&](std::int64_t row, std::int64_t i) __attribute__((always_inline)) {
        Ends ends = {a.scale, set1(0), set1(0)};
        const Wide total = pass(row, ends);
        lows[i] = ends.least;
        highs[i] = ends.most;
        return total;
      },
      [&](std::int64_t row, std::int64_t i, const Factors& factors) __attribute__((always_inline)) {
        a.factors[row] = row_factor(factors, i, least_of(lows[i]), most_of(highs[i]));
      });
}

}  // namespace

#endif  // RMSNORM_DEPLOY_CPU_ISA_BYTES_H_
