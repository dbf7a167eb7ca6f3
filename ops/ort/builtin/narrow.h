// float32 rounded to a 16-bit type: to nearest, ties to even, and a NaN stays a NaN.
#ifndef RMSNORM_DEPLOY_OVERRIDE_NARROW_H_
#define RMSNORM_DEPLOY_OVERRIDE_NARROW_H_

#include <cstdint>

namespace rmsnorm_deploy {

// `type` is RMS_NORM_FLOAT16 or RMS_NORM_BFLOAT16.
void narrow_floats(const float* from, std::int64_t count, std::int32_t type, void* to) noexcept;

#if defined(RMSNORM_DEPLOY_X86)
// The same with AVX2 and F16C, for as many values as fill whole vectors; returns how many those are.
std::int64_t narrow_floats_avx2(const float* from, std::int64_t count, std::int32_t type, void* to) noexcept;
#endif

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_OVERRIDE_NARROW_H_
