// The kernels for NEON, which every 64-bit ARM processor has. float16 by the conversions of the base architecture;
// bfloat16, for which only later ones have instructions, by integer arithmetic.
#include <arm_neon.h>

#include "types.h"

namespace {

bool usable() { return true; }

constexpr int kLanes = 4;
using Vector = float32x4_t;

INLINE Vector set1(float value) { return vdupq_n_f32(value); }

INLINE Vector widen_halves(uint16x4_t shorts) { return vcvt_f32_f16(vreinterpret_f16_u16(shorts)); }

INLINE Vector load(const float* p) { return vld1q_f32(p); }
INLINE Vector load(const Half* p) { return widen_halves(vld1_u16(&p->bits)); }
INLINE Vector load(const Bfloat* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&p->bits), 16)); }

// The bits of v rounded to bfloat16, in the upper half of each word; the lower half holds rubbish.
INLINE uint32x4_t bfloat_in_upper_half(Vector v) {
  const uint32x4_t u = vreinterpretq_u32_f32(v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  const uint32x4_t up = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  // Rounding a NaN could carry into the sign; it is made quiet instead.
  return vbslq_u32(vceqq_f32(v, v), up, vorrq_u32(u, vdupq_n_u32(0x400000)));
}

INLINE uint16x4_t narrow(Vector v, const Half*) { return vreinterpret_u16_f16(vcvt_f16_f32(v)); }
INLINE uint16x4_t narrow(Vector v, const Bfloat*) { return vshrn_n_u32(bfloat_in_upper_half(v), 16); }

INLINE void store(float* p, Vector v) { vst1q_f32(p, v); }
template <typename T>
INLINE void store(T* p, Vector v) {
  vst1_u16(&p->bits, narrow(v, p));
}

INLINE Vector rounded(Vector v, const Half* type) { return widen_halves(narrow(v, type)); }
INLINE Vector rounded(Vector v, const Bfloat*) {
  return vreinterpretq_f32_u32(vandq_u32(bfloat_in_upper_half(v), vdupq_n_u32(0xffff0000u)));
}

INLINE Vector multiply_add(Vector a, Vector b, Vector c) { return vfmaq_f32(c, a, b); }
INLINE Vector square_add(Vector v, Vector total) { return vfmaq_f32(total, v, v); }

// The comparison is false for a NaN, which then gives way to the bound.
INLINE Vector at_least(Vector v, Vector bound) { return vbslq_f32(vcgtq_f32(v, bound), v, bound); }
INLINE Vector at_most(Vector v, Vector bound) { return vbslq_f32(vcltq_f32(v, bound), v, bound); }

// Each lane, of less than 2^22, rounded to a whole number, ties to even, and with `more` added; the low bytes of words.
using Words = std::uint32_t __attribute__((vector_size(4 * kLanes)));
INLINE Words whole(Vector v, std::int32_t more) {
  return reinterpret_cast<Words>(vaddq_s32(vcvtnq_s32_f32(v), vdupq_n_s32(more)));
}
#define HAS_ALL_AT_MOST
INLINE bool all_at_most(Words words, Words bound) {
  return vmaxvq_u32(vcgtq_u32(reinterpret_cast<uint32x4_t>(words), reinterpret_cast<uint32x4_t>(bound))) == 0;
}
#define HAS_EXCEEDS
INLINE bool exceeds(Vector v, float limit) { return vmaxvq_f32(v) > limit; }
INLINE void store_bytes(unsigned char* p, Words w) {
  const uint16x4_t shorts = vmovn_u32(reinterpret_cast<uint32x4_t>(w));
  const uint8x8_t bytes = vmovn_u16(vcombine_u16(shorts, shorts));
  std::memcpy(p, &bytes, kLanes);
}

using Pair = float64x2_t;
INLINE void store(double* p, Pair v) { vst1q_f64(p, v); }
INLINE Pair lower_half(Vector v) { return vcvt_f64_f32(vget_low_f32(v)); }
INLINE Pair upper_half(Vector v) { return vcvt_high_f64_f32(v); }

}  // namespace

#include "pair.h"

namespace {

INLINE double wide_sum(Wide w) { return vaddvq_f64(vaddq_f64(w.lower, w.upper)); }

// The sums of two accumulators at once.
#define HAS_TOTALS
INLINE void wide_totals(const Wide* from, double* to) {
  vst1q_f64(to, vpaddq_f64(vaddq_f64(from[0].lower, from[0].upper), vaddq_f64(from[1].lower, from[1].upper)));
}
INLINE void square_roots(double* values) { vst1q_f64(values, vsqrtq_f64(vld1q_f64(values))); }

}  // namespace

#define HAS_HALF_CONVERSION
#define INSTRUCTION_SET neon
#include "kernels.h"
