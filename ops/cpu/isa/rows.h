// Rows that lie one behind the other.
#ifndef RMSNORM_DEPLOY_CPU_ISA_ROWS_H_
#define RMSNORM_DEPLOY_CPU_ISA_ROWS_H_

#include <type_traits>

#include "factors.h"
#include "steps.h"

namespace {

// Chains of float additions are at most this many values long for each lane and accumulator; the sums of longer rows
// are collected in double precision. In a row of one constant all roundings of a chain go the same way: with 8 values
// the rms is at most 2 * 2^-24 off whatever the length, with 64 values 8 * 2^-24.
constexpr std::int64_t kChain = 8;
constexpr int kAccumulators = 8;
constexpr std::int64_t kStride = kAccumulators * kLanes;
constexpr std::int64_t kChunk = kChain * kStride;

// Rows up to this length can be widened to float on the way through the first pass, so that the second converts
// nothing. The copy and the scale share the first-level cache with the row. Longer rows are converted again instead.
constexpr std::int64_t kScratch = 4096;

// Whether it costs about one instruction to widen values of T.
template <typename T>
constexpr bool kCheapLoads = false;
template <>
constexpr bool kCheapLoads<float> = true;
#if defined(HAS_HALF_CONVERSION)
template <>
constexpr bool kCheapLoads<Half> = true;
#endif

// Most values that are in one step together; they have to stay in the first-level cache.
constexpr std::int64_t kBatchValues = 4096;
static_assert(kBatchValues <= kScratch, "a batch is widened into the scratch");

// How many rows of this length go through each step together: some of them where they are short.
INLINE std::int64_t rows_together(std::int64_t size) {
  if (size > kBatchValues / 2) return 1;
  return size > kBatchValues / kBatch ? kBatchValues / size : kBatch;
}

// What the rows of a batch are multiplied by, from their sums of squares; `sums` has room for kBatch, and is changed.
INLINE void set_batch(Factors& factors, Wide* sums, std::int64_t batch, double per_count, const Attributes& a) {
  if (batch == 1) return set_factor(factors, 0, rms_of(wide_sum(sums[0]) * per_count, a));
  const int groups = static_cast<int>((batch + kSide - 1) / kSide);
  for (std::int64_t i = batch; i < groups * kSide; ++i) sums[i] = sums[0];
  for (int i = 0; i < groups; ++i) {
    double totals[kSide];
    wide_totals(sums + i * kSide, totals);
    set_factors(factors, i * kSide, totals, per_count, a);
  }
}

// Rows in batches, that go through each step together. `sum` is the sum of squares of a row, by which one it is, and
// which one of its batch; `finish` does the rest for `batch` rows, with what they are multiplied by. `known`: that of
// all rows, so that nothing is summed, or null.
template <typename Sum, typename Finish>
INLINE void in_batches(std::int64_t rows, std::int64_t together, std::int64_t measured, const Attributes& a,
                       const RowFactors& known, Sum&& sum, Finish&& finish) {
  const double per_count = 1.0 / static_cast<double>(measured);
  for (std::int64_t row = 0; row < rows;) {
    const std::int64_t batch = rows - row < together ? rows - row : together;
    if (known.high) {
      finish(row, batch, RowFactors{known.high + row, known.low + row, known.divides + row});
    } else {
      Wide sums[kBatch];
      for (std::int64_t i = 0; i < batch; ++i) sums[i] = sum(row + i, i);
      Factors factors;
      set_batch(factors, sums, batch, per_count, a);
      finish(row, batch, factors.all());
    }
    row += batch;
  }
}

// The sum of kCount vectors. Recursion, not loops, keeps them in registers.
template <int kCount>
INLINE Vector tree(const Vector* values) {
  if constexpr (kCount == 1) {
    return values[0];
  } else {
    return tree<kCount / 2>(values) + tree<kCount / 2>(values + kCount / 2);
  }
}

// What else the first pass does with every value of a row, beside the sum of squares: nothing.
struct NothingElse {
  static constexpr bool kWhole = false;  // whether it is done with the values that the mean leaves out, too
  ALWAYS_INLINE void operator()(Vector, std::int64_t) const {}
  ALWAYS_INLINE void two(Vector, Vector, std::int64_t) const {}          // one behind the other
  ALWAYS_INLINE void first(Vector, std::int64_t, std::int64_t) const {}  // of fewer values than lanes
};

// They are kept as floats.
struct Widening {
  static constexpr bool kWhole = true;
  float* wide;
  ALWAYS_INLINE void operator()(Vector v, std::int64_t at) const { store(wide + at, v); }
  ALWAYS_INLINE void two(Vector a, Vector b, std::int64_t at) const {
    store(wide + at, a);
    store(wide + at + kLanes, b);
  }
  ALWAYS_INLINE void first(Vector v, std::int64_t at, std::int64_t count) const { store_first(wide + at, v, count); }
};
template <bool kWidens>
INLINE auto widening(float* wide) {
  if constexpr (kWidens) {
    return Widening{wide};
  } else {
    return NothingElse{};
  }
}

// The sum of kCount * kLanes squares, from entry `i` of a row on.
template <typename T, int kMode, bool kFar, int kCount, typename Else>
INLINE Vector squares(const T* x, const T* residual, T* sum, std::int64_t i, const Attributes& a, Else&& also) {
  Vector sums[kCount];
#pragma GCC unroll 8
  for (int k = 0; k < kCount; k += 2) {
    const std::int64_t at = i + k * kLanes;
    const std::int64_t next = at + kLanes;
    const Vector v = entered<T, kMode, kFar>(x + at, residual + at, sum + at, a);
    const Vector w = entered<T, kMode, kFar>(x + next, residual + next, sum + next, a);
    also.two(v, w, at);
    sums[k] = v * v;
    sums[k + 1] = w * w;
  }
  return tree<kCount>(sums);
}

// Sum of squares of the entries [0, measured) of a row; the sum with the residual, and what `also` does, of [0, size).
// kFar: `sum` is written past the caches. `total`: of what is in front of these entries in their row, whole chunks.
template <typename T, int kMode, bool kFar, typename Else>
INLINE Wide first_pass(const T* x, const T* residual, T* sum, std::int64_t size, std::int64_t measured,
                       const Attributes& a, Else&& also, Wide total = wide_zero()) {
  constexpr bool kWhole = std::decay_t<Else>::kWhole || kMode == kResidual || kMode == kResidualBias;
  constexpr int kHalf = kAccumulators / 2;
  std::int64_t i = 0;
  while (i + 2 * kStride <= measured) {
    Vector sums[kAccumulators];
#pragma GCC unroll 8
    for (int k = 0; k < kAccumulators; ++k) sums[k] = set1(0);
    std::int64_t end = measured - measured % kStride;
    if (end > i + kChunk) end = i + kChunk;
    for (; i < end; i += kStride) {
#pragma GCC unroll 8
      for (int k = 0; k < kAccumulators; k += 2) {
        const std::int64_t at = i + k * kLanes;
        const std::int64_t next = at + kLanes;
        const Vector v = entered<T, kMode, kFar>(x + at, residual + at, sum + at, a);
        const Vector w = entered<T, kMode, kFar>(x + next, residual + next, sum + next, a);
        also.two(v, w, at);
        sums[k] = square_add(v, sums[k]);
        sums[k + 1] = square_add(w, sums[k + 1]);
      }
    }
    total = wide_add(tree<kAccumulators>(sums), total);
  }
  if (i + kStride <= measured) {
    const Vector all = squares<T, kMode, kFar, kAccumulators>(x, residual, sum, i, a, also);
    total = wide_add(all, total);
    i += kStride;
  }
  if (i + kHalf * kLanes <= measured) {
    const Vector all = squares<T, kMode, kFar, kHalf>(x, residual, sum, i, a, also);
    total = wide_add(all, total);
    i += kHalf * kLanes;
  }
  for (; i + kLanes <= measured; i += kLanes) {
    const Vector v = entered<T, kMode, kFar>(x + i, residual + i, sum + i, a);
    also(v, i);
    total = wide_square_add(v, total);
  }
  if (i < measured) {
    const std::int64_t count = measured - i;
    // To load some lanes costs more than to load all of them and keep some.
    if (i + kLanes <= size) {
      const Vector v = entered<T, kMode, kFar>(x + i, residual + i, sum + i, a);
      also(v, i);
      total = wide_square_add(kept_first(v, count), total);
      i += kLanes;
    } else {
      const Vector v = entered_first<T, kMode>(x + i, residual + i, sum + i, count, a);
      also.first(v, i, count);
      total = wide_square_add(v, total);
      i = measured;
    }
  }
  if constexpr (kWhole) {
    // What the mean leaves out is still added and widened.
    for (; i + kLanes <= size; i += kLanes) {
      const Vector v = entered<T, kMode, false>(x + i, residual + i, sum + i, a);
      also(v, i);
    }
    if (i < size) {
      const Vector v = entered_first<T, kMode>(x + i, residual + i, sum + i, size - i, a);
      also.first(v, i, size - i);
    }
  }
  return total;
}

// y of one row. S is T, or float where the row was widened. kFar: y is written past the caches, and the row at `next`
// is fetched meanwhile.
template <typename T, typename S, int kMode, int kRounding, bool kDivide, bool kFar>
INLINE void second_pass(const S* x, T* y, const float* scale, const float* bias, Factor factor, std::int64_t size,
                        const T* next) {
  constexpr bool kHasBias = kMode == kBias || kMode == kResidualBias;
  constexpr int kUnroll = 4;
  constexpr int kLine = 64 / sizeof(T);
  const Vector high = set1(factor.high);
  const Vector low = set1(factor.low);
  std::int64_t i = 0;
  for (; i + kUnroll * kLanes <= size; i += kUnroll * kLanes) {
#pragma GCC unroll 4
    for (int k = 0; k < kUnroll; ++k) {
      const std::int64_t at = i + k * kLanes;
      if constexpr (kFar) {
        if (k * kLanes % kLine == 0) __builtin_prefetch(next + at);
      }
      const Vector b = kHasBias ? load(bias + at) : set1(0);
      put<kFar>(y + at, finished<T, kMode, kRounding, kDivide>(load(x + at), high, low, load(scale + at), b));
    }
  }
  for (; i + kLanes <= size; i += kLanes) {
    const Vector b = kHasBias ? load(bias + i) : set1(0);
    put<kFar>(y + i, finished<T, kMode, kRounding, kDivide>(load(x + i), high, low, load(scale + i), b));
  }
  if (i < size) {
    const std::int64_t count = size - i;
    const Vector b = kHasBias ? load_first(bias + i, count) : set1(0);
    const Vector s = load_first(scale + i, count);
    store_first(y + i, finished<T, kMode, kRounding, kDivide>(load_first(x + i, count), high, low, s, b), count);
  }
}

// The same where the reciprocal is subnormal or overflows: rare, so one function for all kernels of a type.
template <typename T, typename S, int kMode, int kRounding>
__attribute__((noinline, cold)) static void dividing_pass(const S* x, T* y, const float* scale, const float* bias,
                                                          Factor factor, std::int64_t size) {
  second_pass<T, S, kMode, kRounding, true, false>(x, y, scale, bias, factor, size, nullptr);
}

template <typename T, typename S, int kMode, int kRounding, bool kFar>
INLINE void second_pass(const S* x, T* y, const float* scale, const float* bias, const RowFactors& factors,
                        std::int64_t row, std::int64_t size, const T* next) {
  const Factor factor = {factors.high[row], factors.low[row]};
  if (__builtin_expect(!factors.divides[row], 1)) {
    second_pass<T, S, kMode, kRounding, false, kFar>(x, y, scale, bias, factor, size, next);
  } else {
    dividing_pass<T, S, kMode, kRounding>(x, y, scale, bias, factor, size);
  }
}

// kFar: for tensors that no cache holds. They are one row at a time, in whole lines.
// kSize, kMeasured: the length of the rows, and how much of it is measured, where the compiler knows them; else 0.
template <typename T, int kMode, int kRounding, bool kFar, std::int64_t kSize, std::int64_t kMeasured = kSize>
INLINE void rows(const RowsArgs& a) {
  const std::int64_t size = kSize ? kSize : a.size;
  const std::int64_t measured = kMeasured ? kMeasured : a.measured;
  constexpr bool kAdds = kMode == kResidual || kMode == kResidualBias;
  // Measured: to convert float16 again costs less than to store and load floats. A sum that went past the caches is
  // not there to be read.
  constexpr bool kWidens = sizeof(T) == 2 ? kAdds || !kCheapLoads<T> : kFar && kAdds;
  const T* const x = static_cast<const T*>(a.x);
  const T* const residual = kAdds ? static_cast<const T*>(a.residual) : x;
  T* const y = static_cast<T*>(a.y);
  T* const sum = kAdds ? static_cast<T*>(a.sum) : y;
  const bool widens = kWidens && size <= kScratch;
  alignas(64) float wide[kWidens ? kScratch : 1];
  in_batches(
      a.rows, kFar ? 1 : rows_together(size), measured, a.attributes, {},
      [&](std::int64_t row, std::int64_t i) __attribute__((always_inline)) {
        const std::int64_t at = row * size;
        if (widens) {
          return first_pass<T, kMode, kFar>(x + at, residual + at, sum + at, size, measured, a.attributes,
                                            widening<kWidens>(wide + i * size));
        }
        return first_pass<T, kMode, false>(x + at, residual + at, sum + at, size, measured, a.attributes,
                                           NothingElse{});
      },
      [&](std::int64_t row, std::int64_t batch, const RowFactors& factors) __attribute__((always_inline)) {
        for (std::int64_t i = 0; i < batch; ++i, ++row) {
          const std::int64_t at = row * size;
          const T* const next = x + (row + 1 < a.rows ? at + size : at);
          if (widens) {
            second_pass<T, float, kMode, kRounding, kFar>(wide + i * size, y + at, a.scale, a.bias, factors, i, size,
                                                          next);
          } else {
            const T* const values = (kAdds ? sum : x) + at;
            second_pass<T, T, kMode, kRounding, kFar>(values, y + at, a.scale, a.bias, factors, i, size, next);
          }
        }
      });
  if constexpr (kFar) stream_end();
}

template <typename T, int kMode, int kRounding>
static void rows_kernel(const RowsArgs& a) {
#if !defined(FEW_KERNELS)
  if (a.far) return rows<T, kMode, kRounding, true, 0>(a);
  if constexpr (kMode == kPlain || kMode == kResidual) {
    // The usual sizes of an attention head.
    if (a.size == 64 && a.measured == 64) return rows<T, kMode, kRounding, false, 64>(a);
    if (a.size == 128 && a.measured == 128) return rows<T, kMode, kRounding, false, 128>(a);
  }
  if constexpr (kMode == kPlain) {
    // The same, with a sixteenth or a quarter of them measured: rows of any length would cost more than that saves.
    if (a.size == 64 && a.measured == 4) return rows<T, kMode, kRounding, false, 64, 4>(a);
    if (a.size == 64 && a.measured == 16) return rows<T, kMode, kRounding, false, 64, 16>(a);
    if (a.size == 128 && a.measured == 8) return rows<T, kMode, kRounding, false, 128, 8>(a);
    if (a.size == 128 && a.measured == 32) return rows<T, kMode, kRounding, false, 128, 32>(a);
  }
#endif
  rows<T, kMode, kRounding, false, 0>(a);
}

}  // namespace

#endif  // RMSNORM_DEPLOY_CPU_ISA_ROWS_H_
