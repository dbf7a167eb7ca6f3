// One value at a time: conversions between the element types and float64, each with a single rounding.
#ifndef RMSNORM_DEPLOY_CPU_SCALAR_H_
#define RMSNORM_DEPLOY_CPU_SCALAR_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "../include/rms_norm.h"

namespace rmsnorm_deploy {

struct Half {
  std::uint16_t bits;
};
struct Bfloat {
  std::uint16_t bits;
};

inline std::uint32_t bits_of(float value) noexcept {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float float_of(std::uint32_t bits) noexcept {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline double widen(double value) noexcept { return value; }
inline double widen(float value) noexcept { return static_cast<double>(value); }
inline double widen(Bfloat value) noexcept { return widen(float_of(static_cast<std::uint32_t>(value.bits) << 16)); }
inline double widen(Half value) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 31u;
  const std::uint32_t fraction = value.bits & 0x3ffu;
  if (exponent == 31) return widen(float_of(sign | 0x7f800000u | (fraction << 13)));
  if (exponent == 0) return std::copysign(static_cast<double>(fraction) * 0x1p-24, value.bits & 0x8000u ? -1.0 : 1.0);
  return widen(float_of(sign | ((exponent + 112) << 23) | (fraction << 13)));
}

// `value` as a float whose last bit is set where something was cut off. Rounding that to a type at least two bits
// narrower gives what rounding `value` itself would.
inline float sticky_float(double value) noexcept {
  const float nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return nearest;
  std::uint32_t bits = bits_of(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;
  return float_of(bits | 1u);
}

inline void narrow(double value, double& result) noexcept { result = value; }
inline void narrow(double value, float& result) noexcept { result = static_cast<float>(value); }
inline void narrow(double value, Bfloat& result) noexcept {
  const std::uint32_t bits = bits_of(sticky_float(value));
  const std::uint32_t rounded = std::isnan(value) ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
  result.bits = static_cast<std::uint16_t>(rounded >> 16);
}
inline void narrow(double value, Half& result) noexcept {
  const std::uint32_t bits = bits_of(sticky_float(value));
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x47800000u) {
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    // Multiples of 2^-24; nearbyint rounds ties to even, as all of this assumes of the processor.
    half = static_cast<std::uint32_t>(std::nearbyint(static_cast<double>(float_of(magnitude)) * 0x1p24));
  } else {
    half = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  result.bits = static_cast<std::uint16_t>(sign | half);
}

// `value` rounded to the element type `type` and widened again.
inline double round_to(double value, std::int32_t type) noexcept {
  switch (type) {
    case RMS_NORM_FLOAT16: {
      Half half;
      narrow(value, half);
      return widen(half);
    }
    case RMS_NORM_BFLOAT16: {
      Bfloat half;
      narrow(value, half);
      return widen(half);
    }
    case RMS_NORM_FLOAT32:
      return static_cast<double>(static_cast<float>(value));
    default:
      return value;
  }
}

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CPU_SCALAR_H_
