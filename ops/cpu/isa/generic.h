// The operations of an instruction set on vectors as GCC and Clang define them for every target, of kLanes floats,
// which the including file has defined. 16-bit types are converted by integer arithmetic.
#ifndef RMSNORM_DEPLOY_CPU_ISA_GENERIC_H_
#define RMSNORM_DEPLOY_CPU_ISA_GENERIC_H_

#if defined(FEW_KERNELS)
#define HALF_CONVERSION __attribute__((noinline)) static
#else
#define HALF_CONVERSION INLINE
#endif

namespace {

using Vector = float __attribute__((vector_size(sizeof(float) * kLanes)));
using Words = std::uint32_t __attribute__((vector_size(sizeof(std::uint32_t) * kLanes)));
using Shorts = std::uint16_t __attribute__((vector_size(sizeof(std::uint16_t) * kLanes)));

INLINE Vector set1(float value) { return value - Vector{}; }  // in every lane
INLINE Words bits_of(Vector v) { return reinterpret_cast<Words>(v); }
INLINE Vector float_of(Words v) { return reinterpret_cast<Vector>(v); }

INLINE Vector load(const float* p) {
  Vector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
INLINE Words load_words(const void* p) {
  Shorts v;
  std::memcpy(&v, p, sizeof v);
  return __builtin_convertvector(v, Words);
}
INLINE void store_words(void* p, Words w) {
  const Shorts v = __builtin_convertvector(w, Shorts);
  std::memcpy(p, &v, sizeof v);
}

INLINE Vector load(const Bfloat* p) { return float_of(load_words(p) << 16); }
HALF_CONVERSION Vector widen_halves(Words h) {
  const Words exponent = h & 0x7c00u;
  const Words rebased = ((h & 0x7fffu) << 13) + (112u << 23);
  // A subnormal half is a multiple of 2^-24, which is the spacing of floats just above a half. This form does not rely
  // on subnormal floats, which a caller may have switched off.
  const Words small = bits_of(float_of((h & 0x3ffu) | 0x3f000000u) - set1(0.5f));
  const Words special = rebased + (112u << 23);  // infinity and NaN have the largest exponent in both types
  const Words magnitude = exponent == 0u ? small : (exponent == 0x7c00u ? special : rebased);
  return float_of(magnitude | ((h & 0x8000u) << 16));
}
INLINE Vector load(const Half* p) { return widen_halves(load_words(p)); }

INLINE Words to_bfloat(Vector v) {
  const Words u = bits_of(v);
  const Words rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return v == v ? rounded : (u >> 16) | 0x40u;  // rounding a NaN could carry into the sign; it is made quiet instead
}
HALF_CONVERSION Words to_half(Vector v) {
  const Words sign = bits_of(v) & 0x80000000u;
  const Words u = bits_of(v) ^ sign;
  const Words normal = (u - (112u << 23) + 0xfffu + ((u >> 13) & 1u)) >> 13;
  // The addition rounds to multiples of 2^-24, which is what a subnormal half holds.
  const Words small = bits_of(float_of(u) + set1(0.5f)) - 0x3f000000u;
  const Words nan = u & 0u;
  const Words special = u > 0x7f800000u ? nan + 0x7e00u : nan + 0x7c00u;
  return (u < 0x38800000u ? small : (u >= 0x47800000u ? special : normal)) | (sign >> 16);
}

INLINE void store(float* p, Vector v) { std::memcpy(p, &v, sizeof v); }
INLINE void store(Bfloat* p, Vector v) { store_words(p, to_bfloat(v)); }
INLINE void store(Half* p, Vector v) { store_words(p, to_half(v)); }

INLINE Vector rounded(Vector v, const Bfloat*) { return float_of(to_bfloat(v) << 16); }
INLINE Vector rounded(Vector v, const Half*) { return widen_halves(to_half(v)); }

INLINE Vector at_least(Vector v, Vector bound) { return v > bound ? v : bound; }
INLINE Vector at_most(Vector v, Vector bound) { return v < bound ? v : bound; }

using Bytes = std::uint8_t __attribute__((vector_size(kLanes)));
INLINE Words whole(Vector v, std::int32_t more) {
  // Floats from 2^23 to 2^24 are whole numbers; the addition rounds.
  return bits_of(v + set1(0x1.8p23f)) + static_cast<std::uint32_t>(more);
}
INLINE void store_bytes(unsigned char* p, Words w) {
  const Bytes bytes = __builtin_convertvector(w & 0xffu, Bytes);
  std::memcpy(p, &bytes, sizeof bytes);
}

INLINE Vector multiply_add(Vector a, Vector b, Vector c) {
  Vector result;
  for (int i = 0; i < kLanes; ++i) {
#if defined(__FP_FAST_FMAF)
    result[i] = __builtin_fmaf(a[i], b[i], c[i]);
#else
    // The product of two floats is exact in double precision.
    result[i] = static_cast<float>(static_cast<double>(a[i]) * static_cast<double>(b[i]) + static_cast<double>(c[i]));
#endif
  }
  return result;
}
INLINE Vector square_add(Vector v, Vector total) { return v * v + total; }

// One double for each lane.
struct Wide {
  double lanes[kLanes];
};

INLINE Wide wide_zero() { return {}; }
INLINE Wide wide_add(Vector v, Wide total) {
  for (int i = 0; i < kLanes; ++i) total.lanes[i] += static_cast<double>(v[i]);
  return total;
}
INLINE double wide_sum(Wide w) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) w.lanes[i] += w.lanes[i + width];
  }
  return w.lanes[0];
}
INLINE void wide_store(double* p, Wide w) { std::memcpy(p, w.lanes, sizeof w.lanes); }

}  // namespace

#endif  // RMSNORM_DEPLOY_CPU_ISA_GENERIC_H_
