#include "gated_values.cuh"

namespace rmsnorm_deploy {
namespace cuda {

GatedKernel gated_values(std::int32_t x_type, bool float64) noexcept {
  switch (x_type) {
    case RMS_NORM_FLOAT16:
      return float64 ? float64_gated_values_kernel<Half> : gated_values_kernel<Half>;
    case RMS_NORM_BFLOAT16:
      return float64 ? float64_gated_values_kernel<Bfloat> : gated_values_kernel<Bfloat>;
    case RMS_NORM_FLOAT64:
      return float64_gated_values_kernel<double>;
    default:
      return float64 ? float64_gated_values_kernel<float> : gated_values_kernel<float>;
  }
}

}  // namespace cuda
}  // namespace rmsnorm_deploy
