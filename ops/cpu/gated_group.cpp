#include "gated_group.h"

#include "../include/rms_norm_gated.h"
#include "address.h"
#include "formula.h"
#include "scalar.h"

namespace rmsnorm_deploy {
namespace {

// exp(-a) for a that is not negative; a NaN stays one. About one ULP off. The library needs no other function of libm.
double exp_of_minus(double a) noexcept {
  if (a > 746.0) return 0.0;
  constexpr double kWhole = 0x1.8p52;  // doubles of this size are whole numbers: the addition rounds
  constexpr double kLog2High = 0x1.62e42fefap-1;
  constexpr double kLog2Low = 0x1.cf79abc9e3b3ap-40;
  const double k = (-a * 0x1.71547652b82fep0 + kWhole) - kWhole;
  const double r = (-a - k * kLog2High) - k * kLog2Low;
  double sum = 1.0;
  for (int i = 14; i > 0; --i) sum = 1.0 + sum * r / i;
  return std::isnan(k) ? k : std::ldexp(sum, static_cast<int>(k));
}

double activated(double z, bool silu) noexcept {
  const double small = exp_of_minus(std::fabs(z));
  const double sigmoid = (z < 0 ? small : 1.0) / (1.0 + small);
  return silu ? z * sigmoid : sigmoid;
}

double value_of(const void* base, std::int64_t index, std::int32_t type) noexcept {
  switch (type) {
    case RMS_NORM_FLOAT32:
      return widen(*at<float>(base, index));
    case RMS_NORM_FLOAT16:
      return widen(*at<Half>(base, index));
    case RMS_NORM_BFLOAT16:
      return widen(*at<Bfloat>(base, index));
    default:
      return *at<double>(base, index);
  }
}

template <typename T>
void group(const GatedGroup& a) noexcept {
  const auto gate = [&a](std::int64_t i) { return activated(value_of(a.gate, i * a.step, a.gate_type), a.silu); };
  const auto entered = [&](std::int64_t i) {
    const double x = widen(*at<T>(a.x, i * a.step));
    return a.place == RMS_NORM_GATED_FIRST ? x * gate(i) : x;
  };
  constexpr int kChains = 8;
  double sums[kChains] = {};
  for (std::int64_t i = 0; i < a.size; ++i) {
    const double v = entered(i);
    sums[i % kChains] += v * v;
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  const double rms = rms_of(total / static_cast<double>(a.size), a.attributes);
  const auto round = [&a](double value) { return round_to(value, a.round_type); };
  for (std::int64_t i = 0; i < a.size; ++i) {
    double n = round(entered(i) / rms);
    if (a.place == RMS_NORM_GATED_NORMALISED) n = round(n * gate(i));
    double y = round(n * a.scale[i * a.scale_step]);
    if (a.place == RMS_NORM_GATED_LAST) y *= gate(i);
    narrow(y, *at<T>(a.y, i * a.step));
  }
}

}  // namespace

void gated_group(const GatedGroup& a) noexcept {
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
