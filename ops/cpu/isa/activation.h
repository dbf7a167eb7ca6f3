// Sigmoid and SiLU of a vector.
#ifndef RMSNORM_DEPLOY_CPU_ISA_ACTIVATION_H_
#define RMSNORM_DEPLOY_CPU_ISA_ACTIVATION_H_

namespace {

// a * b + c with one rounding where that costs one instruction, else with two.
INLINE Vector quick_multiply_add(Vector a, Vector b, Vector c) {
#if defined(__FP_FAST_FMAF)
  return multiply_add(a, b, c);
#else
  return a * b + c;
#endif
}

// The most of |z| for which both exp(z) and exp(-z) are normal floats. Each lane of what is not `moderate` has bits
// that are more than these, so that a NaN is not either.
constexpr float kModerate = 87.0f;
INLINE Words magnitude_bits(Vector z) { return reinterpret_cast<Words>(z) & 0x7fffffffu; }
INLINE Words moderate_bits() { return reinterpret_cast<Words>(set1(kModerate)); }

#if !defined(HAS_ALL_AT_MOST)
INLINE bool all_at_most(Words words, Words bound) {
  const auto beyond = words > bound;
  bool any = false;
  for (int i = 0; i < kLanes; ++i) any |= beyond[i] != 0;
  return !any;
}
#endif

// exp(-a) = 2^-k exp(-r), where k is the whole number nearest to a / ln(2): a power that is still to be made of
// `shifted`, a float of 1.5 * 2^23 - k, whose last bits that is; and the result, a polynomial. The largest relative
// error of each is the least that one of its degree has: 2^-28, or 2^-18 where the end has 16 bits.
template <bool kCoarse>
INLINE Vector exp_of_rest(Vector a, Vector* shifted) {
  constexpr float kPerLn2 = 0x1.715476p0f;
  *shifted = quick_multiply_add(a, set1(-kPerLn2), set1(0x1.8p23f));  // the addition rounds
  const Vector k = *shifted - set1(0x1.8p23f);                        // minus the number
  if constexpr (kCoarse) {
    const Vector r = quick_multiply_add(a, set1(kPerLn2), k);
    Vector p = quick_multiply_add(set1(0x1.3997acp-7f), r, set1(-0x1.ca1498p-5f));
    p = quick_multiply_add(p, r, set1(0x1.ec06dcp-3f));
    p = quick_multiply_add(p, r, set1(-0x1.62e0dcp-1f));
    return quick_multiply_add(p, r, set1(0x1.ffffe8p-1f));
  }
  Vector r = quick_multiply_add(k, set1(0.693359375f), a);  // exact: k and the constant have few digits
  r = quick_multiply_add(k, set1(-2.12194440e-4f), r);
  Vector p = quick_multiply_add(set1(0x1.6a5e04p-10f), r, set1(-0x1.123ac8p-7f));
  p = quick_multiply_add(p, r, set1(0x1.5558a2p-5f));
  p = quick_multiply_add(p, r, set1(-0x1.55549p-3f));
  p = quick_multiply_add(p, r, set1(0x1.fffffcp-2f));
  p = quick_multiply_add(p, r, set1(-1));
  return quick_multiply_add(p, r, set1(1));
}

// The gate after its activation, where all of it is moderate. The exponential is within 1 ULP, if it is not coarse: the
// power goes to the exponent.
template <bool kSilu, bool kCoarse>
INLINE Vector activated_moderate(Vector z) {
  Vector shifted;
  const Vector p = exp_of_rest<kCoarse>(z, &shifted);
  const Words exponential = reinterpret_cast<Words>(p) + (reinterpret_cast<Words>(shifted) << 23);
  return (kSilu ? z : set1(1)) / (set1(1) + reinterpret_cast<Vector>(exponential));
}

// The same for any other, by exp(-|z|), which is within 1 ULP where that is a normal number, within 2^-149 below. A NaN
// stays one.
template <bool kSilu>
INLINE Vector activated_beyond(Vector z) {
  const Vector zero = set1(0);
  const Vector magnitude = reinterpret_cast<Vector>(magnitude_bits(z));
  Vector shifted;
  const Vector p = exp_of_rest<false>(at_most(set1(104.0f), magnitude), &shifted);  // the second where one is a NaN
  // 2^(64 - k) is normal for every k, and what is left is rounded once.
  const Words power = (reinterpret_cast<Words>(shifted) + (127u + 64u)) << 23;
  const Vector large = p * reinterpret_cast<Vector>(power);
  const Vector small = large * set1(0x1p-64f);
  // z times `small` may be a normal number where that is none; infinity times zero is to be none.
  const Vector product = magnitude < set1(__builtin_inff()) ? z * large * set1(0x1p-64f) : z * small;
  const Vector numerator = kSilu ? (z < zero ? product : z) : (z < zero ? small : set1(1));
  return numerator / (set1(1) + small);
}

// Some vectors at once: the steps of one wait for each other. What a value becomes does not depend on its neighbours.
// kCoarse: near enough where it ends in 16 bits.
template <bool kSilu, bool kCoarse, int kCount>
INLINE void activate(Vector* z) {
  Words most = magnitude_bits(z[0]);
#pragma GCC unroll 4
  for (int k = 1; k < kCount; ++k) {
    const Words bits = magnitude_bits(z[k]);
    most = bits > most ? bits : most;
  }
  if (__builtin_expect(all_at_most(most, moderate_bits()), 1)) {
#pragma GCC unroll 4
    for (int k = 0; k < kCount; ++k) z[k] = activated_moderate<kSilu, kCoarse>(z[k]);
    return;
  }
  for (int k = 0; k < kCount; ++k) {
    const Vector moderate = activated_moderate<kSilu, kCoarse>(z[k]);
    z[k] = magnitude_bits(z[k]) > moderate_bits() ? activated_beyond<kSilu>(z[k]) : moderate;
  }
}

}  // namespace

#endif  // RMSNORM_DEPLOY_CPU_ISA_ACTIVATION_H_
