// Down the columns of a matrix.
#ifndef RMSNORM_DEPLOY_CPU_ISA_COLUMNS_H_
#define RMSNORM_DEPLOY_CPU_ISA_COLUMNS_H_

#include "factors.h"
#include "steps.h"

namespace {

template <typename T, int kMode>
INLINE Vector entered_count(const T* x, const T* residual, T* sum, std::int64_t count, const Attributes& a) {
  return count == kLanes ? entered<T, kMode, false>(x, residual, sum, a)
                         : entered_first<T, kMode>(x, residual, sum, count, a);
}

template <typename T>
INLINE Vector load_count(const T* p, std::int64_t count) {
  return count == kLanes ? load(p) : load_first(p, count);
}

// kVectors vectors of columns side by side; the last of a matrix may have fewer columns than lanes, and is then alone.
template <typename T, int kMode, int kRounding, int kVectors>
INLINE void columns_tile(const ColumnsArgs& a, std::int64_t column, std::int64_t count) {
  constexpr bool kAdds = kMode == kResidual || kMode == kResidualBias;
  constexpr bool kHasBias = kMode == kBias || kMode == kResidualBias;
  constexpr std::int64_t kBlock = 4;  // float additions in a chain before the sum goes into double precision
  constexpr int kWidth = kVectors * kLanes;
  const T* x = static_cast<const T*>(a.x) + column;
  const T* residual = kAdds ? static_cast<const T*>(a.residual) + column : x;
  T* y = static_cast<T*>(a.y) + column;
  T* sum = kAdds ? static_cast<T*>(a.sum) + column : y;

  Wide wides[kVectors];
  for (int k = 0; k < kVectors; ++k) wides[k] = wide_zero();
  for (std::int64_t i = 0; i < a.measured;) {
    Vector sums[kVectors];
    for (int k = 0; k < kVectors; ++k) sums[k] = set1(0);
    const std::int64_t end = a.measured < i + kBlock ? a.measured : i + kBlock;
    for (; i < end; ++i) {
#pragma GCC unroll 8
      for (int k = 0; k < kVectors; ++k) {
        const std::int64_t at = i * a.inner + k * kLanes;
        sums[k] = square_add(entered_count<T, kMode>(x + at, residual + at, sum + at, count, a.attributes), sums[k]);
      }
    }
    for (int k = 0; k < kVectors; ++k) wides[k] = wide_add(sums[k], wides[k]);
  }
  double totals[kWidth];
  for (int k = 0; k < kVectors; ++k) wide_store(totals + k * kLanes, wides[k]);
  if constexpr (kAdds) {
    for (std::int64_t i = a.measured; i < a.size; ++i) {
      for (int k = 0; k < kVectors; ++k) {
        const std::int64_t at = i * a.inner + k * kLanes;
        entered_count<T, kMode>(x + at, residual + at, sum + at, count, a.attributes);
      }
    }
    x = sum;
  }

  const double per_count = 1.0 / static_cast<double>(a.measured);
  bool reciprocal = true;
  float highs[kWidth];
  float lows[kWidth];
  for (int k = 0; k < kWidth; ++k) {
    totals[k] = rms_of(totals[k] * per_count, a.attributes);
    if (k < count || kVectors > 1) reciprocal = reciprocal && has_reciprocal(totals[k]);
  }
  for (int k = 0; k < kWidth; ++k) {
    const Factor factor = reciprocal ? reciprocal_of(totals[k]) : Factor{static_cast<float>(totals[k]), 0.0f};
    highs[k] = factor.high;
    lows[k] = factor.low;
  }
  Vector high[kVectors];
  Vector low[kVectors];
  for (int k = 0; k < kVectors; ++k) {
    high[k] = load(highs + k * kLanes);
    low[k] = load(lows + k * kLanes);
  }

  for (std::int64_t i = 0; i < a.size; ++i) {
    Vector s = set1(a.scale_by_column ? 0.0f : a.scale[i]);
    Vector b = set1(kHasBias && !a.bias_by_column ? a.bias[i] : 0.0f);
#pragma GCC unroll 8
    for (int k = 0; k < kVectors; ++k) {
      const std::int64_t at = i * a.inner + k * kLanes;
      if (a.scale_by_column) s = load_count(a.scale + column + at, count);
      if (kHasBias && a.bias_by_column) b = load_count(a.bias + column + at, count);
      const Vector v = load_count(x + at, count);
      const Vector result = __builtin_expect(reciprocal, 1)
                                ? finished<T, kMode, kRounding, false>(v, high[k], low[k], s, b)
                                : finished<T, kMode, kRounding, true>(v, high[k], low[k], s, b);
      if (count == kLanes) {
        store(y + at, result);
      } else {
        store_first(y + at, result, count);
      }
    }
  }
}

template <typename T, int kMode, int kRounding>
static void columns_kernel(const ColumnsArgs& a) {
  constexpr int kVectors = 4;
  std::int64_t column = a.begin;
  for (; column + kVectors * kLanes <= a.end; column += kVectors * kLanes) {
    columns_tile<T, kMode, kRounding, kVectors>(a, column, kLanes);
  }
  for (; column < a.end; column += kLanes) {
    columns_tile<T, kMode, kRounding, 1>(a, column, a.end - column < kLanes ? a.end - column : kLanes);
  }
}

}  // namespace

#endif  // RMSNORM_DEPLOY_CPU_ISA_COLUMNS_H_
