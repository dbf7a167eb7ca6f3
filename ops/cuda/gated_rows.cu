#include "gated_rows.cuh"

namespace rmsnorm_deploy {
namespace cuda {

GatedRowKernel gated_rows(std::int32_t x_type) noexcept {
  switch (x_type) {
    case RMS_NORM_FLOAT16:
      return gated_rows_kernel<Half>;
    case RMS_NORM_BFLOAT16:
      return gated_rows_kernel<Bfloat>;
    default:
      return gated_rows_kernel<float>;
  }
}

}  // namespace cuda
}  // namespace rmsnorm_deploy
