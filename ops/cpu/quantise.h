// QuantizeLinear on the CPU: of a run of values, and what the contract says of its scale and zero point.
#ifndef RMSNORM_DEPLOY_CPU_QUANTISE_H_
#define RMSNORM_DEPLOY_CPU_QUANTISE_H_

#include <cstdint>

#include "../include/rms_norm.h"

namespace rmsnorm_deploy {

// Index of a type of quantised output in the tables of kernels.
int quantised_index(std::int32_t type) noexcept;

// Scale and zero point, from the index `first` on, as numbers. `params` has a quantised output, and says their types.
void quantised_values(const rms_norm_params& params, const void* scale, const void* zero_point, std::int64_t first,
                      std::int64_t count, float* scales, std::int32_t* zero_points) noexcept;

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CPU_QUANTISE_H_
