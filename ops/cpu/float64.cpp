#include "float64.h"

#include <algorithm>

#include "formula.h"
#include "scalar.h"

namespace rmsnorm_deploy {
namespace {

template <typename T>
void group(const Float64Args& a) noexcept {
  const T* x = static_cast<const T*>(a.x);
  if (a.residual) {
    const T* residual = static_cast<const T*>(a.residual);
    T* sum = static_cast<T*>(a.sum);
    for (std::int64_t i = 0; i < a.size; ++i) {
      narrow(combined(widen(x[i * a.step]), widen(residual[i * a.step]), a.attributes), sum[i * a.step]);
    }
    x = sum;
  }
  // Several chains, and a fresh start every so often, keep the error of a long sum small.
  constexpr int kChains = 8;
  constexpr std::int64_t kBlock = 512;
  double total = 0;
  for (std::int64_t i = 0; i < a.measured;) {
    double sums[kChains] = {};
    const std::int64_t end = std::min(a.measured, i + kBlock);
    for (; i + kChains <= end; i += kChains) {
      for (int k = 0; k < kChains; ++k) {
        const double v = widen(x[(i + k) * a.step]);
        sums[k] += v * v;
      }
    }
    for (; i < end; ++i) {
      const double v = widen(x[i * a.step]);
      sums[0] += v * v;
    }
    total += ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }
  const double rms = rms_of(total / static_cast<double>(a.measured), a.attributes);
  const auto round = [&a](double value) { return round_to(value, a.round_type); };
  T* y = static_cast<T*>(a.y);
  for (std::int64_t i = 0; i < a.size; ++i) {
    const double n = widen(x[i * a.step]) / rms;
    const double s = a.scale[i * a.scale_step];
    const double v = a.bias ? scaled<true>(n, s, a.bias[i * a.bias_step], round) : scaled<false>(n, s, 0.0, round);
    narrow(round(v), y[i * a.step]);
  }
}

}  // namespace

void float64_group(const Float64Args& a) noexcept {
  switch (a.x_type) {
    case RMS_NORM_FLOAT32:
      return group<float>(a);
    case RMS_NORM_FLOAT16:
      return group<Half>(a);
    case RMS_NORM_BFLOAT16:
      return group<Bfloat>(a);
    default:
      return group<double>(a);
  }
}

}  // namespace rmsnorm_deploy
