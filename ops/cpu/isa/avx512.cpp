// The kernels for AVX-512 (F, BW, DQ, VL).
#include <immintrin.h>

#include "types.h"
#include "x86.h"

namespace {

// The first processors that had AVX-512 slow down when they use it, and lack VBMI2.
ON_ANY_X86 bool usable() {
  constexpr unsigned kWider = 0xe0;  // masks and zmm
  constexpr unsigned kVbmi2 = 1u << 6;
  const X86 x86 = this_x86();
  return has_avx2_fma_f16c(x86) && has(x86.saved, kWider) &&
         has(x86.extended, bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL) && has(x86.later, kVbmi2);
}

constexpr int kLanes = 16;
using Vector = __m512;

INLINE Vector set1(float value) { return _mm512_set1_ps(value); }

INLINE __m256i load_shorts(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
INLINE Vector widen_bfloats(__m256i shorts) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(shorts), 16));
}

INLINE Vector load(const float* p) { return _mm512_loadu_ps(p); }
INLINE Vector load(const Half* p) { return _mm512_cvtph_ps(load_shorts(p)); }
INLINE Vector load(const Bfloat* p) { return widen_bfloats(load_shorts(p)); }

// The bits of v rounded to bfloat16, in the upper half of each word; the lower half holds rubbish.
INLINE __m512i bfloat_in_upper_half(Vector v) {
  const __m512i u = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  // Rounding a NaN could carry into the sign; it is made quiet instead.
  return _mm512_mask_or_epi32(up, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
}

INLINE __m256i narrow(Vector v, const Half*) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
INLINE __m256i narrow(Vector v, const Bfloat*) {
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bfloat_in_upper_half(v), 16));
}

// 16-bit values as they lie in memory.
#define HAS_PUT_ROUNDED
using Narrow = __m256i;
INLINE Vector widen(Narrow v, const Half*) { return _mm512_cvtph_ps(v); }
INLINE Vector widen(Narrow v, const Bfloat*) { return widen_bfloats(v); }
INLINE void store_narrow(void* p, Narrow v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
INLINE void stream_narrow(void* p, Narrow v) { _mm256_stream_si256(static_cast<__m256i*>(p), v); }

INLINE void store(float* p, Vector v) { _mm512_storeu_ps(p, v); }
template <typename T>
INLINE void store(T* p, Vector v) {
  store_narrow(p, narrow(v, p));
}

// Past the caches; aligned to what is stored.
#define HAS_STREAM
INLINE void stream(float* p, Vector v) { _mm512_stream_ps(p, v); }
template <typename T>
INLINE void stream(T* p, Vector v) {
  stream_narrow(p, narrow(v, p));
}
INLINE void stream_end() { _mm_sfence(); }

// The first `count` lanes, fewer than all; the others are read as zeros and left unwritten.
#define HAS_MASKS
INLINE __mmask16 first(std::int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }
INLINE Vector load_first(const float* p, std::int64_t count) { return _mm512_maskz_loadu_ps(first(count), p); }
INLINE Vector load_first(const Half* p, std::int64_t count) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(count), p));
}
INLINE Vector load_first(const Bfloat* p, std::int64_t count) {
  return widen_bfloats(_mm256_maskz_loadu_epi16(first(count), p));
}
INLINE void store_first(float* p, Vector v, std::int64_t count) { _mm512_mask_storeu_ps(p, first(count), v); }
template <typename T>
INLINE void store_first(T* p, Vector v, std::int64_t count) {
  _mm256_mask_storeu_epi16(p, first(count), narrow(v, p));
}

// The first `count` lanes of v, fewer than all, and zeros.
#define HAS_KEPT_FIRST
INLINE Vector kept_first(Vector v, std::int64_t count) { return _mm512_maskz_mov_ps(first(count), v); }

INLINE Vector rounded(Vector v, const Half* type) { return _mm512_cvtph_ps(narrow(v, type)); }
INLINE Vector rounded(Vector v, const Bfloat*) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm512_castsi512_ps(_mm512_and_si512(bfloat_in_upper_half(v), upper));
}

INLINE Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
INLINE Vector square_add(Vector v, Vector total) { return _mm512_fmadd_ps(v, v, total); }

// A NaN is the first operand's; these instructions then give the second.
INLINE Vector at_least(Vector v, Vector bound) { return _mm512_max_ps(v, bound); }
INLINE Vector at_most(Vector v, Vector bound) { return _mm512_min_ps(v, bound); }

// Each lane, of less than 2^22, rounded to a whole number, ties to even, and with `more` added; the low bytes of words.
using Words = std::uint32_t __attribute__((vector_size(4 * kLanes)));
INLINE Words whole(Vector v, std::int32_t more) {
  return reinterpret_cast<Words>(_mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(more)));
}
#define HAS_ALL_AT_MOST
INLINE bool all_at_most(Words words, Words bound) {
  return _mm512_cmpgt_epu32_mask(reinterpret_cast<__m512i>(words), reinterpret_cast<__m512i>(bound)) == 0;
}
#define HAS_ENDS
INLINE float least_of(Vector v) { return _mm512_reduce_min_ps(v); }
INLINE float most_of(Vector v) { return _mm512_reduce_max_ps(v); }

#define HAS_BYTE_BLOCKS
// What is not stored of rounded words: the lower 16 bits of each lane, beside others.
using Rests = __m512i;
INLINE Rests nearest(Rests a, Rests b) { return _mm512_min_epu16(a, b); }
// Whether any is at most kUnsure.
INLINE bool unsure(Rests r) { return _mm512_mask_cmple_epu16_mask(0x55555555u, r, _mm512_set1_epi16(kUnsure)) != 0; }

// The upper 16 bits of each lane, rounded to a word, of four vectors as bytes. Returns the least of the rests.
template <int kQuantised>
INLINE Rests store_upper(unsigned char* p, const Vector* v) {
  constexpr __mmask32 kUpper = 0xaaaaaaaau;
  __m512i words[4];
  for (int k = 0; k < 4; ++k) words[k] = _mm512_cvtps_epi32(v[k]);
  const __m512i a = _mm512_mask_mov_epi16(_mm512_srli_epi32(words[0], 16), kUpper, words[1]);
  const __m512i b = _mm512_mask_mov_epi16(_mm512_srli_epi32(words[2], 16), kUpper, words[3]);
  const __m512i bytes = kQuantised == kInt8 ? _mm512_packs_epi16(a, b) : _mm512_packus_epi16(a, b);
  // Each 128 bits hold four lanes of each vector: first of two vectors in turn, then of the other two.
  const __m512i apart = _mm512_shuffle_epi8(
      bytes, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(p, _mm512_permutexvar_epi32(order, apart));
  return nearest(nearest(words[0], words[1]), nearest(words[2], words[3]));
}
INLINE void store_bytes(unsigned char* p, Words w) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(w)));
}
#define HAS_BYTE_MASKS
INLINE void store_bytes_first(unsigned char* p, Words w, std::int64_t count) {
  _mm_mask_storeu_epi8(p, first(count), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(w)));
}

using Pair = __m512d;
INLINE void store(double* p, Pair v) { _mm512_storeu_pd(p, v); }
INLINE Pair lower_half(Vector v) { return _mm512_cvtps_pd(_mm512_castps512_ps256(v)); }
INLINE Pair upper_half(Vector v) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)); }

}  // namespace

#include "pair.h"

namespace {

// The sums of eight accumulators at once: added pairwise while they are transposed.
#define HAS_TOTALS
INLINE __m512d pairs(__m512d a, __m512d b) { return _mm512_add_pd(_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b)); }
INLINE __m512d quarters(__m512d a, __m512d b) {
  return _mm512_add_pd(_mm512_shuffle_f64x2(a, b, 0x88), _mm512_shuffle_f64x2(a, b, 0xdd));
}
INLINE void wide_totals(const Wide* from, double* to) {
  __m512d rows[8];
  for (int i = 0; i < 8; ++i) rows[i] = _mm512_add_pd(from[i].lower, from[i].upper);
  const __m512d four = quarters(pairs(rows[0], rows[1]), pairs(rows[2], rows[3]));
  const __m512d last = quarters(pairs(rows[4], rows[5]), pairs(rows[6], rows[7]));
  _mm512_storeu_pd(to, quarters(four, last));
}

// The same additions in the same order, for one.
INLINE double wide_sum(Wide w) {
  __m512d v = _mm512_add_pd(w.lower, w.upper);
  v = _mm512_add_pd(v, _mm512_permute_pd(v, 0x55));
  v = _mm512_add_pd(v, _mm512_shuffle_f64x2(v, v, 0xb1));
  v = _mm512_add_pd(v, _mm512_shuffle_f64x2(v, v, 0x4e));
  return _mm512_cvtsd_f64(v);
}
INLINE void square_roots(double* values) { _mm512_storeu_pd(values, _mm512_sqrt_pd(_mm512_loadu_pd(values))); }

}  // namespace

#define HAS_HALF_CONVERSION
#define INSTRUCTION_SET avx512
#include "kernels.h"
