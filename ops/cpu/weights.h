// Scale and bias as the kernels want them.
#ifndef RMSNORM_DEPLOY_CPU_WEIGHTS_H_
#define RMSNORM_DEPLOY_CPU_WEIGHTS_H_

#include <cstdint>
#include <memory>

#include "../include/rms_norm.h"

namespace rmsnorm_deploy {

// A scale or bias in the arithmetic type, expanded over the normalised dimensions: [distinct, size] where it is the
// same in all columns, else [distinct, size, inner]. `distinct` counts the leading positions at which it differs.
struct Weights {
  const void* data = nullptr;
  std::unique_ptr<unsigned char[]> owned;  // empty where the caller's memory has that layout already
  bool by_column = false;
  std::int64_t outer_strides[RMS_NORM_MAX_RANK];  // in elements of `data`; set for the leading dimensions only

  // Take the values at `given`, of params.scale_type, with their strides along the dimensions of x. `float64`: the
  // arithmetic is in that type. `already_rounded`: the values are of round_type. False where there is no memory.
  bool lay_out(const rms_norm_params& params, const void* given, const std::int64_t* strides, bool float64,
               bool already_rounded);

  // Where the values for a position along the leading dimensions begin, in elements of `data`.
  std::int64_t offset(const rms_norm_params& params, std::int64_t outer) const noexcept;
};

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CPU_WEIGHTS_H_
