// Runs of values in 8 bits, and their extremes.
#ifndef RMSNORM_DEPLOY_CPU_ISA_QUANTISE_H_
#define RMSNORM_DEPLOY_CPU_ISA_QUANTISE_H_

#include <cmath>

#include "steps.h"

namespace {

#if !defined(HAS_BYTE_MASKS)
INLINE void store_bytes_first(unsigned char* p, Words w, std::int64_t count) {
  unsigned char memory[kLanes];
  store_bytes(memory, w);
  for (std::int64_t i = 0; i < count; ++i) p[i] = memory[i];
}
#endif

#if !defined(HAS_FLOAT8)
// Each lane as float8e4m3fn: 1 sign, 4 exponent and 3 fraction bits, the largest 448; nothing is infinite.
INLINE Words float8_of(Vector v) {
  const Words bits = reinterpret_cast<Words>(v);
  const Words sign = (bits >> 24) & 0x80u;
  const Vector magnitude = at_most(reinterpret_cast<Vector>(bits & 0x7fffffffu), set1(448.0f));
  const Words m = reinterpret_cast<Words>(magnitude);
  const Words normal = (m - (120u << 23) + 0x7ffffu + ((m >> 20) & 1u)) >> 20;
  // Below 2^-6 the values are multiples of 2^-9, which is the spacing of floats from 2^14 on; the addition rounds.
  const Words small = reinterpret_cast<Words>(magnitude + set1(0x1p14f)) - (141u << 23);
  const Words is_small = reinterpret_cast<Words>(m < (121u << 23));
  const Words is_number = reinterpret_cast<Words>((bits & 0x7fffffffu) <= 0x7f800000u);
  const Words result = (small & is_small) | (normal & ~is_small);
  return sign | (result & is_number) | (0x7fu & ~is_number);
}
#endif

#if !defined(HAS_BYTE_BLOCKS)
#if !defined(HAS_EXCEEDS)
// Whether any lane is more than `limit`.
INLINE bool exceeds(Vector v, float limit) {
  float lanes[kLanes];
  store(lanes, v);
  bool any = false;
  for (int i = 0; i < kLanes; ++i) any |= lanes[i] > limit;
  return any;
}
#endif

#if !defined(HAS_DISTANCE)
// How far each lane, of less than 2^22, is from the nearest whole number.
INLINE Vector distance(Vector v) {
  const Vector whole = (v + set1(0x1.8p23f)) - set1(0x1.8p23f);  // floats from 2^23 on are whole numbers
  return reinterpret_cast<Vector>(reinterpret_cast<Words>(v - whole) & 0x7fffffffu);
}
#endif

// How far quotients are from the whole numbers that they are rounded to.
using Rests = Vector;
INLINE Rests nearest(Rests a, Rests b) { return at_least(a, b); }
INLINE bool unsure(Rests r) { return exceeds(r, 0.5f - 0x1p-13f); }
#endif

#if !defined(HAS_ENDS)
// The least and the greatest lane, none of which is a NaN.
INLINE float least_of(Vector v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] = lanes[i + width] < lanes[i] ? lanes[i + width] : lanes[i];
  }
  return lanes[0];
}
INLINE float most_of(Vector v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] = lanes[i + width] > lanes[i] ? lanes[i + width] : lanes[i];
  }
  return lanes[0];
}
#endif

// The ends of a range, which holds zero unless it is told, and of values in turn.
struct ExactEnds {
  // A product of two values, times another, may be this part off; it is then at most 6 roundings off.
  static constexpr float kOff = 0x1p-20f;
  Vector lows = set1(0);
  Vector highs = set1(0);
  ALWAYS_INLINE void take(Vector v) {
    lows = at_most(v, lows);
    highs = at_least(v, highs);
  }
  ALWAYS_INLINE void take(Vector a, Vector b) {
    take(a);
    take(b);
  }
  ALWAYS_INLINE float least() const { return least_of(lows); }
  ALWAYS_INLINE float most() const { return most_of(highs); }
};
#if !defined(HAS_UPPER_ENDS)
using Ends = ExactEnds;
#endif

// A NaN becomes the lower bound.
INLINE Vector held(Vector v, Vector low, Vector high) { return at_most(at_least(v, low), high); }

// The quotient in the type of index kQuantised.
template <int kQuantised>
INLINE Words quantised(Vector v, Vector low, Vector high, std::int32_t zero_point) {
  if constexpr (kQuantised == kFloat8) {
    return float8_of(v);
  } else {
    // Both bounds are whole numbers, so that they may come before the rounding.
    return whole(held(v, low, high), zero_point);
  }
}

// Makes integers of 8 bits of float32 values, kBlock vectors at a time.
//
// A division takes longer than all the rest. A product is near enough to the quotient to be rounded to the same whole
// number, unless it is as near to a tie.
constexpr int kBlock = 4;
template <int kQuantised>
struct Blocks {
  static constexpr std::int32_t kLeast = kQuantised == kInt8 ? -128 : 0;
  static constexpr std::int32_t kMost = kQuantised == kInt8 ? 127 : 255;
#if defined(HAS_BYTE_BLOCKS)
  static constexpr double kUnit = 65536.0;
#else
  static constexpr double kUnit = 1.0;
#endif

  float scale;
  std::int32_t zero_point;
  double per_scale;
  Vector low;
  Vector high;
  Vector middle;

  ALWAYS_INLINE Blocks(float by, std::int32_t zero)
      : scale(by),
        zero_point(zero),
        per_scale(kUnit / static_cast<double>(by)),
        low(set1(static_cast<float>(kLeast - zero))),
        high(set1(static_cast<float>(kMost - zero))),
        middle(set1(static_cast<float>(zero * 65536 + 32768 + kUnsure / 2))) {}

  // What makes quotients of values times `factor`, and whether `put` can use it: where nothing that is too small for a
  // normal float counts.
  ALWAYS_INLINE bool multiplier(double factor, float* result) const {
    *result = static_cast<float>(factor * per_scale);
    return std::fabs(scale) >= 0x1p-50f && std::fabs(*result) >= 0x1p-100f && std::fabs(*result) <= 0x1p100f;
  }

  // The bytes of quotients that `values` times `by` are at most 2 roundings off. Where the result is unsure(), one of
  // them is so near to a tie that a quotient 3 more roundings off may become another whole number: then the bytes are
  // not to be trusted.
  ALWAYS_INLINE Rests put(const Vector* values, Vector by, unsigned char* to) const {
    Vector v[kBlock];
#if defined(HAS_BYTE_BLOCKS)
    // In whole numbers of 2^-16, and half of one more: the upper 16 bits are the result. What is not cut off is at most
    // 255 from the zero point, so that 5 roundings are at most 5 of these units, and those of sum and word 0.75. The
    // lower 16 bits are near to zero where a word has overflowed, too.
#pragma GCC unroll 4
    for (int k = 0; k < kBlock; ++k) v[k] = multiply_add(values[k], by, middle);
    return store_upper<kQuantised>(to, v);
#else
    Rests rests = set1(0.0f);
#pragma GCC unroll 4
    for (int k = 0; k < kBlock; ++k) {
      v[k] = held(values[k] * by, low, high);
      rests = nearest(rests, distance(v[k]));
      store_bytes(to + k * kLanes, whole(v[k], zero_point));
    }
    return rests;
#endif
  }

  // As it is defined.
  ALWAYS_INLINE Words divided(Vector v) const { return quantised<kQuantised>(v / set1(scale), low, high, zero_point); }
};

// The values [0, size) in blocks, as far as they go. `put` makes the bytes of a block from entry i on; `again` makes
// those of `count` values that are not to be trusted. Two blocks are looked at together: a branch that waits for one
// takes a third of its time.
template <typename Put, typename Again>
INLINE std::int64_t in_blocks(std::int64_t size, Put&& put, Again&& again) {
  constexpr std::int64_t kValues = kBlock * kLanes;
  std::int64_t i = 0;
  for (; i + 2 * kValues <= size; i += 2 * kValues) {
    const Rests first = put(i);
    const Rests second = put(i + kValues);
    if (__builtin_expect(unsure(nearest(first, second)), 0)) again(i, 2 * kValues);
  }
  if (i + kValues <= size) {
    if (__builtin_expect(unsure(put(i)), 0)) again(i, kValues);
    i += kValues;
  }
  return i;
}

// kNarrow: the quotient is rounded to T.
template <typename T, int kQuantised, bool kNarrow>
static void quantise_kernel(const void* from, void* to, std::int64_t count, float scale, std::int32_t zero_point) {
  const T* const values = static_cast<const T*>(from);
  unsigned char* const result = static_cast<unsigned char*>(to);
  const Blocks<kQuantised> blocks(scale, zero_point);
  const auto one = [&](Vector v) __attribute__((always_inline)) {
    if constexpr (!kNarrow) return blocks.divided(v);
    return quantised<kQuantised>(rounded(v / set1(scale), values), blocks.low, blocks.high, zero_point);
  };
  std::int64_t i = 0;
  if constexpr (kQuantised != kFloat8 && !kNarrow) {
    float multiplier;
    if (blocks.multiplier(1.0, &multiplier)) {
      i = in_blocks(
          count,
          [&](std::int64_t at) __attribute__((always_inline)) {
            Vector v[kBlock];
#pragma GCC unroll 4
            for (int k = 0; k < kBlock; ++k) v[k] = load(values + at + k * kLanes);
            return blocks.put(v, set1(multiplier), result + at);
          },
          [&](std::int64_t at, std::int64_t many) __attribute__((always_inline)) {
            for (const std::int64_t end = at + many; at < end; at += kLanes) {
              store_bytes(result + at, one(load(values + at)));
            }
          });
    }
  }
  for (; i + kLanes <= count; i += kLanes) store_bytes(result + i, one(load(values + i)));
  if (i < count) store_bytes_first(result + i, one(load_first(values + i, count - i)), count - i);
}

template <typename T>
static void extremes_kernel(const void* from, std::int64_t count, float* least, float* most) {
  constexpr int kChains = 2;
  const T* const values = static_cast<const T*>(from);
  Vector lows[kChains];
  Vector highs[kChains];
  for (int k = 0; k < kChains; ++k) {
    lows[k] = set1(*least);
    highs[k] = set1(*most);
  }
  std::int64_t i = 0;
  for (; i + kChains * kLanes <= count; i += kChains * kLanes) {
#pragma GCC unroll 2
    for (int k = 0; k < kChains; ++k) {
      const Vector v = load(values + i + k * kLanes);
      lows[k] = at_most(v, lows[k]);
      highs[k] = at_least(v, highs[k]);
    }
  }
  for (; i + kLanes <= count; i += kLanes) {
    const Vector v = load(values + i);
    lows[0] = at_most(v, lows[0]);
    highs[0] = at_least(v, highs[0]);
  }
  if (i < count && count >= kLanes) {  // some values once more
    const Vector v = load(values + count - kLanes);
    lows[0] = at_most(v, lows[0]);
    highs[0] = at_least(v, highs[0]);
    i = count;
  }
  *least = least_of(at_most(lows[0], lows[1]));
  *most = most_of(at_least(highs[0], highs[1]));
  if (i < count) {
    // The lanes beyond hold zeros, which are no values of the row.
    float low[kLanes];
    store(low, load_first(values + i, count - i));
    for (std::int64_t k = 0; k < count - i; ++k) {
      if (low[k] < *least) *least = low[k];
      if (low[k] > *most) *most = low[k];
    }
  }
}

}  // namespace

#endif  // RMSNORM_DEPLOY_CPU_ISA_QUANTISE_H_
