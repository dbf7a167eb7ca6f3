// Built for AVX2 and F16C: nothing in here may be an inline function with external linkage, see cpu/table.h.
#include <immintrin.h>

#include "../../include/rms_norm.h"
#include "narrow.h"

namespace rmsnorm_deploy {

std::int64_t narrow_floats_avx2(const float* from, std::int64_t count, std::int32_t type, void* to) noexcept {
  unsigned char* const bytes = static_cast<unsigned char*>(to);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 value = _mm256_loadu_ps(from + i);
    __m128i narrowed;
    if (type == RMS_NORM_FLOAT16) {
      narrowed = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    } else {
      const __m256i bits = _mm256_castps_si256(value);
      const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
      const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
      const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
      const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
      const __m256i halves = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
      narrowed = _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + 2 * i), narrowed);
  }
  return i;
}

}  // namespace rmsnorm_deploy
