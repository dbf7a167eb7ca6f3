// What a gate makes of values: its activation, and where it multiplies.
#ifndef RMSNORM_DEPLOY_CUDA_GATE_CUH_
#define RMSNORM_DEPLOY_CUDA_GATE_CUH_

#include "../include/rms_norm_gated.h"
#include "kernels.h"
#include "weights.cuh"

namespace rmsnorm_deploy {
namespace cuda {

// exp(-a) for a that is not negative: within 1 ULP where that is a normal number, within 2^-149 below. A NaN stays one.
// A whole number of ln(2) and a rest, whose exponential is a polynomial (the coefficients are Cephes'): the GPU's own
// estimate loses digits with every bit of a.
__device__ inline float exp_of_minus(float a) {
  const float v = a > 104.0f ? -104.0f : -a;
  // Floats of this size are whole numbers: the addition rounds, and leaves the number in the last bits.
  const float shifted = fmaf(v, 0x1.715476p0f, 0x1.8p23f);
  const float k = shifted - 0x1.8p23f;
  float r = fmaf(k, -0.693359375f, v);
  r = fmaf(k, 2.12194440e-4f, r);
  float p = fmaf(1.9875691500e-4f, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  p = fmaf(p, r * r, r) + 1.0f;
  // 2^(k + 64) is normal for every k, and what is left is rounded once.
  unsigned bits;
  memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + (127u + 64u)) << 23;
  float power;
  memcpy(&power, &bits, sizeof power);
  return p * power * 0x1p-64f;
}
__device__ inline double exp_of_minus(double a) { return exp(-a); }

// 1 / d for d from 1 to 2: an estimate and one Newton step.
__device__ inline float inverse(float d) {
  const float estimate = __fdividef(1.0f, d);
  return fmaf(estimate, fmaf(-d, estimate, 1.0f), estimate);
}
__device__ inline double inverse(double d) { return 1.0 / d; }

// The gate after its activation. The smaller of the two exponentials does not overflow.
template <typename C>
__device__ inline C activated(C z, bool silu) {
  const C small = exp_of_minus(z < C(0) ? -z : z);
  const C numerator = z < C(0) ? small : C(1);
  return (silu ? z * numerator : numerator) * inverse(C(1) + small);
}

// One value of a gate, wherever it is. y may be written over it, so that it does not go through the read-only path.
template <typename T, typename C>
__device__ inline C gate_at(const Gate& gate, std::int64_t at) {
  const C z = gate.wide ? static_cast<C>(static_cast<const float*>(gate.data)[at])
                        : static_cast<C>(widen(static_cast<const T*>(gate.data)[at]));
  return activated(z, gate.silu);
}

}  // namespace cuda
}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CUDA_GATE_CUH_
