#include "strided.cuh"

namespace rmsnorm_deploy {
namespace cuda {

Kernel float64_kernel(std::int32_t x_type) noexcept {
  switch (x_type) {
    case RMS_NORM_FLOAT32:
      return float64_strided_kernel<float>;
    case RMS_NORM_FLOAT16:
      return float64_strided_kernel<Half>;
    case RMS_NORM_BFLOAT16:
      return float64_strided_kernel<Bfloat>;
    default:
      return float64_strided_kernel<double>;
  }
}

}  // namespace cuda
}  // namespace rmsnorm_deploy
