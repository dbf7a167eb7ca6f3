#include "strided.cuh"

namespace rmsnorm_deploy {
namespace cuda {
namespace {

template <typename T>
StridedKernels strided_kernels() noexcept {
  return {strided_kernel<T, 1, 0>, strided_kernel<T, kChunk<T>, 0>, strided_kernel<T, kChunk<T>, kKeptChunks>};
}

}  // namespace

StridedKernels float32_strided() noexcept { return strided_kernels<float>(); }
StridedKernels float16_strided() noexcept { return strided_kernels<Half>(); }
StridedKernels bfloat16_strided() noexcept { return strided_kernels<Bfloat>(); }

}  // namespace cuda
}  // namespace rmsnorm_deploy
