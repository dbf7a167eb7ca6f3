// The kernels themselves, once for every instruction set. The including file has opened an anonymous namespace and
// defined Vector, kLanes, the element types, and the operations on them; everything here stays in that namespace.

// Chains of float additions are at most this many values long for each lane and accumulator; the sums of longer rows
// are collected in double precision. In a row of one constant all roundings of a chain go the same way: with 8 values
// the rms is at most 2 * 2^-24 off whatever the length, with 64 values 8 * 2^-24.
constexpr std::int64_t kChain = 8;
constexpr int kAccumulators = 8;
constexpr std::int64_t kStride = kAccumulators * kLanes;

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

// Most rows, and most values, that are in one step together; the values have to stay in the first-level cache.
constexpr int kBatch = 16;
constexpr std::int64_t kBatchValues = 4096;
static_assert(kBatchValues <= kScratch, "a batch is widened into the scratch");

// Statistics of this many rows are side by side in one vector of double precision.
constexpr int kSide = kLanes / 2;
static_assert(kBatch % kSide == 0, "a batch is made of whole vectors");

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

// As GCC and Clang define vectors for every target.
using Doubles = double __attribute__((vector_size(sizeof(double) * kSide)));
using Floats = float __attribute__((vector_size(sizeof(float) * kSide)));
using Integers = std::int32_t __attribute__((vector_size(sizeof(std::int32_t) * kSide)));

#if !defined(HAS_TOTALS)
// The sum of each of kSide accumulators.
INLINE void wide_totals(const Wide* from, double* to) {
  for (int i = 0; i < kSide; ++i) to[i] = wide_sum(from[i]);
}

// The square roots of kSide values, in place.
INLINE void square_roots(double* values) {
  for (int i = 0; i < kSide; ++i) values[i] = __builtin_sqrt(values[i]);
}
#endif

INLINE double root_mean_square(double total, double per_count, const Attributes& s) {
  const double mean = total * per_count;
  const double rms = __builtin_sqrt(mean + s.epsilon) + s.epsilon_outside;
  return rms < s.rms_floor ? s.rms_floor : rms;  // false for a NaN, which therefore stays
}

// Between these x * (1 / rms) means the same as x / rms; outside them the reciprocal is subnormal or overflows.
constexpr double kLeastRms = 1e-37;
constexpr double kMostRms = 1e37;
INLINE bool has_reciprocal(double rms) { return !(rms < kLeastRms || rms > kMostRms); }

// What a value is multiplied by, or divided by. A reciprocal rounded to float would be off by as much as a division is;
// its remainder `low` makes the product as good as the division, at the price of one multiply-add.
struct Factor {
  float high;
  float low;
};

INLINE Factor split(double exact) {
  float high = static_cast<float>(exact);
  // Rounded towards zero, and with a remainder above zero, so that infinity times either has the sign it should have.
  if (static_cast<double>(high) > exact) high *= 0x1.fffffep-1f;
  const float low = static_cast<float>(exact - static_cast<double>(high));
  const float least = high * 0x1p-30f;
  return {high, low < least ? least : low};
}

INLINE Factor reciprocal_of(double rms) { return split(1.0 / rms); }

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

// A store, past the caches where kFar: the line is neither read from memory first nor does it displace another.
template <bool kFar, typename T>
INLINE void put(T* p, Vector v) {
  if constexpr (kFar) {
    stream(p, v);
  } else {
    store(p, v);
  }
}

#if !defined(HAS_PUT_ROUNDED)
// The same, and what is then there.
template <bool kFar, typename T>
INLINE Vector put_rounded(T* p, Vector v) {
  v = rounded(v, p);
  put<kFar>(p, v);
  return v;
}
#else
template <bool kFar>
INLINE Vector put_rounded(float* p, Vector v) {
  put<kFar>(p, v);
  return v;
}
// Rounded once; the compiler does not know that rounding a rounded value changes nothing.
template <bool kFar, typename T>
INLINE Vector put_rounded(T* p, Vector v) {
  const Narrow narrowed = narrow(v, p);
  if constexpr (kFar) {
    stream_narrow(p, narrowed);
  } else {
    store_narrow(p, narrowed);
  }
  return widen(narrowed, p);
}
#endif

// One step of the first pass: the value that is normalised, written to `sum` on the way.
template <typename T, int kMode, bool kFar>
INLINE Vector entered(const T* x, const T* residual, T* sum) {
  Vector v = load(x);
  if constexpr (kMode == kResidual || kMode == kResidualBias) {
    v = put_rounded<kFar>(sum, add(v, load(residual)));
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

// The sum of kCount vectors. Recursion, not loops, keeps them in registers.
template <int kCount>
INLINE Vector tree(const Vector* values) {
  if constexpr (kCount == 1) {
    return values[0];
  } else {
    return add(tree<kCount / 2>(values), tree<kCount / 2>(values + kCount / 2));
  }
}

// The sum of kCount * kLanes squares.
template <typename T, int kMode, bool kWiden, bool kFar, int kCount>
INLINE Vector squares(const T* x, const T* residual, T* sum, float* wide) {
  Vector sums[kCount];
#pragma GCC unroll 8
  for (int k = 0; k < kCount; ++k) {
    const std::int64_t at = k * kLanes;
    const Vector v = entered<T, kMode, kFar>(x + at, residual + at, sum + at);
    if constexpr (kWiden) store(wide + at, v);
    sums[k] = multiply(v, v);
  }
  return tree<kCount>(sums);
}

// Sum of squares of the entries [0, measured) of a row, and the sum with the residual and the widened copy of [0,
// size). kWiden: every value also goes to `wide`. kFar: `sum` is written past the caches.
template <typename T, int kMode, bool kWiden, bool kFar>
INLINE Wide first_pass(const T* x, const T* residual, T* sum, float* wide, std::int64_t size, std::int64_t measured) {
  constexpr bool kWhole = kWiden || kMode == kResidual || kMode == kResidualBias;
  constexpr int kHalf = kAccumulators / 2;
  Wide total = wide_zero();
  std::int64_t i = 0;
  while (i + 2 * kStride <= measured) {
    Vector sums[kAccumulators];
#pragma GCC unroll 8
    for (int k = 0; k < kAccumulators; ++k) sums[k] = set1(0);
    std::int64_t end = measured - measured % kStride;
    if (end > i + kChain * kStride) end = i + kChain * kStride;
    for (; i < end; i += kStride) {
#pragma GCC unroll 8
      for (int k = 0; k < kAccumulators; ++k) {
        const std::int64_t at = i + k * kLanes;
        const Vector v = entered<T, kMode, kFar>(x + at, residual + at, sum + at);
        if constexpr (kWiden) store(wide + at, v);
        sums[k] = square_add(v, sums[k]);
      }
    }
    total = wide_add(tree<kAccumulators>(sums), total);
  }
  if (i + kStride <= measured) {
    const Vector all = squares<T, kMode, kWiden, kFar, kAccumulators>(x + i, residual + i, sum + i, wide + i);
    total = wide_add(all, total);
    i += kStride;
  }
  if (i + kHalf * kLanes <= measured) {
    const Vector all = squares<T, kMode, kWiden, kFar, kHalf>(x + i, residual + i, sum + i, wide + i);
    total = wide_add(all, total);
    i += kHalf * kLanes;
  }
  for (; i + kLanes <= measured; i += kLanes) {
    const Vector v = entered<T, kMode, kFar>(x + i, residual + i, sum + i);
    if constexpr (kWiden) store(wide + i, v);
    total = wide_square_add(v, total);
  }
  if (i < measured) {
    const std::int64_t count = measured - i;
    const Vector v = entered_first<T, kMode>(x + i, residual + i, sum + i, count);
    if constexpr (kWiden) store_first(wide + i, v, count);
    total = wide_square_add(v, total);
    i = measured;
  }
  if constexpr (kWhole) {
    // What the mean leaves out is still added and widened.
    for (; i + kLanes <= size; i += kLanes) {
      const Vector v = entered<T, kMode, false>(x + i, residual + i, sum + i);
      if constexpr (kWiden) store(wide + i, v);
    }
    if (i < size) {
      const Vector v = entered_first<T, kMode>(x + i, residual + i, sum + i, size - i);
      if constexpr (kWiden) store_first(wide + i, v, size - i);
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

// What the rows of a batch are multiplied by or, where `divides`, divided by.
struct Factors {
  float high[kBatch];
  float low[kBatch];
  bool divides[kBatch];
};

INLINE void set_factor(Factors& factors, int row, double rms) {
  factors.divides[row] = !has_reciprocal(rms);
  const Factor factor = factors.divides[row] ? Factor{static_cast<float>(rms), 0.0f} : reciprocal_of(rms);
  factors.high[row] = factor.high;
  factors.low[row] = factor.low;
}

// root_mean_square and reciprocal_of for kSide rows at once, bit for bit: square root and division take as long for a
// vector as for one value.
INLINE void set_factors(Factors& factors, int row, double* totals, double per_count, const Attributes& s) {
  Doubles rms;
  __builtin_memcpy(&rms, totals, sizeof rms);
  rms = rms * per_count + s.epsilon;
  __builtin_memcpy(totals, &rms, sizeof rms);
  square_roots(totals);
  __builtin_memcpy(&rms, totals, sizeof rms);
  rms = rms + s.epsilon_outside;
  rms = rms < s.rms_floor ? rms - rms + s.rms_floor : rms;
  const auto beyond = (rms < kLeastRms) | (rms > kMostRms);
  std::int64_t any = 0;
  for (int i = 0; i < kSide; ++i) any |= beyond[i];
  if (__builtin_expect(any != 0, 0)) {
    for (int i = 0; i < kSide; ++i) set_factor(factors, row + i, rms[i]);
    return;
  }
  const Doubles exact = 1.0 / rms;
  Floats high = __builtin_convertvector(exact, Floats);
  const Floats below = high * 0x1.fffffep-1f;
  high = __builtin_convertvector(__builtin_convertvector(high, Doubles) > exact, Integers) ? below : high;
  Floats low = __builtin_convertvector(exact - __builtin_convertvector(high, Doubles), Floats);
  const Floats least = high * 0x1p-30f;
  low = low < least ? least : low;
  __builtin_memcpy(factors.high + row, &high, sizeof high);
  __builtin_memcpy(factors.low + row, &low, sizeof low);
  __builtin_memset(factors.divides + row, 0, kSide);
}

template <typename T, typename S, int kMode, int kRounding, bool kFar>
INLINE void second_pass(const S* x, T* y, const float* scale, const float* bias, const Factors& factors, int row,
                        std::int64_t size, const T* next) {
  const Factor factor = {factors.high[row], factors.low[row]};
  if (__builtin_expect(!factors.divides[row], 1)) {
    second_pass<T, S, kMode, kRounding, false, kFar>(x, y, scale, bias, factor, size, next);
  } else {
    second_pass<T, S, kMode, kRounding, true, false>(x, y, scale, bias, factor, size, next);
  }
}

// kFar: for tensors that no cache holds. They are one row at a time, in whole lines.
// kSize: the length of the rows where it is known to the compiler, else 0; then all of it is measured.
template <typename T, int kMode, int kRounding, bool kFar, std::int64_t kSize>
INLINE void rows(const RowsArgs& a) {
  const std::int64_t size = kSize ? kSize : a.size;
  const std::int64_t measured = kSize ? kSize : a.measured;
  constexpr bool kAdds = kMode == kResidual || kMode == kResidualBias;
  // Measured: to convert float16 again costs less than to store and load floats. A sum that went past the caches is
  // not there to be read.
  constexpr bool kWidens = sizeof(T) == 2 ? kAdds || !kCheapLoads<T> : kFar && kAdds;
  const T* x = static_cast<const T*>(a.x);
  const T* residual = kAdds ? static_cast<const T*>(a.residual) : x;
  T* y = static_cast<T*>(a.y);
  T* sum = kAdds ? static_cast<T*>(a.sum) : y;
  const bool widens = kWidens && size <= kScratch;
  // Some short rows go through each step together.
  std::int64_t most = kBatch;
  if (kFar || size > kBatchValues / 2) {
    most = 1;
  } else if (size > kBatchValues / kBatch) {
    most = kBatchValues / size;
  }
  const double per_count = 1.0 / static_cast<double>(measured);
  alignas(64) float wide[kWidens ? kScratch : 1];
  for (std::int64_t row = 0; row < a.rows;) {
    const std::int64_t batch = a.rows - row < most ? a.rows - row : most;
    Wide sums[kBatch];
    for (std::int64_t i = 0; i < batch; ++i) {
      const std::int64_t at = i * size;
      if (widens) {
        sums[i] = first_pass<T, kMode, kWidens, kFar>(x + at, residual + at, sum + at, wide + at, size, measured);
      } else {
        sums[i] = first_pass<T, kMode, false, false>(x + at, residual + at, sum + at, nullptr, size, measured);
      }
    }
    Factors factors;
    if (batch == 1) {
      set_factor(factors, 0, root_mean_square(wide_sum(sums[0]), per_count, a.attributes));
    } else {
      const int groups = static_cast<int>((batch + kSide - 1) / kSide);
      for (std::int64_t i = batch; i < groups * kSide; ++i) sums[i] = sums[0];
      for (int i = 0; i < groups; ++i) {
        double totals[kSide];
        wide_totals(sums + i * kSide, totals);
        set_factors(factors, i * kSide, totals, per_count, a.attributes);
      }
    }
    const T* next = x + (row + batch < a.rows ? batch * size : 0);
    for (std::int64_t i = 0; i < batch; ++i) {
      const std::int64_t at = i * size;
      const int k = static_cast<int>(i);
      if (widens) {
        second_pass<T, float, kMode, kRounding, kFar>(wide + at, y + at, a.scale, a.bias, factors, k, size, next);
      } else {
        const T* values = (kAdds ? sum : x) + at;
        second_pass<T, T, kMode, kRounding, kFar>(values, y + at, a.scale, a.bias, factors, k, size, next);
      }
    }
    row += batch;
    x += batch * size;
    residual += batch * size;
    y += batch * size;
    sum += batch * size;
  }
  if constexpr (kFar) stream_end();
}

template <typename T, int kMode, int kRounding>
static void rows_kernel(const RowsArgs& a) {
  if (a.far) return rows<T, kMode, kRounding, true, 0>(a);
  if constexpr (kMode == kPlain || kMode == kResidual) {
    // The usual sizes of an attention head.
    if (a.size == 64 && a.measured == 64) return rows<T, kMode, kRounding, false, 64>(a);
    if (a.size == 128 && a.measured == 128) return rows<T, kMode, kRounding, false, 128>(a);
  }
  rows<T, kMode, kRounding, false, 0>(a);
}

// ---------------------------------------------------------------------------------------------------------------------
// Down the columns

template <typename T, int kMode>
INLINE Vector entered_count(const T* x, const T* residual, T* sum, std::int64_t count) {
  return count == kLanes ? entered<T, kMode, false>(x, residual, sum)
                         : entered_first<T, kMode>(x, residual, sum, count);
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
    totals[k] = root_mean_square(totals[k], per_count, a.attributes);
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
