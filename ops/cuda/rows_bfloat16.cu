#include "rows_launch.cuh"

namespace rmsnorm_deploy {
namespace cuda {

RowKernels bfloat16_rows(bool wide_scale, bool residual, int form) noexcept {
  return row_kernels<Bfloat>(wide_scale, residual, form);
}

}  // namespace cuda
}  // namespace rmsnorm_deploy
