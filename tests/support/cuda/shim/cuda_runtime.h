// Stands in for the CUDA runtime's header, as far as ops/cuda uses it, so that a host compiler can compile the kernels
// and emulator.cpp can run them. For tests only.
#ifndef RMSNORM_DEPLOY_TESTS_CUDA_RUNTIME_H_
#define RMSNORM_DEPLOY_TESTS_CUDA_RUNTIME_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __shared__
#define __grid_constant__
#define __launch_bounds__(...)

using std::isinf;

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
struct uint2 {
  unsigned x, y;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
struct float2 {
  float x, y;
};
struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;

namespace emulator {
void barrier();
bool barrier_or(bool value);
// Hands `value` to the lanes of `mask` and replaces it by that of lane ^ offset.
void exchange(unsigned mask, void* value, std::size_t bytes, int offset);
// Until earlier grids have ended, in a grid that may begin before that.
void wait_for_earlier_grids();
// `early`: before earlier grids have ended, so that no memory may be touched until every thread waits for them.
void run(const void* kernel, const dim3& grid, const dim3& block, std::size_t shared, bool early,
         const std::function<void()>& thread);
// The same value in all lanes, and up to two units in the last place away, as the device's own estimate may be.
float estimate(double exact);
// The machine: which device is current, how many there are, on which one all memory lies, whether a stream is captured.
// A device that is given other attributes gets another number, as one that keeps its number keeps its attributes.
struct Machine {
  int current = 0;
  int devices = 1;
  int of_memory = 0;
  bool capturing = false;
  int asked = 0;  // attributes, since the device was set
  int ptx = 90;   // architecture that the kernels' code was compiled for
  int early = 0;  // launches that did not wait for earlier grids
};
extern Machine machine;
int attribute(int which);
int failed();  // whether the last run went wrong
}  // namespace emulator

inline void cudaGridDependencySynchronize() { emulator::wait_for_earlier_grids(); }
inline void __syncthreads() { emulator::barrier(); }
inline int __syncthreads_or(int value) { return emulator::barrier_or(value != 0); }
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int offset) {
  emulator::exchange(mask, &value, sizeof value, offset);
  return value;
}
template <typename T>
T __ldg(const T* p) {
  return *p;
}
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline float rsqrtf(float x) { return emulator::estimate(1.0 / std::sqrt(static_cast<double>(x))); }
inline float __fdividef(float x, float y) {
  return emulator::estimate(static_cast<double>(x) / static_cast<double>(y));
}

#define CUDART_VERSION 13000
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorLaunchFailure = 719 };
enum cudaMemoryType { cudaMemoryTypeUnregistered = 0, cudaMemoryTypeHost = 1, cudaMemoryTypeDevice = 2 };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1 };
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
};
enum { cudaDevAttrMultiProcessorCount = 16, cudaDevAttrMaxSharedMemoryPerBlockOptin = 97 };
enum { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
using cudaStream_t = struct CUstream_st*;
enum { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
struct cudaLaunchAttribute {
  int id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaFuncAttributes {
  int ptxVersion;
};
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};
inline const char* cudaGetErrorString(cudaError_t) { return "the emulator says more"; }
inline cudaError_t cudaGetDevice(int* device) {
  *device = emulator::machine.current;
  return cudaSuccess;
}
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = emulator::machine.devices;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int device) {
  emulator::machine.current = device;
  return emulator::machine.capturing ? cudaErrorInvalidValue : cudaSuccess;
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = emulator::machine.capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void*) {
  *found = {cudaMemoryTypeDevice, emulator::machine.of_memory};
  return emulator::machine.capturing ? cudaErrorInvalidValue : cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, int which, int) {
  ++emulator::machine.asked;
  *value = emulator::attribute(which);
  return cudaSuccess;
}
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  attributes->ptxVersion = emulator::machine.ptx;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, int which, int value);
template <typename... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* c, void (*kernel)(A...), const A&... arguments) {
  const bool early = c->numAttrs == 1 && c->attrs->id == cudaLaunchAttributeProgrammaticStreamSerialization &&
                     c->attrs->val.programmaticStreamSerializationAllowed != 0;
  emulator::machine.early += early;
  emulator::run(reinterpret_cast<const void*>(kernel), c->gridDim, c->blockDim, c->dynamicSmemBytes, early,
                [&] { kernel(arguments...); });
  return emulator::failed() ? cudaErrorLaunchFailure : cudaSuccess;
}

#endif  // RMSNORM_DEPLOY_TESTS_CUDA_RUNTIME_H_
