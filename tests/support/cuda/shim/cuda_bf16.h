// bfloat16 as the device converts it: to nearest, ties to even; every NaN becomes the one with all bits below the sign
// set.
#ifndef RMSNORM_DEPLOY_TESTS_CUDA_BF16_H_
#define RMSNORM_DEPLOY_TESTS_CUDA_BF16_H_

#include "cuda_runtime.h"

struct __nv_bfloat16 {
  std::uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline float __bfloat162float(__nv_bfloat16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof bits);
  return result;
}

inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  if (value != value) return {0x7fff};
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

inline float2 __bfloat1622float2(__nv_bfloat162 pair) { return {__bfloat162float(pair.x), __bfloat162float(pair.y)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
// One rounding: a float holds the product of two values of 16 bits, unless it is subnormal.
inline __nv_bfloat162 __hmul2_rn(__nv_bfloat162 a, __nv_bfloat162 b) {
  const auto product = [](__nv_bfloat16 x, __nv_bfloat16 y) {
    const double exact = static_cast<double>(__bfloat162float(x)) * static_cast<double>(__bfloat162float(y));
    const double magnitude = std::fabs(exact);
    if (!(magnitude < 0x1p-126)) return __float2bfloat16_rn(static_cast<float>(exact));
    const unsigned units = static_cast<unsigned>(std::nearbyint(std::ldexp(magnitude, 133)));
    return __nv_bfloat16{static_cast<std::uint16_t>((std::signbit(exact) ? 0x8000u : 0u) | units)};
  };
  return {product(a.x, b.x), product(a.y, b.y)};
}

#endif  // RMSNORM_DEPLOY_TESTS_CUDA_BF16_H_
