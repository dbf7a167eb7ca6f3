// Rows with a gate, that lie one behind the other: the passes of rows.h around an activation. Rows go piece by piece
// through memory that stays in the first-level cache.
#ifndef RMSNORM_DEPLOY_CPU_ISA_GATED_H_
#define RMSNORM_DEPLOY_CPU_ISA_GATED_H_

#include "activation.h"
#include "rows.h"

namespace {

// Values that are multiplied by their gates at once. Rows up to this length are so once, longer ones in each pass.
constexpr std::int64_t kGatePiece = 4096;

// Vectors whose gates are activated together.
constexpr int kGates = 4;

// Activates a gate. `whole` is given where each vector of it begins, and the vector; `last` what is left of fewer
// values than lanes, and how many.
template <bool kSilu, bool kCoarse, typename G, typename Whole, typename Last>
INLINE void activate_each(const G* gate, std::int64_t size, Whole&& whole, Last&& last) {
  std::int64_t i = 0;
  Vector g[kGates];
  for (; i + kGates * kLanes <= size; i += kGates * kLanes) {
#pragma GCC unroll 4
    for (int k = 0; k < kGates; ++k) g[k] = load(gate + i + k * kLanes);
    activate<kSilu, kCoarse, kGates>(g);
#pragma GCC unroll 4
    for (int k = 0; k < kGates; ++k) whole(i + k * kLanes, g[k]);
  }
  for (; i + kLanes <= size; i += kLanes) {
    g[0] = load(gate + i);
    activate<kSilu, kCoarse, 1>(g);
    whole(i, g[0]);
  }
  if (i < size) {
    g[0] = load_first(gate + i, size - i);
    activate<kSilu, kCoarse, 1>(g);
    last(i, g[0], size - i);
  }
}

// x times the activated gate.
template <typename T, typename G, bool kSilu>
INLINE void multiply(const T* x, const G* gate, float* to, std::int64_t count) {
  activate_each<kSilu, sizeof(T) == 2>(
      gate, count, [&](std::int64_t at, Vector g) __attribute__((always_inline)) { store(to + at, load(x + at) * g); },
      [&](std::int64_t at, Vector g, std::int64_t rest)
          __attribute__((always_inline)) { store_first(to + at, load_first(x + at, rest) * g, rest); });
}

template <typename T, typename G>
static void multiply(const T* x, const G* gate, float* to, std::int64_t count, bool silu) {
  if (silu) {
    multiply<T, G, true>(x, gate, to, count);
  } else {
    multiply<T, G, false>(x, gate, to, count);
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

template <typename T, typename G, int kRounding, bool kLast, bool kSilu, bool kDivide>
INLINE void gated_values(const T* x, const G* gate, T* y, const float* scale, Factor factor, std::int64_t size) {
  const Vector high = set1(factor.high);
  const Vector low = set1(factor.low);
  activate_each<kSilu, sizeof(T) == 2>(
      gate, size,
      [&](std::int64_t at, Vector g) __attribute__((always_inline)) {
        const Vector n = divided<T, kDivide>(load(x + at), high, low);
        store(y + at, gated<T, kRounding, kLast>(n, load(scale + at), g));
      },
      [&](std::int64_t at, Vector g, std::int64_t rest) __attribute__((always_inline)) {
        const Vector n = divided<T, kDivide>(load_first(x + at, rest), high, low);
        store_first(y + at, gated<T, kRounding, kLast>(n, load_first(scale + at, rest), g), rest);
      });
}

// y of one row whose gate comes behind the norm.
template <typename T, typename G, int kRounding, bool kLast, bool kSilu>
static void gated_pass(const T* x, const G* gate, T* y, const float* scale, const Factors& factors, int row,
                       std::int64_t size) {
  const Factor factor = {factors.high[row], factors.low[row]};
  if (factors.divides[row]) {
    gated_values<T, G, kRounding, kLast, kSilu, true>(x, gate, y, scale, factor, size);
  } else {
    gated_values<T, G, kRounding, kLast, kSilu, false>(x, gate, y, scale, factor, size);
  }
}

// x times the gate is normalised. Of rows longer than a piece there is one.
template <typename T, typename G, int kRounding>
static void gated_first(const T* x, const G* gate, T* y, std::int64_t batch, const GatedArgs& a) {
  alignas(64) float wide[kGatePiece];
  const std::int64_t size = a.size;
  const double per_count = 1.0 / static_cast<double>(size);
  Factors factors;
  if (size <= kGatePiece) {
    Wide sums[kBatch];
    multiply<T, G>(x, gate, wide, batch * size, a.silu);
    for (std::int64_t i = 0; i < batch; ++i) {
      const float* row = wide + i * size;
      sums[i] = first_pass<float, kPlain, false>(row, row, wide, size, size, a.attributes, NothingElse{});
    }
    set_batch(factors, sums, batch, per_count, a.attributes);
    for (std::int64_t i = 0; i < batch; ++i) {
      const std::int64_t at = i * size;
      second_pass<T, float, kPlain, kRounding, false>(wide + at, y + at, a.scale, nullptr, factors.all(), i, size, x);
    }
    return;
  }
  double total = 0;
  for (std::int64_t at = 0; at < size; at += kGatePiece) {
    const std::int64_t count = size - at < kGatePiece ? size - at : kGatePiece;
    multiply<T, G>(x + at, gate + at, wide, count, a.silu);
    total += wide_sum(first_pass<float, kPlain, false>(wide, wide, wide, count, count, a.attributes, NothingElse{}));
  }
  set_factor(factors, 0, rms_of(total * per_count, a.attributes));
  for (std::int64_t at = 0; at < size; at += kGatePiece) {
    const std::int64_t count = size - at < kGatePiece ? size - at : kGatePiece;
    multiply<T, G>(x + at, gate + at, wide, count, a.silu);
    second_pass<T, float, kPlain, kRounding, false>(wide, y + at, a.scale + at, nullptr, factors.all(), 0, count, x);
  }
}

// The gate comes behind the norm.
template <typename T, typename G, int kRounding, bool kLast>
static void gated_behind(const T* x, const G* gate, T* y, std::int64_t batch, const GatedArgs& a) {
  const std::int64_t size = a.size;
  Wide sums[kBatch];
  for (std::int64_t i = 0; i < batch; ++i) {
    const T* row = x + i * size;
    sums[i] = first_pass<T, kPlain, false>(row, row, y, size, size, a.attributes, NothingElse{});
  }
  Factors factors;
  set_batch(factors, sums, batch, 1.0 / static_cast<double>(size), a.attributes);
  const auto pass = a.silu ? gated_pass<T, G, kRounding, kLast, true> : gated_pass<T, G, kRounding, kLast, false>;
  for (std::int64_t i = 0; i < batch; ++i) {
    const std::int64_t at = i * size;
    pass(x + at, gate + at, y + at, a.scale, factors, static_cast<int>(i), size);
  }
}

template <typename T, typename G, int kRounding>
static void gated_kernel(const GatedArgs& a) {
  static_assert(kBatchValues <= kGatePiece, "a batch is multiplied at once");
  const T* x = static_cast<const T*>(a.x);
  const G* gate = static_cast<const G*>(a.gate);
  T* y = static_cast<T*>(a.y);
  const std::int64_t most = rows_together(a.size);
  for (std::int64_t row = 0; row < a.rows;) {
    const std::int64_t batch = a.rows - row < most ? a.rows - row : most;
    if (a.place == kGatedFirst) {
      gated_first<T, G, kRounding>(x, gate, y, batch, a);
    } else if (a.place == kGatedLast) {
      gated_behind<T, G, kRounding, true>(x, gate, y, batch, a);
    } else {
      gated_behind<T, G, kRounding, false>(x, gate, y, batch, a);
    }
    row += batch;
    x += batch * a.size;
    gate += batch * a.size;
    y += batch * a.size;
  }
}

}  // namespace

#endif  // RMSNORM_DEPLOY_CPU_ISA_GATED_H_
