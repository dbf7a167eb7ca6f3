// Runs of values turned into another type.
#ifndef RMSNORM_DEPLOY_CPU_ISA_CONVERT_H_
#define RMSNORM_DEPLOY_CPU_ISA_CONVERT_H_

#include "steps.h"

namespace {

// `count` values of T, rounded to R and widened.
template <typename T, typename R>
static void weights_kernel(const void* from, float* to, std::int64_t count) {
  const T* values = static_cast<const T*>(from);
  const R* type = nullptr;
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, rounded(load(values + i), type));
  if (i < count) store_first(to + i, rounded(load_first(values + i, count - i), type), count - i);
}

// `count` floats, each rounded to T.
template <typename T>
static void narrow_kernel(const float* from, void* to, std::int64_t count) {
  T* result = static_cast<T*>(to);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(result + i, load(from + i));
  if (i < count) store_first(result + i, load_first(from + i, count - i), count - i);
}

}  // namespace

#endif  // RMSNORM_DEPLOY_CPU_ISA_CONVERT_H_
