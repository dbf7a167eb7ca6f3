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

// exp(-a) for a that is not negative: within 1 ULP where that is a normal number, within 2^-149 below. A NaN stays one.
// a is split into a whole number of ln(2) and a rest of at most half of it, whose exponential is a polynomial (the
// coefficients are Cephes').
INLINE Vector exp_of_minus(Vector a) {
  const Vector v = set1(0) - at_most(set1(104.0f), a);  // the second operand where one is a NaN
  // Floats of this size are whole numbers: the addition rounds, and leaves the number in the last bits.
  const Vector shifted = quick_multiply_add(v, set1(0x1.715476p0f), set1(0x1.8p23f));
  const Vector k = shifted - set1(0x1.8p23f);
  Vector r = quick_multiply_add(k, set1(-0.693359375f), v);  // exact: k and the constant have few digits
  r = quick_multiply_add(k, set1(2.12194440e-4f), r);
  Vector p = quick_multiply_add(set1(1.9875691500e-4f), r, set1(1.3981999507e-3f));
  p = quick_multiply_add(p, r, set1(8.3334519073e-3f));
  p = quick_multiply_add(p, r, set1(4.1665795894e-2f));
  p = quick_multiply_add(p, r, set1(1.6666665459e-1f));
  p = quick_multiply_add(p, r, set1(5.0000001201e-1f));
  p = quick_multiply_add(p, r * r, r) + set1(1);
  // 2^(k + 64) is normal for every k, and what is left is rounded once.
  const Words power = (reinterpret_cast<Words>(shifted) + (127u + 64u)) << 23;
  return p * reinterpret_cast<Vector>(power) * set1(0x1p-64f);
}

// The gate after its activation.
template <bool kSilu>
INLINE Vector activated(Vector z) {
  const Vector zero = set1(0);
  const Vector small = exp_of_minus(z < zero ? zero - z : z);
  Vector numerator = z < zero ? small : set1(1);
  if constexpr (kSilu) numerator = z * numerator;
  return numerator / (set1(1) + small);
}

}  // namespace

#endif  // RMSNORM_DEPLOY_CPU_ISA_ACTIVATION_H_
