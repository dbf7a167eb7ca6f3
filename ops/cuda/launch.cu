// The exported half of the contract on the GPU.
#include <cuda_runtime.h>

#include "../contract/versions.h"
#include "../include/rms_norm_cuda.h"
#include "plan.h"

namespace rmsnorm_deploy {
namespace cuda {
namespace {

// More than this has to be asked for, kernel by kernel.
constexpr unsigned kOrdinarySharedBytes = 48 * 1024;

cudaError_t describe(Device& device) {
  int current = 0;
  cudaError_t error = cudaGetDevice(&current);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount, current);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&device.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, current);
  }
  return error;
}

cudaError_t start(const Launch& launch, const Device& device, cudaStream_t stream) {
  if (launch.shared_bytes > kOrdinarySharedBytes) {
    // Always the most there is: the limit belongs to the kernel, so that a lower one would fail the launch of another
    // thread, or of a graph that is being captured.
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(launch.kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared_bytes);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t configuration = {};
  configuration.gridDim = dim3(launch.blocks);
  configuration.blockDim = dim3(launch.threads);
  configuration.dynamicSmemBytes = launch.shared_bytes;
  configuration.stream = stream;
  return cudaLaunchKernelEx(&configuration, launch.kernel, launch.args);
}

}  // namespace
}  // namespace cuda
}  // namespace rmsnorm_deploy

extern "C" {

int rmsnorm_deploy_cuda_run(const rms_norm_params* params, void* stream) {
  using namespace rmsnorm_deploy::cuda;
  if (!params) return RMS_NORM_BAD_POINTER;
  Device device = {};
  cudaError_t error = describe(device);
  Launch launch;
  rms_norm_params room;
  const int code =
      plan(rmsnorm_deploy::current(*params, room), device, launch);  // wrong params are refused without a device too
  if (code != RMS_NORM_OK || !launch.kernel) return code;
  if (error == cudaSuccess) error = start(launch, device, static_cast<cudaStream_t>(stream));
  return error == cudaSuccess ? RMS_NORM_OK : RMS_NORM_CUDA_ERROR + static_cast<int>(error);
}

const char* rmsnorm_deploy_cuda_error_text(int code) {
  if (code >= RMS_NORM_CUDA_ERROR) return cudaGetErrorString(static_cast<cudaError_t>(code - RMS_NORM_CUDA_ERROR));
  return rmsnorm_deploy_error_text(code);
}

const char* rmsnorm_deploy_cuda_architectures(void) { return RMSNORM_DEPLOY_CUDA_ARCHITECTURES; }

}  // extern "C"
