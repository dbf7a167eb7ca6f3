// The formula of the contract, each step once: for doubles, and for vectors as GCC and Clang define them. It is
// included by files of different instruction sets, so everything here has internal linkage; see table.h.
#ifndef RMSNORM_DEPLOY_CPU_FORMULA_H_
#define RMSNORM_DEPLOY_CPU_FORMULA_H_

#include <type_traits>

#include "table.h"

#if !defined(INLINE)
#if defined(__OPTIMIZE__)
#define ALWAYS_INLINE inline __attribute__((always_inline))  // of members
#else
#define ALWAYS_INLINE inline  // a build for tests, which is no faster with a copy in each place and takes minutes more
#endif
#define INLINE static ALWAYS_INLINE
#elif !defined(ALWAYS_INLINE)
#define ALWAYS_INLINE
#endif

namespace rmsnorm_deploy {

// `value` in every lane of a C.
INLINE double filled(double value, double) { return value; }
template <typename C>
INLINE C filled(double value, C like) {
  return static_cast<std::decay_t<decltype(like[0])>>(value) - C{};
}

// s, before it is rounded to the type of x. No attribute has a part in it so far.
template <typename C>
INLINE C combined(C x, C residual, const Attributes&) {
  return x + residual;
}

// rms, from the mean square. `root` is the square root for C.
template <typename C, typename Root>
INLINE C rms_of(C mean, const Attributes& a, Root root) {
  const C rms = root(mean + a.epsilon) + a.epsilon_outside;
  return rms < a.rms_floor ? filled(a.rms_floor, rms) : rms;  // false for a NaN, which therefore stays
}
INLINE double rms_of(double mean, const Attributes& a) {
  return rms_of(mean, a, [](double value) { return __builtin_sqrt(value); });
}

// y, from x / rms, before it is rounded for the last time. `round` is the rounding to round_type.
template <bool kHasBias, typename C, typename Round>
INLINE C scaled(C normalised, C scale, C bias, Round round) {
  C y = round(normalised) * scale;
  if constexpr (kHasBias) y = round(y) + bias;
  return y;
}

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CPU_FORMULA_H_
