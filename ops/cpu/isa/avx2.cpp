// The kernels for AVX2 with FMA and F16C.
#include <immintrin.h>

#include "types.h"
#include "x86.h"

namespace {

ON_ANY_X86 bool usable() { return has_avx2_fma_f16c(this_x86()); }

constexpr int kLanes = 8;
using Vector = __m256;

INLINE Vector set1(float value) { return _mm256_set1_ps(value); }

// 16-bit values as they lie in memory.
#define HAS_PUT_ROUNDED
using Narrow = __m128i;
INLINE Narrow load_narrow(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
INLINE void store_narrow(void* p, Narrow v) { _mm_storeu_si128(static_cast<__m128i*>(p), v); }
INLINE void stream_narrow(void* p, Narrow v) { _mm_stream_si128(static_cast<__m128i*>(p), v); }
INLINE Vector widen(Narrow v, const Half*) { return _mm256_cvtph_ps(v); }
INLINE Vector widen(Narrow v, const Bfloat*) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}

INLINE Vector load(const float* p) { return _mm256_loadu_ps(p); }
template <typename T>
INLINE Vector load(const T* p) {
  return widen(load_narrow(p), p);
}

// The bits of v rounded to bfloat16, in the upper half of each word; the lower half holds rubbish.
INLINE __m256i bfloat_in_upper_half(Vector v) {
  const __m256i u = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  // Rounding a NaN could carry into the sign; it is made quiet instead.
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256 is_nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(quiet), is_nan));
}

INLINE Narrow narrow(Vector v, const Half*) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
INLINE Narrow narrow(Vector v, const Bfloat*) {
  const __m256i words = _mm256_srli_epi32(bfloat_in_upper_half(v), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

INLINE void store(float* p, Vector v) { _mm256_storeu_ps(p, v); }
template <typename T>
INLINE void store(T* p, Vector v) {
  store_narrow(p, narrow(v, p));
}

// Past the caches; aligned to what is stored.
#define HAS_STREAM
INLINE void stream(float* p, Vector v) { _mm256_stream_ps(p, v); }
template <typename T>
INLINE void stream(T* p, Vector v) {
  stream_narrow(p, narrow(v, p));
}
INLINE void stream_end() { _mm_sfence(); }

// The first `count` lanes of v, fewer than all, and zeros.
#define HAS_KEPT_FIRST
INLINE Vector kept_first(Vector v, std::int64_t count) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i kept = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
  return _mm256_and_ps(v, _mm256_castsi256_ps(kept));
}

INLINE Vector rounded(Vector v, const Half*) { return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
INLINE Vector rounded(Vector v, const Bfloat*) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm256_castsi256_ps(_mm256_and_si256(bfloat_in_upper_half(v), upper));
}

INLINE Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
INLINE Vector square_add(Vector v, Vector total) { return _mm256_fmadd_ps(v, v, total); }

// A NaN is the first operand's; these instructions then give the second.
INLINE Vector at_least(Vector v, Vector bound) { return _mm256_max_ps(v, bound); }
INLINE Vector at_most(Vector v, Vector bound) { return _mm256_min_ps(v, bound); }

// Each lane, of less than 2^22, rounded to a whole number, ties to even, and with `more` added; the low bytes of words.
using Words = std::uint32_t __attribute__((vector_size(4 * kLanes)));
INLINE Words whole(Vector v, std::int32_t more) {
  return reinterpret_cast<Words>(_mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(more)));
}
// Of words that are no more than 2^31.
#define HAS_ALL_AT_MOST
INLINE bool all_at_most(Words words, Words bound) {
  const __m256i beyond = _mm256_cmpgt_epi32(reinterpret_cast<__m256i>(words), reinterpret_cast<__m256i>(bound));
  return _mm256_testz_si256(beyond, beyond) != 0;
}
#define HAS_ENDS
template <typename Pick>
INLINE float end_of(Vector v, Pick pick) {
  __m128 four = pick(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  four = pick(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(pick(four, _mm_movehdup_ps(four)));
}
INLINE float least_of(Vector v) {
  return end_of(v, [](__m128 a, __m128 b) __attribute__((always_inline)) { return _mm_min_ps(a, b); });
}
INLINE float most_of(Vector v) {
  return end_of(v, [](__m128 a, __m128 b) __attribute__((always_inline)) { return _mm_max_ps(a, b); });
}

#define HAS_UPPER_ENDS
// The ends of a range that holds zero, and values in turn: of their upper 16 bits, two vectors at once, and by integer
// instructions, for which there are more units. Positive values are in order of these bits, and so are negative ones,
// by their magnitudes and behind all others. What is no number is beyond the ends.
struct Ends {
  static constexpr float kOff = 0x1p-8f + 0x1p-18f;  // half of what may be cut off, and some roundings
  __m256i lows = _mm256_setzero_si256();
  __m256i highs = _mm256_setzero_si256();
  ALWAYS_INLINE void take_upper(__m256i v) {
    lows = _mm256_max_epu16(v, lows);
    highs = _mm256_max_epi16(v, highs);
  }
  ALWAYS_INLINE void take(Vector v) { take_upper(_mm256_srli_epi32(_mm256_castps_si256(v), 16)); }
  ALWAYS_INLINE void take(Vector a, Vector b) {
    const __m256i upper = _mm256_srli_epi32(_mm256_castps_si256(a), 16);
    take_upper(_mm256_blend_epi16(upper, _mm256_castps_si256(b), 0xaa));
  }
  // The greatest of 16 unsigned lanes as the upper half of a float, and half of what may be cut off.
  static ALWAYS_INLINE float greatest(__m256i v) {
    const __m128i eight = _mm_max_epu16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    const __m128i inverted = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi16(-1)));
    const __m128i upper = _mm_slli_epi32(_mm_xor_si128(inverted, _mm_set1_epi32(0xffff)), 16);
    return _mm_cvtss_f32(_mm_castsi128_ps(upper)) * (1.0f + 0x1p-8f);
  }
  // Positive where there is no negative value: zero is.
  ALWAYS_INLINE float least() const {
    const float end = greatest(lows);
    return end > 0.0f ? 0.0f : end;
  }
  ALWAYS_INLINE float most() const { return greatest(highs); }
};

#define HAS_BYTE_BLOCKS
// What is not stored of rounded words: the lower 16 bits of each lane, beside others.
using Rests = __m256i;
INLINE Rests nearest(Rests a, Rests b) { return _mm256_min_epu16(a, b); }
// Whether any is at most kUnsure.
INLINE bool unsure(Rests r) {
  const __m256i lower = _mm256_and_si256(r, _mm256_set1_epi32(0xffff));
  return _mm256_movemask_epi8(_mm256_cmpgt_epi32(_mm256_set1_epi32(kUnsure + 1), lower)) != 0;
}

// The upper 16 bits of each lane, rounded to a word, of four vectors as bytes. Returns the least of the rests.
template <int kQuantised>
INLINE Rests store_upper(unsigned char* p, const Vector* v) {
  constexpr int kUpper = 0xaa;
  __m256i words[4];
  for (int k = 0; k < 4; ++k) words[k] = _mm256_cvtps_epi32(v[k]);
  const __m256i a = _mm256_blend_epi16(_mm256_srli_epi32(words[0], 16), words[1], kUpper);
  const __m256i b = _mm256_blend_epi16(_mm256_srli_epi32(words[2], 16), words[3], kUpper);
  const __m256i bytes = kQuantised == kInt8 ? _mm256_packs_epi16(a, b) : _mm256_packus_epi16(a, b);
  // Each 128 bits hold four lanes of each vector: first of two vectors in turn, then of the other two.
  const __m256i apart = _mm256_shuffle_epi8(
      bytes, _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permutevar8x32_epi32(apart, order));
  return nearest(nearest(words[0], words[1]), nearest(words[2], words[3]));
}
INLINE void store_bytes(unsigned char* p, Words w) {
  const __m256i low = _mm256_and_si256(reinterpret_cast<__m256i>(w), _mm256_set1_epi32(0xff));
  const __m128i shorts = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(shorts, shorts));
}

using Pair = __m256d;
INLINE void store(double* p, Pair v) { _mm256_storeu_pd(p, v); }
INLINE Pair lower_half(Vector v) { return _mm256_cvtps_pd(_mm256_castps256_ps128(v)); }
INLINE Pair upper_half(Vector v) { return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)); }

}  // namespace

#include "pair.h"

namespace {

// The sums of four accumulators at once: added pairwise while they are transposed.
#define HAS_TOTALS
INLINE void wide_totals(const Wide* from, double* to) {
  __m256d rows[4];
  for (int k = 0; k < 4; ++k) rows[k] = _mm256_add_pd(from[k].lower, from[k].upper);
  const __m256d a = _mm256_hadd_pd(rows[0], rows[1]);
  const __m256d b = _mm256_hadd_pd(rows[2], rows[3]);
  const __m256d halves = _mm256_permute2f128_pd(a, b, 0x20);
  _mm256_storeu_pd(to, _mm256_add_pd(halves, _mm256_permute2f128_pd(a, b, 0x31)));
}
// The same additions in the same order, for one.
INLINE double wide_sum(Wide w) {
  const __m256d four = _mm256_add_pd(w.lower, w.upper);
  const __m256d two = _mm256_hadd_pd(four, four);
  return _mm_cvtsd_f64(_mm_add_sd(_mm256_castpd256_pd128(two), _mm256_extractf128_pd(two, 1)));
}
INLINE void square_roots(double* values) { _mm256_storeu_pd(values, _mm256_sqrt_pd(_mm256_loadu_pd(values))); }

}  // namespace

#define HAS_HALF_CONVERSION
#define INSTRUCTION_SET avx2
#include "kernels.h"
