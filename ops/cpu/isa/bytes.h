// Rows of float32 whose result is wanted in 8 bits: it becomes bytes before it is stored anywhere. No scale here is
// more than kMostModerate, and the mean is that of the whole row, so that x / rms can neither overflow nor be so small
// that it matters.
#ifndef RMSNORM_DEPLOY_CPU_ISA_BYTES_H_
#define RMSNORM_DEPLOY_CPU_ISA_BYTES_H_

#include "quantise.h"
#include "rows.h"

namespace {

// y of one row in 8 bits, and as it is where `y` is given.
template <int kQuantised, bool kDivide>
INLINE void exact_bytes_pass(const float* x, float* y, const float* scale, Factor factor, std::int64_t size,
                             const Blocks<kQuantised>& blocks, unsigned char* to) {
  const Vector high = set1(factor.high);
  const Vector low = set1(factor.low);
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Vector v = finished<float, kPlain, kRoundOnce, kDivide>(load(x + i), high, low, load(scale + i), set1(0));
    if (y) store(y + i, v);
    store_bytes(to + i, blocks.divided(v));
  }
  if (i < size) {
    const std::int64_t count = size - i;
    const Vector s = load_first(scale + i, count);
    const Vector v = finished<float, kPlain, kRoundOnce, kDivide>(load_first(x + i, count), high, low, s, set1(0));
    if (y) store_first(y + i, v, count);
    store_bytes_first(to + i, blocks.divided(v), count);
  }
}

// The same for any row.
template <int kQuantised>
__attribute__((noinline, cold)) static void any_bytes_pass(const float* x, float* y, const float* scale, Factor factor,
                                                           bool divides, std::int64_t size,
                                                           const Blocks<kQuantised>& blocks, unsigned char* to) {
  if (divides) {
    exact_bytes_pass<kQuantised, true>(x, y, scale, factor, size, blocks, to);
  } else {
    exact_bytes_pass<kQuantised, false>(x, y, scale, factor, size, blocks, to);
  }
}

// The same by products. Without y, x times scale is near enough: y is 3 roundings off what it stands for, the product
// and the multiplier 2.
template <int kQuantised, bool kKeeps>
INLINE void bytes_pass(const float* x, float* y, const float* scale, Factor factor, std::int64_t size,
                       const Blocks<kQuantised>& blocks, unsigned char* to) {
  const Vector high = set1(factor.high);
  const Vector low = set1(factor.low);
  const double all = static_cast<double>(factor.high) + static_cast<double>(factor.low);
  float multiplier;
  if (__builtin_expect(!blocks.multiplier(kKeeps ? 1.0 : all, &multiplier), 0)) {
    return any_bytes_pass<kQuantised>(x, y, scale, factor, false, size, blocks, to);
  }
  const std::int64_t i = in_blocks(
      size,
      [&](std::int64_t from) __attribute__((always_inline)) {
        Vector v[kBlock];
#pragma GCC unroll 4
        for (int k = 0; k < kBlock; ++k) {
          const std::int64_t at = from + k * kLanes;
          if constexpr (kKeeps) {
            v[k] = finished<float, kPlain, kRoundOnce, false>(load(x + at), high, low, load(scale + at), set1(0));
            store(y + at, v[k]);
          } else {
            v[k] = load(x + at) * load(scale + at);
          }
        }
        return blocks.put(v, set1(multiplier), to + from);
      },
      [&](std::int64_t at, std::int64_t count) __attribute__((always_inline)) {
        if constexpr (kKeeps) {  // x may be y, and gone
          for (const std::int64_t end = at + count; at < end; at += kLanes) {
            store_bytes(to + at, blocks.divided(load(y + at)));
          }
        } else {
          any_bytes_pass<kQuantised>(x + at, nullptr, scale + at, factor, false, count, blocks, to + at);
        }
      });
  if (i < size) {
    exact_bytes_pass<kQuantised, false>(x + i, kKeeps ? y + i : nullptr, scale + i, factor, size - i, blocks, to + i);
  }
}

template <int kMode, int kQuantised>
static void bytes_kernel(const OutputsArgs& a) {
  constexpr bool kAdds = kMode == kResidual;
  const std::int64_t size = a.size;
  const float* const x = static_cast<const float*>(a.x);
  const float* const residual = kAdds ? static_cast<const float*>(a.residual) : x;
  float* const sum = kAdds ? static_cast<float*>(a.sum) : nullptr;
  float* const y = static_cast<float*>(a.y);
  const Blocks<kQuantised> blocks(a.quantised_scale[0], a.zero_point[0]);
  in_batches(
      a.rows, rows_together(size), a.measured, a.attributes, a.factors,
      [&](std::int64_t row, std::int64_t) __attribute__((always_inline)) {
        return first_pass<float, kMode, false>(x + row * a.x_step, residual + row * a.residual_step,
                                               kAdds ? sum + row * a.sum_step : nullptr, size, a.measured, a.attributes,
                                               NothingElse{});
      },
      [&](std::int64_t row, std::int64_t batch, const RowFactors& factors) __attribute__((always_inline)) {
        for (std::int64_t i = 0; i < batch; ++i, ++row) {
          const float* const values = kAdds ? sum + row * a.sum_step : x + row * a.x_step;
          float* const kept = y ? y + row * a.y_step : nullptr;
          unsigned char* const to = static_cast<unsigned char*>(a.quantised) + row * a.quantised_step;
          const Factor factor = {factors.high[i], factors.low[i]};
          if (__builtin_expect(factors.divides[i], 0)) {
            any_bytes_pass<kQuantised>(values, kept, a.scale, factor, true, size, blocks, to);
          } else if (y) {
            bytes_pass<kQuantised, true>(values, kept, a.scale, factor, size, blocks, to);
          } else {
            bytes_pass<kQuantised, false>(values, nullptr, a.scale, factor, size, blocks, to);
          }
        }
      });
}

// The ends of the range of x times scale, and of zero, which is in every range that is asked for here.
struct Products {
  static constexpr bool kWhole = true;
  const float* scale;
  Ends ends;
  ALWAYS_INLINE void operator()(Vector v, std::int64_t at) { ends.take(v * load(scale + at)); }
  ALWAYS_INLINE void first(Vector v, std::int64_t at, std::int64_t count) {
    ends.take(v * load_first(scale + at, count));
  }
  ALWAYS_INLINE void two(Vector v, Vector w, std::int64_t at) {
    ends.take(v * load(scale + at), w * load(scale + at + kLanes));
  }
};

template <bool kDivide>
INLINE void ends_of(const float* x, const float* scale, Factor factor, std::int64_t size, float* least, float* most) {
  const Vector high = set1(factor.high);
  const Vector low = set1(factor.low);
  ExactEnds ends = {set1(*least), set1(*most)};
  const auto take = [&](Vector v, Vector s) __attribute__((always_inline)) {
    ends.take(finished<float, kPlain, kRoundOnce, kDivide>(v, high, low, s, set1(0)));
  };
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) take(load(x + i), load(scale + i));
  if (i < size) take(load_first(x + i, size - i), load_first(scale + i, size - i));
  *least = ends.least();
  *most = ends.most();
}

static void ends_kernel(const float* x, const float* scale, const RowFactors& factors, std::int64_t row,
                        std::int64_t size, float* least, float* most) {
  const Factor factor = {factors.high[row], factors.low[row]};
  if (factors.divides[row]) {
    ends_of<true>(x, scale, factor, size, least, most);
  } else {
    ends_of<false>(x, scale, factor, size, least, most);
  }
}

// Makes of the ends of x times scale those of y, for `count` pieces from `begin` on, the factors of which are `step`
// entries apart.
INLINE void scale_ends(const PieceEnds& ends, std::int64_t begin, std::int64_t count, const RowFactors& factors,
                       std::int64_t step) {
  float* __restrict const least = ends.least + begin;
  float* __restrict const most = ends.most + begin;
  float* __restrict const margin = ends.margin + begin;
  for (std::int64_t i = 0; i < count; ++i) {
    const float factor = factors.high[i * step];
    least[i] *= factor;
    most[i] *= factor;
    // What is added covers what is subnormal, or was made zero, on the way to a product or to y.
    const float off = (most[i] - least[i]) * Ends::kOff + (factor * 0x1p-124f + 0x1p-90f);
    margin[i] = off < __builtin_inff() && !factors.divides[i * step] ? off : __builtin_inff();
  }
}

// Where the ends are not worth an estimate.
INLINE void leave_ends(const PieceEnds& ends, std::int64_t begin, std::int64_t count) {
  for (std::int64_t i = begin; i < begin + count; ++i) {
    ends.least[i] = ends.most[i] = 0.0f;
    ends.margin[i] = __builtin_inff();
  }
}

template <int kMode, bool kFew>
INLINE void ranges(const RangesArgs& a) {
  constexpr bool kAdds = kMode == kResidual;
  const std::int64_t size = a.size;
  const float* const x = static_cast<const float*>(a.x);
  const float* const residual = kAdds ? static_cast<const float*>(a.residual) : x;
  float* const sum = kAdds ? static_cast<float*>(a.sum) : nullptr;
  const std::int64_t pieces = (size + kChunk - 1) / kChunk;
  in_batches(
      a.rows, rows_together(size), size, a.attributes, {},
      [&](std::int64_t row, std::int64_t) __attribute__((always_inline)) {
        const auto pass = [&](std::int64_t begin, std::int64_t count, auto&& also,
                              const Wide& total) __attribute__((always_inline)) {
          const std::int64_t at = row * size + begin;
          return first_pass<float, kMode, false>(x + at, residual + at, kAdds ? sum + at : nullptr, count, count,
                                                 a.attributes, also, total);
        };
        Wide total = wide_zero();
        if constexpr (kFew) return pass(0, size, NothingElse{}, total);
        std::int64_t begin = 0;
        std::int64_t piece = row * pieces;
        do {
          Products products = {a.scale + begin, {}};
          total = pass(begin, size - begin < kChunk ? size - begin : kChunk, products, total);
          a.ends.least[piece] = products.ends.least();
          a.ends.most[piece] = products.ends.most();
          ++piece;
        } while ((begin += kChunk) < size);
        return total;
      },
      [&](std::int64_t row, std::int64_t batch, const RowFactors& factors) __attribute__((always_inline)) {
        for (std::int64_t i = 0; i < batch; ++i) {
          a.factors.high[row + i] = factors.high[i];
          a.factors.low[row + i] = factors.low[i];
          a.factors.divides[row + i] = factors.divides[i];
        }
        if constexpr (kFew) {
          leave_ends(a.ends, row * pieces, batch * pieces);
        } else if (pieces == 1) {
          scale_ends(a.ends, row, batch, factors, 1);
        } else {
          for (std::int64_t i = 0; i < batch; ++i) {
            const RowFactors one = {factors.high + i, factors.low + i, factors.divides + i};
            scale_ends(a.ends, (row + i) * pieces, pieces, one, 0);
          }
        }
      });
}

template <int kMode>
static void ranges_kernel(const RangesArgs& a) {
  if (a.few) return ranges<kMode, true>(a);
  ranges<kMode, false>(a);
}

}  // namespace

#endif  // RMSNORM_DEPLOY_CPU_ISA_BYTES_H_
