// The kernels of rows.cuh for one element type, as a table.
#ifndef RMSNORM_DEPLOY_CUDA_ROWS_LAUNCH_CUH_
#define RMSNORM_DEPLOY_CUDA_ROWS_LAUNCH_CUH_

#include "kernels.h"
#include "rows.cuh"

namespace rmsnorm_deploy {
namespace cuda {

template <typename T, typename S, bool kResidual>
RowKernels row_kernels() noexcept {
  return {rows_kernel<T, S, 1, kResidual>, rows_kernel<T, S, 2, kResidual>, rows_kernel<T, S, 4, kResidual>,
          long_rows_kernel<T, S, kResidual>};
}

template <typename T, typename S>
RowKernels row_kernels(bool residual) noexcept {
  return residual ? row_kernels<T, S, true>() : row_kernels<T, S, false>();
}

// A 16-bit type: scale and bias are of that type, or float32.
template <typename T>
RowKernels row_kernels(bool wide_scale, bool residual) noexcept {
  return wide_scale ? row_kernels<T, float>(residual) : row_kernels<T, T>(residual);
}

}  // namespace cuda
}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CUDA_ROWS_LAUNCH_CUH_
