// The formula of the contract: how x and residual are combined, and from squares to the factor that a row is multiplied
// by.
#ifndef RMSNORM_DEPLOY_CUDA_STATISTIC_CUH_
#define RMSNORM_DEPLOY_CUDA_STATISTIC_CUH_

#include <algorithm>
#include <cmath>

#include "args.h"
#include "device.h"

namespace rmsnorm_deploy {
namespace cuda {

// What the kernels are handed; runs on the host.
inline Statistic statistic_of(const rms_norm_params& p, std::int64_t measured) {
  Statistic s = {};
#define SET(name, neutral, since) s.name = p.name;
  RMS_NORM_FLOAT_ATTRIBUTES(SET)
#undef SET
  s.count = static_cast<double>(measured);
  s.count_high = static_cast<float>(1.0 / s.count);
  s.count_low = static_cast<float>(1.0 / s.count - static_cast<double>(s.count_high));
  s.largest_term = std::max({std::sqrt(p.epsilon), p.epsilon_outside, p.rms_floor});
  s.plain = p.epsilon_outside == 0 && p.rms_floor == 0;
  s.ordinary = p.epsilon_outside < 0x1p60f && p.rms_floor < 0x1p60f;
  return s;
}

// x with its residual, before that is rounded to T. No attribute has a part in it so far.
template <typename C>
__device__ inline C combined(C x, C residual, const Statistic&) {
  return x + residual;
}

// A running sum. Results of 16 bits need no more than float32 accumulation. For wider ones the sum carries what each
// addition lost (Knuth's TwoSum), so that the mean is good to the last place however long the row is. It takes no
// float64 arithmetic, which many cards have at 1/64 of the float32 rate.
template <typename C, bool kCompensated>
struct Sum;

template <typename C>
struct Sum<C, false> {
  C value = 0;
  __device__ void add(C term) { value += term; }
  __device__ void add(const Sum& other) { value += other.value; }
  __device__ Sum shuffled(unsigned lanes, int offset) const {
    Sum result;
    result.value = __shfl_xor_sync(lanes, value, offset);
    return result;
  }
};

template <typename C>
struct Sum<C, true> {
  C value = 0;
  C lost = 0;
  __device__ void add(C term) {
    const C total = value + term;
    const C added = total - value;
    lost += (value - (total - added)) + (term - added);
    value = total;
  }
  __device__ void add(const Sum& other) {
    // Symmetric in both operands, so that all lanes of a butterfly end with the same bits.
    const C both = lost + other.lost;
    const C total = value + other.value;
    const C added = total - value;
    const C kept = total - added;
    lost = both + ((value - kept) + (other.value - added));
    value = total;
  }
  __device__ Sum shuffled(unsigned lanes, int offset) const {
    Sum result;
    result.value = __shfl_xor_sync(lanes, value, offset);
    result.lost = __shfl_xor_sync(lanes, lost, offset);
    return result;
  }
  __device__ C total() const { return value + lost; }
};

template <typename T>
using SumOf = Sum<float, sizeof(T) == 4>;

// x / rms is (x * shift) * high + (x * shift) * low. `shift` is a power of two, 1 for all but absurd rows. `low` is
// positive where `high` is, so that infinity stays infinity; results of 16 bits do without it.
struct Factor {
  float shift;
  float high;
  float low;
};

constexpr float kLeastMean = 0x1p-80f;
constexpr float kLargestMean = 0x1p100f;

// The mean square plus epsilon, as a float and what it lost.
struct Mean {
  float value;
  float lost;
};

__device__ inline Mean mean_of(const Sum<float, false>& sum, const Statistic& s) {
  return {fmaf(sum.value, s.count_high, s.epsilon), 0.0f};
}
__device__ inline Mean mean_of(const Sum<float, true>& sum, const Statistic& s) {
  const float product = sum.value * s.count_high;
  float rest = fmaf(sum.value, s.count_high, -product);
  rest = fmaf(sum.value, s.count_low, rest);
  rest = fmaf(sum.lost, s.count_high, rest);
  Sum<float, true> mean;
  mean.value = product;
  mean.lost = rest;
  mean.add(s.epsilon);
  return {mean.value, mean.lost};
}

// Whether float32 arithmetic computes this mean correctly. Below, squares may have been lost to underflow; above, their
// sum may have overflowed where their mean has not; and a NaN or an infinity is neither below nor above.
__device__ inline bool is_ordinary(const Mean& mean, const Statistic& s) {
  return s.ordinary && mean.value > kLeastMean && mean.value < kLargestMean;
}

// One divided by a value, to about twice the precision of a float: an estimate, with one Newton step whose residual is
// exact. An estimate is taken so low that the residual is positive.
struct Reciprocal {
  float high;
  float low;
};
constexpr float kLow = 1.0f - 0x1p-21f;

__device__ inline Reciprocal reciprocal_of(float value, float lost) {
  const float high = __fdividef(1.0f, value) * kLow;
  const float residual = fmaf(-value, high, 1.0f) - lost * high;
  return {high, high * residual};
}

// 1 / max(sqrt(mean) + epsilon_outside, rms_floor).
__device__ inline Reciprocal reciprocal_of(const Mean& mean, const Statistic& s) {
  const float high = mean.value > 0.0f ? inverse_root(mean.value) * kLow : 0.0f;
  const float square = high * high;
  const float square_lost = fmaf(high, high, -square);
  const float product = mean.value * square;
  const float product_lost = fmaf(mean.value, square, -product);
  const float residual = ((1.0f - product) - product_lost) - fmaf(mean.value, square_lost, mean.lost * square);
  const float low = 0.5f * high * residual;
  if (s.plain) return {high, low};

  // sqrt(mean) is mean / sqrt(mean).
  Sum<float, true> rms;
  rms.value = mean.value * high;
  rms.lost = fmaf(mean.value, high, -rms.value) + fmaf(mean.value, low, mean.lost * high);
  rms.add(s.epsilon_outside);
  if (rms.value < s.rms_floor) {
    rms.value = s.rms_floor;
    rms.lost = 0.0f;
  }
  return reciprocal_of(rms.value, rms.lost);
}

__device__ inline Factor factor_of(const Reciprocal& r, const Sum<float, true>&) { return {1.0f, r.high, r.low}; }
// Rounded to a float it is enough for results of 16 bits; less would not be, as exact ties are frequent among them.
__device__ inline Factor factor_of(const Reciprocal& r, const Sum<float, false>&) {
  return {1.0f, r.high + r.low, 0.0f};
}
template <typename S>
__device__ inline Factor factor_of(const Mean& mean, const Statistic& s, const S& sum) {
  return factor_of(reciprocal_of(mean, s), sum);
}

// A row that is not ordinary is done again with everything multiplied by a power of two that brings the largest of its
// values and terms near 1.

// That power, for a row whose largest measured magnitude is `most`.
__device__ inline float scaling(float most, const Statistic& s) {
  const float largest = fmaxf(most, s.largest_term);
  unsigned bits;
  memcpy(&bits, &largest, sizeof bits);
  const int exponent = 254 - static_cast<int>(bits >> 23 & 255u);
  bits = static_cast<unsigned>(exponent < 1 ? 1 : exponent > 253 ? 253 : exponent) << 23;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

// `sum` is the one of the row as it is, `scaled` the one with its values multiplied by `shift`.
template <typename S>
__device__ inline Factor rescued_factor(const S& sum, const S& scaled, float most, float shift, const Statistic& s) {
  if (sum.value != sum.value) return {1.0f, sum.value, sum.value};  // there is a NaN
  if (isinf(most * most)) return {1.0f, 0.0f, 0.0f};                // a square is infinite, and so is the rms
  if (most == 0.0f && s.largest_term == 0.0f) return {1.0f, INFINITY, INFINITY};
  Statistic there = s;
  there.epsilon = s.epsilon * shift * shift;
  there.epsilon_outside = s.epsilon_outside * shift;
  there.rms_floor = s.rms_floor * shift;
  Mean mean = mean_of(scaled, there);
  if (mean.value < kLeastMean) mean = {0.0f, 0.0f};  // one of the other terms is near 1
  Factor result = factor_of(mean, there, scaled);
  result.shift = shift;
  return result;
}

// The normalised value.
template <typename T, bool kOrdinary = false>
__device__ inline float normalised(float x, const Factor& f) {
  const float shifted = kOrdinary ? x : x * f.shift;  // of an ordinary row the shift is 1
  return sizeof(T) == 2 ? shifted * f.high : fmaf(shifted, f.high, shifted * f.low);
}

// What float64 arithmetic makes of a sum of squares.
__device__ inline double rms_of(double total, const Statistic& s) {
  const double rms = sqrt(total / s.count + static_cast<double>(s.epsilon)) + static_cast<double>(s.epsilon_outside);
  const double floor = s.rms_floor;
  return rms < floor ? floor : rms;  // false for a NaN, which therefore stays
}

}  // namespace cuda
}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CUDA_STATISTIC_CUH_
