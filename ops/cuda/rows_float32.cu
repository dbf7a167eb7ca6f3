#include "rows_launch.cuh"

namespace rmsnorm_deploy {
namespace cuda {

RowKernels float32_rows(bool, bool residual, int form) noexcept { return row_kernels<float, float>(residual, form); }

}  // namespace cuda
}  // namespace rmsnorm_deploy
