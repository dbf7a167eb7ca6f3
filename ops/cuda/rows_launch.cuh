// The kernels of rows.cuh for one element type, as a table.
#ifndef RMSNORM_DEPLOY_CUDA_ROWS_LAUNCH_CUH_
#define RMSNORM_DEPLOY_CUDA_ROWS_LAUNCH_CUH_

#include "kernels.h"
#include "rows.cuh"

namespace rmsnorm_deploy {
namespace cuda {

// Four chunks to a thread bring more bytes in flight only where nothing else needs registers.
template <typename T, typename S, bool kResidual, int kForm>
RowKernels row_kernels() noexcept {
  RowKernel chunks4 = nullptr;
  if constexpr (!kResidual && sizeof(S) == sizeof(T) && kForm != kAnyForm) {
    chunks4 = rows_kernel<T, S, 4, kResidual, kForm>;
  }
  return {rows_kernel<T, S, 2, kResidual, kForm>, chunks4, long_rows_kernel<T, S, kResidual>};
}

template <typename T, typename S, int kForm>
RowKernels row_kernels(bool residual) noexcept {
  return residual ? row_kernels<T, S, true, kForm>() : row_kernels<T, S, false, kForm>();
}

template <typename T, typename S>
RowKernels row_kernels(bool residual, int form) noexcept {
  if constexpr (sizeof(T) == 2) {
    if (form == kTwoRoundings) {
      // One for both types of scale: this form rounds a float32 scale as it loads it.
      RowKernels kernels = row_kernels<T, T, kTwoRoundings>(residual);
      kernels.longer = residual ? long_rows_kernel<T, S, true> : long_rows_kernel<T, S, false>;
      return kernels;
    }
  }
  return form == kOneRounding ? row_kernels<T, S, kOneRounding>(residual) : row_kernels<T, S, kAnyForm>(residual);
}

// A 16-bit type: scale and bias are of that type, or float32.
template <typename T>
RowKernels row_kernels(bool wide_scale, bool residual, int form) noexcept {
  return wide_scale ? row_kernels<T, float>(residual, form) : row_kernels<T, T>(residual, form);
}

}  // namespace cuda
}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CUDA_ROWS_LAUNCH_CUH_
