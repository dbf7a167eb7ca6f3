// Rows with a gate, that lie one behind the other: the passes of rows.h around an activation. Rows go piece by piece
// through memory that stays in the first-level cache.
#ifndef RMSNORM_DEPLOY_CPU_ISA_GATED_H_
#define RMSNORM_DEPLOY_CPU_ISA_GATED_H_

#include "activation.h"
#include "rows.h"

namespace {

// Values of a gate that are activated at once. Rows up to this length are activated once, longer ones in each pass.
constexpr std::int64_t kGatePiece = 4096;

// The activated gate or, with kTimes, x times it.
template <typename T, typename G, bool kSilu, bool kTimes>
INLINE void activate(const T* x, const G* gate, float* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Vector g = activated<kSilu>(load(gate + i));
    if constexpr (kTimes) g = load(x + i) * g;
    store(to + i, g);
  }
  if (i < count) {
    Vector g = activated<kSilu>(load_first(gate + i, count - i));
    if constexpr (kTimes) g = load_first(x + i, count - i) * g;
    store_first(to + i, g, count - i);
  }
}

template <typename T, typename G, bool kTimes>
static void activate(const T* x, const G* gate, float* to, std::int64_t count, bool silu) {
  if (silu) {
    activate<T, G, true, kTimes>(x, gate, to, count);
  } else {
    activate<T, G, false, kTimes>(x, gate, to, count);
  }
}

// One value of y from the normalised one, its scale and the activated gate.
template <typename T, int kRounding, bool kLast>
INLINE Vector gated(Vector n, Vector scale, Vector gate) {
  const auto round = [](Vector value) __attribute__((always_inline)) {
    if constexpr (kRounding == kRoundTwice) return rounded(value, static_cast<const T*>(nullptr));
    return value;
  };
  if constexpr (kLast) return round(scaled<false>(n, scale, scale, round)) * gate;
  return scaled<false>(round(n) * gate, scale, scale, round);
}

template <typename T, int kRounding, bool kLast, bool kDivide>
INLINE void gated_pass(const T* x, T* y, const float* scale, const float* gate, Factor factor, std::int64_t count) {
  const Vector high = set1(factor.high);
  const Vector low = set1(factor.low);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vector n = divided<T, kDivide>(load(x + i), high, low);
    store(y + i, gated<T, kRounding, kLast>(n, load(scale + i), load(gate + i)));
  }
  if (i < count) {
    const std::int64_t rest = count - i;
    const Vector n = divided<T, kDivide>(load_first(x + i, rest), high, low);
    store_first(y + i, gated<T, kRounding, kLast>(n, load_first(scale + i, rest), load_first(gate + i, rest)), rest);
  }
}

template <typename T, int kRounding, bool kLast>
static void gated_pass(const T* x, T* y, const float* scale, const float* gate, const Factors& factors,
                       std::int64_t count) {
  const Factor factor = {factors.high[0], factors.low[0]};
  if (factors.divides[0]) {
    gated_pass<T, kRounding, kLast, true>(x, y, scale, gate, factor, count);
  } else {
    gated_pass<T, kRounding, kLast, false>(x, y, scale, gate, factor, count);
  }
}

// x times the gate is normalised.
template <typename T, typename G, int kRounding>
static void gated_first(const T* x, const G* gate, T* y, const GatedArgs& a) {
  alignas(64) float wide[kGatePiece];
  const std::int64_t size = a.size;
  double total = 0;
  for (std::int64_t at = 0; at < size; at += kGatePiece) {
    const std::int64_t count = size - at < kGatePiece ? size - at : kGatePiece;
    activate<T, G, true>(x + at, gate + at, wide, count, a.silu);
    total += wide_sum(first_pass<float, kPlain, false, false>(wide, wide, wide, nullptr, count, count, a.attributes));
  }
  Factors factors;
  set_factor(factors, 0, rms_of(total / static_cast<double>(size), a.attributes));
  for (std::int64_t at = 0; at < size; at += kGatePiece) {
    const std::int64_t count = size - at < kGatePiece ? size - at : kGatePiece;
    if (size > kGatePiece) activate<T, G, true>(x + at, gate + at, wide, count, a.silu);
    second_pass<T, float, kPlain, kRounding, false>(wide, y + at, a.scale + at, nullptr, factors, 0, count, x);
  }
}

// The gate comes behind the norm.
template <typename T, typename G, int kRounding>
static void gated_behind(const T* x, const G* gate, T* y, const GatedArgs& a) {
  alignas(64) float wide[kGatePiece];
  const std::int64_t size = a.size;
  const Wide sum = first_pass<T, kPlain, false, false>(x, x, y, nullptr, size, size, a.attributes);
  Factors factors;
  set_factor(factors, 0, rms_of(wide_sum(sum) / static_cast<double>(size), a.attributes));
  for (std::int64_t at = 0; at < size; at += kGatePiece) {
    const std::int64_t count = size - at < kGatePiece ? size - at : kGatePiece;
    activate<T, G, false>(x + at, gate + at, wide, count, a.silu);
    if (a.place == kGatedLast) {
      gated_pass<T, kRounding, true>(x + at, y + at, a.scale + at, wide, factors, count);
    } else {
      gated_pass<T, kRounding, false>(x + at, y + at, a.scale + at, wide, factors, count);
    }
  }
}

template <typename T, typename G, int kRounding>
static void gated_kernel(const GatedArgs& a) {
  const T* x = static_cast<const T*>(a.x);
  const G* gate = static_cast<const G*>(a.gate);
  T* y = static_cast<T*>(a.y);
  for (std::int64_t row = 0; row < a.rows; ++row, x += a.size, gate += a.size, y += a.size) {
    if (a.place == kGatedFirst) {
      gated_first<T, G, kRounding>(x, gate, y, a);
    } else {
      gated_behind<T, G, kRounding>(x, gate, y, a);
    }
  }
}

}  // namespace

#endif  // RMSNORM_DEPLOY_CPU_ISA_GATED_H_
