// A norm in float64 arithmetic: one value at a time, on any machine.
#ifndef RMSNORM_DEPLOY_CPU_FLOAT64_H_
#define RMSNORM_DEPLOY_CPU_FLOAT64_H_

#include <cstdint>

#include "table.h"

namespace rmsnorm_deploy {

// One norm group in float64: `size` values that are `step` elements apart.
struct Float64Args {
  const void* x;
  const void* residual;
  void* y;
  void* sum;
  const double* scale;
  const double* bias;
  std::int64_t scale_step;
  std::int64_t bias_step;
  std::int64_t size;
  std::int64_t measured;
  std::int64_t step;
  std::int32_t x_type;
  std::int32_t round_type;
  Attributes attributes;
};

void float64_group(const Float64Args& args) noexcept;

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CPU_FLOAT64_H_
