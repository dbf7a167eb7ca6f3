// One group of a norm with a gate, value by value in double precision: float64, and norms that are not of rows.
#ifndef RMSNORM_DEPLOY_CPU_GATED_GROUP_H_
#define RMSNORM_DEPLOY_CPU_GATED_GROUP_H_

#include <cstdint>

#include "table.h"

namespace rmsnorm_deploy {

struct GatedGroup {
  const void* x;
  const void* gate;
  void* y;
  const double* scale;
  std::int64_t scale_step;  // in elements, from one feature to the next
  std::int64_t step;        // the same for x, gate and y
  std::int64_t size;
  std::int32_t x_type;
  std::int32_t gate_type;
  std::int32_t round_type;
  std::int32_t place;
  bool silu;
  Attributes attributes;
};

void gated_group(const GatedGroup& a) noexcept;

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CPU_GATED_GROUP_H_
