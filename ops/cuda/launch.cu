// The exported half of the contract on the GPU.
#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

#include "../contract/versions.h"
#include "../include/rms_norm_cuda.h"
#include "plan.h"

namespace rmsnorm_deploy {
namespace cuda {
namespace {

// More than this has to be asked for, kernel by kernel.
constexpr unsigned kOrdinarySharedBytes = 48 * 1024;

// Devices whose attributes are remembered; any further one is asked each time.
constexpr int kRemembered = 64;

// Make the device current that x lies on. onnxruntime's CUDA provider as a plug-in sets the device in each of its own
// kernels, on whatever thread that runs, and for nobody else: as the first node on a thread, a norm of a session on
// another device than 0 would meet a stream that is not the current device's. A stream that is being captured has its
// device already, as capturing began on this thread.
cudaError_t follow(const void* x, cudaStream_t stream) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count)) return error;
  if (count < 2) return cudaSuccess;
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  if (const cudaError_t error = cudaStreamIsCapturing(stream, &capturing)) return error;
  if (capturing != cudaStreamCaptureStatusNone) return cudaSuccess;
  cudaPointerAttributes memory = {};
  if (const cudaError_t error = cudaPointerGetAttributes(&memory, x)) return error;
  int current = 0;
  const cudaError_t error = cudaGetDevice(&current);
  // Memory of the host that the device can read belongs to no device.
  if (error != cudaSuccess || memory.type != cudaMemoryTypeDevice || memory.device == current) return error;
  return cudaSetDevice(memory.device);
}

#ifdef RMSNORM_DEPLOY_CUDA_PDL
// Whether the code that the current device runs waits for earlier grids: all kernels are compiled alike.
cudaError_t waits(bool& result) {
  cudaFuncAttributes attributes = {};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(float32_strided().single));
  result = attributes.ptxVersion >= 90;
  return error;
}
#else
cudaError_t waits(bool& result) {
  result = false;
  return cudaSuccess;
}
#endif

// What the current device has. It never changes, and asking the driver takes longer than the rest of a launch's plan.
cudaError_t describe(Device& device) {
  static std::atomic<std::uint64_t> known[kRemembered];  // waits, multiprocessors, shared memory; 0 is not known
  int current = 0;
  cudaError_t error = cudaGetDevice(&current);
  if (error != cudaSuccess) return error;
  const std::uint64_t both = current < kRemembered ? known[current].load(std::memory_order_relaxed) : 0;
  if (both != 0) {
    device.overlaps = both >> 63 != 0;
    device.multiprocessors = static_cast<int>(both >> 32 & 0x7fffffffu);
    device.shared_bytes = static_cast<int>(both & 0xffffffffu);
    return cudaSuccess;
  }
  error = cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount, current);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&device.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, current);
  }
  if (error == cudaSuccess) error = waits(device.overlaps);
  if (error == cudaSuccess && current < kRemembered) {
    known[current].store(static_cast<std::uint64_t>(device.overlaps) << 63 |
                             static_cast<std::uint64_t>(device.multiprocessors) << 32 |
                             static_cast<std::uint64_t>(static_cast<std::uint32_t>(device.shared_bytes)),
                         std::memory_order_relaxed);
  }
  return error;
}

template <typename A>
cudaError_t start(void (*kernel)(A), const A& arguments, const Launch& launch, const Device& device,
                  cudaStream_t stream) {
  if (launch.shared_bytes > kOrdinarySharedBytes) {
    // Always the most there is: the limit belongs to the kernel, so that a lower one would fail the launch of another
    // thread, or of a graph that is being captured.
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared_bytes);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t configuration = {};
  configuration.gridDim = dim3(launch.blocks);
  configuration.blockDim = dim3(launch.threads);
  configuration.dynamicSmemBytes = launch.shared_bytes;
  configuration.stream = stream;
#ifdef RMSNORM_DEPLOY_CUDA_PDL
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  configuration.attrs = &early;
  configuration.numAttrs = device.overlaps ? 1 : 0;
#endif
  return cudaLaunchKernelEx(&configuration, kernel, arguments);
}

cudaError_t start(const Launch& l, const Device& device, cudaStream_t stream) {
  if (l.rows) return start(l.rows, l.row_args, l, device, stream);
  if (l.strided) return start(l.strided, l.args, l, device, stream);
  if (l.output_rows) return start(l.output_rows, OutputRowArgs{l.row_args, l.outputs}, l, device, stream);
  if (l.output_values) return start(l.output_values, OutputArgs{l.args, l.outputs}, l, device, stream);
  if (l.gated_rows) return start(l.gated_rows, GatedRowArgs{l.row_args, l.gate}, l, device, stream);
  if (l.gated_values) return start(l.gated_values, GatedArgs{l.args, l.gate}, l, device, stream);
  return cudaSuccess;
}

// One norm; `gate` may be null.
int run(const rms_norm_params& params, const rms_norm_gate* gate, cudaStream_t stream) {
  Device device = {};
  cudaError_t error = params.x ? follow(params.x, stream) : cudaSuccess;
  if (error == cudaSuccess) error = describe(device);
  Launch launch;
  rms_norm_params room;
  // Wrong params are refused without a device too.
  const int code = plan(current(params, room), gate, device, launch);
  if (code != RMS_NORM_OK || launch.blocks == 0) return code;
  if (error == cudaSuccess) error = start(launch, device, stream);
  return error == cudaSuccess ? RMS_NORM_OK : RMS_NORM_CUDA_ERROR + static_cast<int>(error);
}

}  // namespace
}  // namespace cuda
}  // namespace rmsnorm_deploy

extern "C" {

int rmsnorm_deploy_cuda_run(const rms_norm_params* params, void* stream) {
  if (!params) return RMS_NORM_BAD_POINTER;
  return rmsnorm_deploy::cuda::run(*params, nullptr, static_cast<cudaStream_t>(stream));
}

int rmsnorm_deploy_cuda_run_gated(const rms_norm_params* params, const rms_norm_gate* gate, void* stream) {
  if (!params || !gate) return RMS_NORM_BAD_POINTER;
  return rmsnorm_deploy::cuda::run(*params, gate, static_cast<cudaStream_t>(stream));
}

const char* rmsnorm_deploy_cuda_error_text(int code) {
  if (code >= RMS_NORM_CUDA_ERROR) return cudaGetErrorString(static_cast<cudaError_t>(code - RMS_NORM_CUDA_ERROR));
  return rmsnorm_deploy_error_text(code);
}

const char* rmsnorm_deploy_cuda_architectures(void) { return RMSNORM_DEPLOY_CUDA_ARCHITECTURES; }

int rmsnorm_deploy_cuda_version(void) { return CUDART_VERSION; }

}  // extern "C"
