// From sums of squares to what rows are multiplied by.
#ifndef RMSNORM_DEPLOY_CPU_ISA_FACTORS_H_
#define RMSNORM_DEPLOY_CPU_ISA_FACTORS_H_

namespace {

// Most rows that are in one step together.
constexpr int kBatch = 16;

// Statistics of this many rows are side by side in one vector of double precision.
constexpr int kSide = kLanes / 2;
static_assert(kBatch % kSide == 0, "a batch is made of whole vectors");

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

// What the rows of a batch are multiplied by or, where `divides`, divided by.
struct Factors {
  float high[kBatch];
  float low[kBatch];
  bool divides[kBatch];
  ALWAYS_INLINE RowFactors all() { return {high, low, divides}; }
};

INLINE void set_factor(Factors& factors, int row, double rms) {
  factors.divides[row] = !has_reciprocal(rms);
  const Factor factor = factors.divides[row] ? Factor{static_cast<float>(rms), 0.0f} : reciprocal_of(rms);
  factors.high[row] = factor.high;
  factors.low[row] = factor.low;
}

// rms_of and reciprocal_of for kSide rows at once, bit for bit: square root and division take as long for a vector as
// for one value.
INLINE void set_factors(Factors& factors, int row, const double* totals, double per_count, const Attributes& a) {
  Doubles mean;
  std::memcpy(&mean, totals, sizeof mean);
  const Doubles rms = rms_of(mean * per_count, a, [](Doubles v) __attribute__((always_inline)) {
    double values[kSide];
    std::memcpy(values, &v, sizeof v);
    square_roots(values);
    std::memcpy(&v, values, sizeof v);
    return v;
  });
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
  std::memcpy(factors.high + row, &high, sizeof high);
  std::memcpy(factors.low + row, &low, sizeof low);
  std::memset(factors.divides + row, 0, kSide);
}

}  // namespace

#endif  // RMSNORM_DEPLOY_CPU_ISA_FACTORS_H_
