// Rows that lie apart, or whose results go elsewhere than into y of x's type: the passes of rows.h, and then, piece by
// piece while it is in the first-level cache, what else is made of a row's result.
#ifndef RMSNORM_DEPLOY_CPU_ISA_OUTPUTS_H_
#define RMSNORM_DEPLOY_CPU_ISA_OUTPUTS_H_

#include "rows.h"

namespace {

// Most values of a row that are finished at once.
constexpr std::int64_t kPiece = 2048;

// What is done with `count` results of row `row` from column `at` on.
INLINE void hand_over(const OutputsArgs& a, const void* result, std::int64_t row, std::int64_t at, std::int64_t count,
                      unsigned char* narrowed) {
  unsigned char* const y =
      a.y ? static_cast<unsigned char*>(a.y) + (row * a.y_step + at) * a.y_bytes : static_cast<unsigned char*>(nullptr);
  if (a.narrow) {
    unsigned char* const to = y ? y : narrowed;
    a.narrow(static_cast<const float*>(result), to, count);
    result = to;
  } else if (a.widen) {
    a.widen(result, reinterpret_cast<float*>(y), count);
  }
  if (a.extremes) {
    float least = __builtin_inff(), most = -__builtin_inff();
    if (at) {
      least = a.least ? a.least[row] : least;
      most = a.most ? a.most[row] : most;
    }
    a.extremes(result, count, &least, &most);
    if (a.least) a.least[row] = least;
    if (a.most) a.most[row] = most;
  }
  if (a.quantise) {
    const std::int64_t which = a.by_row ? row : 0;
    a.quantise(result, static_cast<unsigned char*>(a.quantised) + row * a.quantised_step + at, count,
               a.quantised_scale[which], a.zero_point[which]);
  }
}

// R: the type of the result, T or float.
template <typename T, typename R, int kMode, int kRounding>
static void outputs_kernel(const OutputsArgs& a) {
  constexpr bool kAdds = kMode == kResidual || kMode == kResidualBias;
  constexpr bool kHasBias = kMode == kBias || kMode == kResidualBias;
  constexpr bool kWidens = sizeof(T) == 2 && (kAdds || !kCheapLoads<T>);
  const std::int64_t size = a.size;
  const T* const x = static_cast<const T*>(a.x);
  const T* const residual = kAdds ? static_cast<const T*>(a.residual) : x;
  T* const sum = kAdds ? static_cast<T*>(a.sum) : nullptr;
  const std::int64_t residual_step = kAdds ? a.residual_step : a.x_step;
  const std::int64_t sum_step = kAdds ? a.sum_step : 0;
  const bool widens = kWidens && size <= kScratch;
  const bool direct = a.y && !a.narrow && !a.widen;
  const bool more = a.narrow || a.widen || a.extremes || a.quantise;
  const std::int64_t piece = more ? kPiece : size;
  alignas(64) float wide[kWidens ? kScratch : 1];
  alignas(64) R scratch[kPiece];
  alignas(64) unsigned char narrowed[sizeof(R) == 4 ? 2 * kPiece : 1];
  in_batches(
      a.rows, rows_together(size), a.measured, a.attributes, {},
      [&](std::int64_t row, std::int64_t i) __attribute__((always_inline)) {
        const T* const from = x + row * a.x_step;
        const T* const other = residual + row * residual_step;
        T* const to = kAdds ? sum + row * sum_step : nullptr;
        if (widens) {
          return first_pass<T, kMode, false>(from, other, to, size, a.measured, a.attributes,
                                             widening<kWidens>(wide + i * size));
        }
        return first_pass<T, kMode, false>(from, other, to, size, a.measured, a.attributes, NothingElse{});
      },
      [&](std::int64_t row, std::int64_t batch, const RowFactors& factors) __attribute__((always_inline)) {
        for (std::int64_t i = 0; i < batch; ++i, ++row) {
          const T* const values = kAdds ? sum + row * sum_step : x + row * a.x_step;
          for (std::int64_t at = 0; at < size; at += piece) {
            const std::int64_t count = size - at < piece ? size - at : piece;
            R* const to = direct ? static_cast<R*>(a.y) + row * a.y_step + at : scratch;
            const float* const bias = kHasBias ? a.bias + at : nullptr;
            if (widens) {
              second_pass<R, float, kMode, kRounding, false>(wide + i * size + at, to, a.scale + at, bias, factors, i,
                                                             count, to);
            } else {
              second_pass<R, T, kMode, kRounding, false>(values + at, to, a.scale + at, bias, factors, i, count, to);
            }
            if (more) hand_over(a, to, row, at, count, narrowed);
          }
        }
      });
}

}  // namespace

#endif  // RMSNORM_DEPLOY_CPU_ISA_OUTPUTS_H_
