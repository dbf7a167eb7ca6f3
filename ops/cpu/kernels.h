// The kernels themselves, once for every instruction set. The including file has opened an anonymous namespace and
// defined Vector, kLanes, the element types, and the operations on them; everything here stays in that namespace.

// Chains of float additions are at most this many values long for each lane and accumulator; the sums of longer rows
// are collected in double precision. With the independent chains that keeps the mean to a fraction of a float's last
// place whatever the length.
constexpr std::int64_t kChain = 64;
constexpr int kAccumulators = 8;
constexpr std::int64_t kStride = kAccumulators * kLanes;

// 16-bit rows up to this length are widened once, into 32 KB on the stack, not once for each of the two passes.
constexpr std::int64_t kScratch = 8192;

// Most rows, and most values, that are in one step together; the values have to stay in the first-level cache.
constexpr int kBatch = 4;
constexpr std::int64_t kBatchValues = 4096;
static_assert(kBatchValues <= kScratch, "a batch is widened into the scratch");

#if !defined(HAS_MASKS)
// The first `count` lanes, fewer than all; the others are read as zeros and left unwritten.
template <typename T>
INLINE Vector load_first(const T* p, std::int64_t count) {
  T memory[kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) memory[i] = p[i];
  return load(memory);
}

template <typename T>
INLINE void store_first(T* p, Vector v, std::int64_t count) {
  T memory[kLanes];
  store(memory, v);
  for (std::int64_t i = 0; i < count; ++i) p[i] = memory[i];
}
#endif

INLINE double root_mean_square(double total, double per_count, const Statistic& s) {
  const double mean = total * per_count;
  const double rms = __builtin_sqrt(mean + s.epsilon) + s.epsilon_outside;
  return rms < s.rms_floor ? s.rms_floor : rms;  // false for a NaN, which therefore stays
}

// Whether x * (1 / rms) means the same as x / rms: not where the reciprocal is subnormal or overflows.
INLINE bool has_reciprocal(double rms) { return !(rms < 1e-37 || (rms > 1e37 && !__builtin_isinf(rms))); }

// What a value is multiplied by, or divided by. A reciprocal rounded to float would be off by as much as a division is;
// its remainder `low` makes the product as good as the division, at the price of one multiply-add.
struct Factor {
  float high;
  float low;
};

INLINE Factor reciprocal_of(double rms) {
  const double exact = 1.0 / rms;
  float high = static_cast<float>(exact);
  // Rounded towards zero, and with a remainder above zero, so that infinity times either has the sign it should have.
  if (static_cast<double>(high) > exact) high *= 0x1.fffffep-1f;
  const float low = static_cast<float>(exact - static_cast<double>(high));
  const float least = high * 0x1p-30f;
  return {high, low < least ? least : low};
}

// The value after the scale, and the bias if there is one, in the rounding order asked for.
template <typename T, int kMode, int kRounding, bool kDivide>
INLINE Vector finished(Vector x, Vector high, Vector low, Vector scale, Vector bias) {
  const T* type = nullptr;
  Vector v;
  if constexpr (kDivide) {
    v = divide(x, high);
  } else if constexpr (sizeof(T) == 2) {
    v = multiply(x, high);  // exact enough for a result of 16 bits
  } else {
    v = multiply_add(x, high, multiply(x, low));
  }
  if constexpr (kRounding == kRoundTwice) v = rounded(v, type);
  v = multiply(v, scale);
  if constexpr (kMode == kBias || kMode == kResidualBias) {
    if constexpr (kRounding == kRoundTwice) v = rounded(v, type);
    v = add(v, bias);
  }
  return v;  // the store rounds to T
}

// One step of the first pass: the value that is normalised, written to `sum` on the way.
template <typename T, int kMode>
INLINE Vector entered(const T* x, const T* residual, T* sum) {
  Vector v = load(x);
  if constexpr (kMode == kResidual || kMode == kResidualBias) {
    v = rounded(add(v, load(residual)), x);
    store(sum, v);
  }
  return v;
}

template <typename T, int kMode>
INLINE Vector entered_first(const T* x, const T* residual, T* sum, std::int64_t count) {
  Vector v = load_first(x, count);
  if constexpr (kMode == kResidual || kMode == kResidualBias) {
    v = rounded(add(v, load_first(residual, count)), x);
    store_first(sum, v, count);
  }
  return v;
}

// Sum of squares of the entries [0, measured) of a row, and the sum with the residual and the widened copy of [0,
// size). kWiden: every value also goes to `wide`. kOffset of residual and sum is that of x.
template <typename T, int kMode, bool kWiden>
INLINE double first_pass(const T* x, const T* residual, T* sum, float* wide, std::int64_t size, std::int64_t measured) {
  constexpr bool kWhole = kWiden || kMode == kResidual || kMode == kResidualBias;
  double total = 0;
  std::int64_t i = 0;
  while (i + kStride <= measured) {
    Vector sums[kAccumulators];
    for (int k = 0; k < kAccumulators; ++k) sums[k] = set1(0);
    std::int64_t end = measured - measured % kStride;
    if (end > i + kChain * kStride) end = i + kChain * kStride;
    for (; i < end; i += kStride) {
#pragma GCC unroll 8
      for (int k = 0; k < kAccumulators; ++k) {
        const std::int64_t at = i + k * kLanes;
        const Vector v = entered<T, kMode>(x + at, residual + at, sum + at);
        if constexpr (kWiden) store(wide + at, v);
        sums[k] = square_add(v, sums[k]);
      }
    }
#pragma GCC unroll 3
    for (int width = kAccumulators / 2; width > 0; width /= 2) {
      for (int k = 0; k < width; ++k) sums[k] = add(sums[k], sums[k + width]);
    }
    total += wide_sum(wide_add(sums[0], wide_zero()));
  }
  if (i < measured) {
    // With few values to a lane, float roundings would not average out.
    Wide rest = wide_zero();
    for (; i + kLanes <= measured; i += kLanes) {
      const Vector v = entered<T, kMode>(x + i, residual + i, sum + i);
      if constexpr (kWiden) store(wide + i, v);
      rest = wide_square_add(v, rest);
    }
    if (i < measured) {
      const std::int64_t count = measured - i;
      const Vector v = entered_first<T, kMode>(x + i, residual + i, sum + i, count);
      if constexpr (kWiden) store_first(wide + i, v, count);
      rest = wide_square_add(v, rest);
      i = measured;
    }
    total += wide_sum(rest);
  }
  if constexpr (kWhole) {
    // What the mean leaves out is still added and widened.
    for (; i < size; i += kLanes) {
      const std::int64_t count = size - i < kLanes ? size - i : kLanes;
      const Vector v = entered_first<T, kMode>(x + i, residual + i, sum + i, count);
      if constexpr (kWiden) store_first(wide + i, v, count);
    }
  }
  return total;
}

// y of one row. S is T, or float where the row was widened.
template <typename T, typename S, int kMode, int kRounding, bool kDivide>
INLINE void second_pass(const S* x, T* y, const float* scale, const float* bias, Factor factor, std::int64_t size) {
  constexpr bool kHasBias = kMode == kBias || kMode == kResidualBias;
  constexpr int kUnroll = 4;
  const Vector high = set1(factor.high);
  const Vector low = set1(factor.low);
  std::int64_t i = 0;
  for (; i + kUnroll * kLanes <= size; i += kUnroll * kLanes) {
#pragma GCC unroll 4
    for (int k = 0; k < kUnroll; ++k) {
      const std::int64_t at = i + k * kLanes;
      const Vector b = kHasBias ? load(bias + at) : set1(0);
      store(y + at, finished<T, kMode, kRounding, kDivide>(load(x + at), high, low, load(scale + at), b));
    }
  }
  for (; i + kLanes <= size; i += kLanes) {
    const Vector b = kHasBias ? load(bias + i) : set1(0);
    store(y + i, finished<T, kMode, kRounding, kDivide>(load(x + i), high, low, load(scale + i), b));
  }
  if (i < size) {
    const std::int64_t count = size - i;
    const Vector b = kHasBias ? load_first(bias + i, count) : set1(0);
    const Vector s = load_first(scale + i, count);
    store_first(y + i, finished<T, kMode, kRounding, kDivide>(load_first(x + i, count), high, low, s, b), count);
  }
}

template <typename T, typename S, int kMode, int kRounding>
INLINE void second_pass(const S* x, T* y, const float* scale, const float* bias, double rms, std::int64_t size) {
  if (__builtin_expect(has_reciprocal(rms), 1)) {
    second_pass<T, S, kMode, kRounding, false>(x, y, scale, bias, reciprocal_of(rms), size);
  } else {
    second_pass<T, S, kMode, kRounding, true>(x, y, scale, bias, {static_cast<float>(rms), 0.0f}, size);
  }
}

template <typename T, int kMode, int kRounding>
static void rows_kernel(const RowsArgs& a) {
  constexpr bool kAdds = kMode == kResidual || kMode == kResidualBias;
  constexpr bool kNarrow = sizeof(T) == 2;
  const T* x = static_cast<const T*>(a.x);
  const T* residual = kAdds ? static_cast<const T*>(a.residual) : x;
  T* y = static_cast<T*>(a.y);
  T* sum = kAdds ? static_cast<T*>(a.sum) : y;
  const bool widens = kNarrow && a.size <= kScratch;
  // A few short rows go through each step together: then the long latencies of square root and division overlap.
  std::int64_t most = kBatchValues / (a.size < 1 ? 1 : a.size);
  most = most < 1 ? 1 : (most > kBatch ? kBatch : most);
  const double per_count = 1.0 / static_cast<double>(a.measured);
  alignas(64) float wide[kNarrow ? kScratch : 1];
  for (std::int64_t row = 0; row < a.rows;) {
    const std::int64_t batch = a.rows - row < most ? a.rows - row : most;
    double rms[kBatch] = {};
    for (std::int64_t i = 0; i < batch; ++i) {
      const std::int64_t at = i * a.size;
      if (widens) {
        rms[i] = first_pass<T, kMode, kNarrow>(x + at, residual + at, sum + at, wide + at, a.size, a.measured);
      } else {
        rms[i] = first_pass<T, kMode, false>(x + at, residual + at, sum + at, nullptr, a.size, a.measured);
      }
    }
    for (int i = 0; i < kBatch; ++i) rms[i] = root_mean_square(rms[i], per_count, a.statistic);
    for (std::int64_t i = 0; i < batch; ++i) {
      const std::int64_t at = i * a.size;
      if (widens) {
        second_pass<T, float, kMode, kRounding>(wide + at, y + at, a.scale, a.bias, rms[i], a.size);
      } else {
        second_pass<T, T, kMode, kRounding>((kAdds ? sum : x) + at, y + at, a.scale, a.bias, rms[i], a.size);
      }
    }
    row += batch;
    x += batch * a.size;
    residual += batch * a.size;
    y += batch * a.size;
    sum += batch * a.size;
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Down the columns

template <typename T, int kMode>
INLINE Vector entered_count(const T* x, const T* residual, T* sum, std::int64_t count) {
  return count == kLanes ? entered<T, kMode>(x, residual, sum) : entered_first<T, kMode>(x, residual, sum, count);
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
        sums[k] = square_add(entered_count<T, kMode>(x + at, residual + at, sum + at, count), sums[k]);
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
        entered_count<T, kMode>(x + at, residual + at, sum + at, count);
      }
    }
    x = sum;
  }

  const double per_count = 1.0 / static_cast<double>(a.measured);
  bool reciprocal = true;
  float highs[kWidth];
  float lows[kWidth];
  for (int k = 0; k < kWidth; ++k) {
    totals[k] = root_mean_square(totals[k], per_count, a.statistic);
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

// ---------------------------------------------------------------------------------------------------------------------
// Scale and bias

// `count` values of T, rounded to R and widened.
template <typename T, typename R>
static void weights_kernel(const void* from, float* to, std::int64_t count) {
  const T* values = static_cast<const T*>(from);
  const R* type = nullptr;
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, rounded(load(values + i), type));
  if (i < count) store_first(to + i, rounded(load_first(values + i, count - i), type), count - i);
}

}  // namespace

#define WEIGHTS(T) {weights_kernel<T, float>, weights_kernel<T, Half>, weights_kernel<T, Bfloat>}

// A float32 value is never rounded before the end, so both orders are one kernel.
#define MODES(KERNEL, T, TWICE)                                                \
  {                                                                            \
      {KERNEL<T, kPlain, kRoundOnce>, KERNEL<T, kPlain, TWICE>},               \
      {KERNEL<T, kResidual, kRoundOnce>, KERNEL<T, kResidual, TWICE>},         \
      {KERNEL<T, kBias, kRoundOnce>, KERNEL<T, kBias, TWICE>},                 \
      {KERNEL<T, kResidualBias, kRoundOnce>, KERNEL<T, kResidualBias, TWICE>}, \
  }

namespace rmsnorm_deploy {

const KernelTable KERNEL_TABLE = {
    KERNEL_NAME,
    {MODES(rows_kernel, float, kRoundOnce), MODES(rows_kernel, Half, kRoundTwice),
     MODES(rows_kernel, Bfloat, kRoundTwice)},
    {MODES(columns_kernel, float, kRoundOnce), MODES(columns_kernel, Half, kRoundTwice),
     MODES(columns_kernel, Bfloat, kRoundTwice)},
    {WEIGHTS(float), WEIGHTS(Half), WEIGHTS(Bfloat)},
};

}  // namespace rmsnorm_deploy
