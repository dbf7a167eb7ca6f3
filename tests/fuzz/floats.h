// Random choices, and the float types by their bits, as the fuzzers of the native code need them.
#ifndef RMSNORM_DEPLOY_TESTS_FUZZ_FLOATS_H_
#define RMSNORM_DEPLOY_TESTS_FUZZ_FLOATS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>

#include "include/rms_norm.h"

namespace {

using Random = std::mt19937_64;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t below(Random& r, std::size_t n) { return static_cast<std::size_t>(r() % n); }
bool chance(Random& r, double p) { return static_cast<double>(r() >> 11) * 0x1p-53 < p; }
template <typename T, std::size_t N>
T any_of(Random& r, const T (&values)[N]) {
  return values[below(r, N)];
}

// ---- the float types, by their bits ---------------------------------------------------------------------------------

struct Type {
  int bytes, mantissa, lowest;  // lowest: exponent of the smallest normal number
  double limit;                 // from here on a number is rounded to infinity
};

Type type_of(std::int32_t number) {
  switch (number) {
    case RMS_NORM_FLOAT16:
      return {2, 10, -14, 65520.0};
    case RMS_NORM_BFLOAT16:
      return {2, 7, -126, 0x1.ffp127};
    case RMS_NORM_FLOAT32:
      return {4, 23, -126, 0x1.ffffffp127};
    default:
      return {8, 52, -1022, kInfinity};
  }
}

double spacing(double value, const Type& t) {
  if (value == 0 || !std::isfinite(value)) return std::ldexp(1.0, t.lowest - t.mantissa);
  return std::ldexp(1.0, std::max(std::ilogb(value), t.lowest) - t.mantissa);
}

double rounded(double value, std::int32_t number) {
  const Type t = type_of(number);
  if (t.bytes == 8 || !std::isfinite(value)) return value;
  if (std::fabs(value) >= t.limit) return std::copysign(kInfinity, value);
  const double unit = spacing(value, t);
  return std::copysign(std::nearbyint(value / unit) * unit, value);
}

double load(const void* base, std::int64_t i, std::int32_t number) {
  const char* const at = static_cast<const char*>(base) + i * type_of(number).bytes;
  if (number == RMS_NORM_FLOAT64) {
    double v;
    std::memcpy(&v, at, 8);
    return v;
  }
  if (number == RMS_NORM_FLOAT32) {
    float v;
    std::memcpy(&v, at, 4);
    return v;
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, 2);
  const int mantissa = number == RMS_NORM_FLOAT16 ? 10 : 7;
  const int exponent_bits = 15 - mantissa;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << mantissa) - 1);
  double v;
  if (exponent == (1 << exponent_bits) - 1) {
    v = fraction ? std::nan("") : kInfinity;
  } else if (exponent == 0) {
    v = std::ldexp(fraction, 1 - bias - mantissa);
  } else {
    v = std::ldexp(fraction + (1 << mantissa), exponent - bias - mantissa);
  }
  return bits >> 15 ? -v : v;
}

void store(void* base, std::int64_t i, std::int32_t number, double value) {
  char* const at = static_cast<char*>(base) + i * type_of(number).bytes;
  if (number == RMS_NORM_FLOAT64) {
    std::memcpy(at, &value, 8);
    return;
  }
  value = rounded(value, number);
  if (number == RMS_NORM_FLOAT32) {
    const float v = static_cast<float>(value);
    std::memcpy(at, &v, 4);
    return;
  }
  const int mantissa = number == RMS_NORM_FLOAT16 ? 10 : 7;
  const int lowest = number == RMS_NORM_FLOAT16 ? -14 : -126;
  const int all = (1 << (15 - mantissa)) - 1;
  std::uint16_t bits = std::signbit(value) ? 0x8000 : 0;
  const double size = std::fabs(value);
  if (std::isnan(value)) {
    bits |= static_cast<std::uint16_t>(all << mantissa | 1);
  } else if (std::isinf(value)) {
    bits |= static_cast<std::uint16_t>(all << mantissa);
  } else if (size != 0) {
    const int exponent = std::max(std::ilogb(size), lowest);
    const int scaled = static_cast<int>(std::ldexp(size, mantissa - exponent));
    bits |= static_cast<std::uint16_t>(scaled + ((exponent - lowest) << mantissa));
  }
  std::memcpy(at, &bits, 2);
}

}  // namespace

#endif  // RMSNORM_DEPLOY_TESTS_FUZZ_FLOATS_H_
