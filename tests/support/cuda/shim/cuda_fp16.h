// float16 as the device converts it: to nearest, ties to even; every NaN becomes the one with all bits below the sign
// set.
#ifndef RMSNORM_DEPLOY_TESTS_CUDA_FP16_H_
#define RMSNORM_DEPLOY_TESTS_CUDA_FP16_H_

#include "cuda_runtime.h"

struct __half {
  std::uint16_t bits;
};
struct alignas(4) __half2 {
  __half x, y;
};

inline float __half2float(__half value) {
  const int exponent = value.bits >> 10 & 31;
  const int fraction = value.bits & 1023;
  float magnitude = exponent ? std::ldexp(1024.0f + fraction, exponent - 25) : std::ldexp(1.0f * fraction, -24);
  if (exponent == 31) magnitude = fraction ? NAN : INFINITY;
  return std::copysign(magnitude, value.bits & 0x8000 ? -1.0f : 1.0f);
}

inline __half __float2half_rn(float value) {
  if (value != value) return {0x7fff};
  const unsigned sign = std::signbit(value) ? 0x8000u : 0u;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude >= 65520.0) return {static_cast<std::uint16_t>(sign | 0x7c00u)};
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  // In units of the last place, of which there are 1024 to 2048 in a normal number.
  const int unit = exponent - 11 < -24 ? -24 : exponent - 11;
  const unsigned units = static_cast<unsigned>(std::nearbyint(std::ldexp(magnitude, -unit)));
  // Adding carries a rounding up to the next power of two into the exponent.
  const unsigned bits = units < 1024 ? units : (static_cast<unsigned>(unit + 24) << 10) + units;
  return {static_cast<std::uint16_t>(sign | bits)};
}

inline float2 __half22float2(__half2 pair) { return {__half2float(pair.x), __half2float(pair.y)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline __half2 __hmul2_rn(__half2 a, __half2 b) {
  return {__float2half_rn(__half2float(a.x) * __half2float(b.x)),
          __float2half_rn(__half2float(a.y) * __half2float(b.y))};
}

#endif  // RMSNORM_DEPLOY_TESTS_CUDA_FP16_H_
