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
  const Vector nearest = (v + set1(0x1.8p23f)) - set1(0x1.8p23f);  // floats from 2^23 on are whole numbers
  return reinterpret_cast<Vector>(reinterpret_cast<Words>(v - nearest) & 0x7fffffffu);
}
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

// kNarrow: the quotient is rounded to T.
template <typename T, int kQuantised, bool kNarrow>
static void quantise_kernel(const void* from, void* to, std::int64_t count, float scale, std::int32_t zero_point) {
  const T* const values = static_cast<const T*>(from);
  unsigned char* const result = static_cast<unsigned char*>(to);
  const Vector s = set1(scale);
  const Vector low = set1(static_cast<float>((kQuantised == kInt8 ? -128 : 0) - zero_point));
  const Vector high = set1(static_cast<float>((kQuantised == kInt8 ? 127 : 255) - zero_point));
  const auto quotient = [&](Vector v) __attribute__((always_inline)) {
    v = v / s;
    if constexpr (kNarrow) v = rounded(v, values);
    return v;
  };
  std::int64_t i = 0;
  if constexpr (kQuantised != kFloat8 && !kNarrow) {
    // A division takes longer than all the rest. A product with the reciprocal is at most 1.5 units in the last place
    // off the quotient, which is less than 2^-13 where it is not cut off: both round to the same whole number, unless
    // the product is as near to a tie. Then the quotients of a block are computed.
    constexpr int kBlock = 4;
    constexpr float kNear = 0.5f - 0x1p-13f;
    const bool has_reciprocal = std::fabs(scale) >= 0x1p-100f && std::fabs(scale) <= 0x1p100f;
    const Vector reciprocal = set1(1.0f / scale);
    for (; has_reciprocal && i + kBlock * kLanes <= count; i += kBlock * kLanes) {
      Vector furthest = set1(0.0f);
#if defined(HAS_BYTE_BLOCKS)
      Vector v[kBlock];
#pragma GCC unroll 4
      for (int k = 0; k < kBlock; ++k) {
        v[k] = load(values + i + k * kLanes) * reciprocal;
        furthest = further(furthest, v[k]);
      }
      if (exceeds(furthest, kNear)) {
        for (int k = 0; k < kBlock; ++k) v[k] = quotient(load(values + i + k * kLanes));
      }
      store_block<kQuantised>(result + i, v, zero_point);
#else
#pragma GCC unroll 4
      for (int k = 0; k < kBlock; ++k) {
        const Vector v = held(load(values + i + k * kLanes) * reciprocal, low, high);
        furthest = at_least(furthest, distance(v));
        store_bytes(result + i + k * kLanes, whole(v, zero_point));
      }
      if (exceeds(furthest, kNear)) {
        for (int k = 0; k < kBlock; ++k) {
          const Vector v = quotient(load(values + i + k * kLanes));
          store_bytes(result + i + k * kLanes, quantised<kQuantised>(v, low, high, zero_point));
        }
      }
#endif
    }
  }
  for (; i + kLanes <= count; i += kLanes) {
    store_bytes(result + i, quantised<kQuantised>(quotient(load(values + i)), low, high, zero_point));
  }
  if (i < count) {
    const Vector v = quotient(load_first(values + i, count - i));
    store_bytes_first(result + i, quantised<kQuantised>(v, low, high, zero_point), count - i);
  }
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
