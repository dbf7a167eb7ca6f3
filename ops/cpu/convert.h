// Runs of values turned into another element type.
#ifndef RMSNORM_DEPLOY_CPU_CONVERT_H_
#define RMSNORM_DEPLOY_CPU_CONVERT_H_

#include <cstdint>

namespace rmsnorm_deploy {

// Index of an element type in the tables of kernels; float64 has no kernels, and gives that of float32.
int element_index(std::int32_t type) noexcept;

// `count` elements of `type` at `data`, each rounded to `round_type` and widened to `to` (float32 or float64).
void convert(const void* data, std::int32_t type, std::int64_t count, std::int32_t round_type, std::int32_t to,
             void* result) noexcept;

// `count` floats, each rounded to `type`, which is float16 or bfloat16: to nearest, ties to even; a NaN stays a NaN.
void narrow_floats(const float* from, std::int64_t count, std::int32_t type, void* to) noexcept;

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CPU_CONVERT_H_
