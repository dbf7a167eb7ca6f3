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

// exp(-|z|): within 1 ULP where that is a normal number, within 2^-149 below. A NaN stays one. -|z| is split into a
// whole number of ln(2) and a rest of at most half of it, whose exponential is a polynomial: its largest relative error
// is the least that one of this degree has, 2^-28.
INLINE Vector exp_of_minus_magnitude(Vector z) {
  const Vector minus = reinterpret_cast<Vector>(reinterpret_cast<Words>(z) | 0x80000000u);
  const Vector v = at_least(set1(-104.0f), minus);  // the second operand where one is a NaN
  // Floats of this size are whole numbers: the addition rounds, and leaves the number in the last bits.
  const Vector shifted = quick_multiply_add(v, set1(0x1.715476p0f), set1(0x1.8p23f));
  const Vector k = shifted - set1(0x1.8p23f);
  Vector r = quick_multiply_add(k, set1(-0.693359375f), v);  // exact: k and the constant have few digits
  r = quick_multiply_add(k, set1(2.12194440e-4f), r);
  Vector p = quick_multiply_add(set1(0x1.6a5e04p-10f), r, set1(0x1.123ac8p-7f));
  p = quick_multiply_add(p, r, set1(0x1.5558a2p-5f));
  p = quick_multiply_add(p, r, set1(0x1.55549p-3f));
  p = quick_multiply_add(p, r, set1(0x1.fffffcp-2f));
  p = quick_multiply_add(p, r, set1(1));
  p = quick_multiply_add(p, r, set1(1));
#if defined(HAS_POWER)
  return times_power(p, k);
#else
  // 2^(k + 64) is normal for every k, and what is left is rounded once.
  const Words power = (reinterpret_cast<Words>(shifted) + (127u + 64u)) << 23;
  return p * reinterpret_cast<Vector>(power) * set1(0x1p-64f);
#endif
}

// The gate after its activation.
template <bool kSilu>
INLINE Vector activated(Vector z) {
  const Vector zero = set1(0);
  const Vector small = exp_of_minus_magnitude(z);
  const Vector numerator = kSilu ? (z < zero ? z * small : z) : (z < zero ? small : set1(1));
  return numerator / (set1(1) + small);
}

}  // namespace

#endif  // RMSNORM_DEPLOY_CPU_ISA_ACTIVATION_H_
