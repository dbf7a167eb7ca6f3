// The device's instructions as the kernels use them: chunks of 16 bytes, conversions, exchange between lanes.
#ifndef RMSNORM_DEPLOY_CUDA_DEVICE_H_
#define RMSNORM_DEPLOY_CUDA_DEVICE_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

namespace rmsnorm_deploy {
namespace cuda {

using Half = __half;
using Bfloat = __nv_bfloat16;

// All shared memory is asked for at the launch.
extern __shared__ uint4 shared_memory[];

constexpr unsigned kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(Half value) { return __half2float(value); }
__device__ inline float widen(Bfloat value) { return __bfloat162float(value); }
__device__ inline double widen(double value) { return value; }

__device__ inline void narrow(float value, float& result) { result = value; }
__device__ inline void narrow(float value, Half& result) { result = __float2half_rn(value); }
__device__ inline void narrow(float value, Bfloat& result) { result = __float2bfloat16_rn(value); }

// `value` as a float whose last bit is set where something was cut off: rounding that to 16 bits gives what rounding
// `value` itself would.
__device__ inline float sticky_float(double value) {
  const float nearest = static_cast<float>(value);
  if (value != value || static_cast<double>(nearest) == value) return nearest;
  unsigned bits;
  memcpy(&bits, &nearest, sizeof bits);
  if (fabs(static_cast<double>(nearest)) > fabs(value)) --bits;
  bits |= 1u;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}
__device__ inline void narrow(double value, double& result) { result = value; }
__device__ inline void narrow(double value, float& result) { result = static_cast<float>(value); }
__device__ inline void narrow(double value, Half& result) { result = __float2half_rn(sticky_float(value)); }
__device__ inline void narrow(double value, Bfloat& result) { result = __float2bfloat16_rn(sticky_float(value)); }

// `value` rounded to T and widened again.
template <typename T, typename C>
__device__ inline C rounded(C value) {
  T narrowed;
  narrow(value, narrowed);
  return static_cast<C>(widen(narrowed));
}

// The values of 16 bytes of T, as float32. kValues of them make one chunk of x, of whatever type the chunk is.
template <typename T>
constexpr int kChunk = 16 / static_cast<int>(sizeof(T));

__device__ inline float2 widen(__half2 pair) { return __half22float2(pair); }
// One instruction for each half; __bfloat1622float2 takes two for the upper one.
__device__ inline float2 widen(__nv_bfloat162 pair) {
  unsigned both;
  memcpy(&both, &pair, sizeof both);
  const unsigned bits[2] = {both << 16, both & 0xffff0000u};
  float2 result;
  memcpy(&result, bits, sizeof result);
  return result;
}
__device__ inline void narrow(float x, float y, __half2& pair) { pair = __floats2half2_rn(x, y); }
__device__ inline void narrow(float x, float y, __nv_bfloat162& pair) { pair = __floats2bfloat162_rn(x, y); }

template <typename Pair>
__device__ inline void unpack_pairs(const uint4& raw, float (&values)[8]) {
  Pair pairs[4];
  memcpy(pairs, &raw, sizeof raw);
  for (int i = 0; i < 4; ++i) {
    const float2 pair = widen(pairs[i]);
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
}
template <typename Pair>
__device__ inline uint4 pack_pairs(const float (&values)[8]) {
  Pair pairs[4];
  for (int i = 0; i < 4; ++i) narrow(values[2 * i], values[2 * i + 1], pairs[i]);
  uint4 raw;
  memcpy(&raw, pairs, sizeof raw);
  return raw;
}

__device__ inline void unpack(const uint4& raw, float (&values)[4], const float*) { memcpy(values, &raw, sizeof raw); }
__device__ inline void unpack(const uint4& raw, float (&values)[8], const Half*) { unpack_pairs<__half2>(raw, values); }
__device__ inline void unpack(const uint4& raw, float (&values)[8], const Bfloat*) {
  unpack_pairs<__nv_bfloat162>(raw, values);
}

__device__ inline uint4 pack(const float (&values)[4], const float*) {
  uint4 raw;
  memcpy(&raw, values, sizeof raw);
  return raw;
}
__device__ inline uint4 pack(const float (&values)[8], const Half*) { return pack_pairs<__half2>(values); }
__device__ inline uint4 pack(const float (&values)[8], const Bfloat*) { return pack_pairs<__nv_bfloat162>(values); }

// The values of one chunk, rounded to T. Two by two: some GPUs (sm_90, sm_100) round one alone by a slow instruction.
template <typename T>
__device__ inline void round_all(float (&values)[kChunk<T>]) {
  unpack(pack(values, static_cast<const T*>(nullptr)), values, static_cast<const T*>(nullptr));
}

template <typename Pair>
__device__ inline uint4 product_of_pairs(const uint4& a, const uint4& b) {
  Pair x[4];
  Pair y[4];
  memcpy(x, &a, sizeof a);
  memcpy(y, &b, sizeof b);
  for (int i = 0; i < 4; ++i) x[i] = __hmul2_rn(x[i], y[i]);
  uint4 raw;
  memcpy(&raw, x, sizeof raw);
  return raw;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
// No arithmetic of bfloat16 before sm_80; older toolkits do not even emulate it.
template <>
__device__ inline uint4 product_of_pairs<__nv_bfloat162>(const uint4& a, const uint4& b) {
  float x[8];
  float y[8];
  unpack_pairs<__nv_bfloat162>(a, x);
  unpack_pairs<__nv_bfloat162>(b, y);
  for (int i = 0; i < 8; ++i) x[i] *= y[i];
  return pack_pairs<__nv_bfloat162>(x);
}
#endif

// Products of two chunks of T. Those of 16 bits are exact in a float, so that they are rounded once either way.
__device__ inline uint4 product(const uint4& a, const uint4& b, const Half*) { return product_of_pairs<__half2>(a, b); }
__device__ inline uint4 product(const uint4& a, const uint4& b, const Bfloat*) {
  return product_of_pairs<__nv_bfloat162>(a, b);
}

// Programmatic dependent launch, where the build asks for it: from sm_90 on a grid may be put onto the GPU while the
// one before it on its stream still runs, so that its launch costs less. What makes that safe:
//   * Every kernel calls this first, in every thread, and has read and written nothing before: x, and scale and bias
//   too,
//     may be the earlier grid's results, and y and sum may lie where that still reads. The wait ends when all earlier
//     grids have, with what they wrote in sight; what has happened until then only read the kernel's parameters.
//   * A thread without a row waits too: when this grid has ended, so have all before it, and whoever waits for this one
//     has waited for those.
//   * No kernel lets its successor begin early. That may be another's, which might not wait.
//   * launch.cu asks for it only where the code that will run has the wait: PTX of an older architecture has none.
__device__ inline void wait_for_earlier_grids() {
#if defined(RMSNORM_DEPLOY_CUDA_PDL) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900)
  cudaGridDependencySynchronize();
#endif
}

// 1 / sqrt(value), an estimate, for a value that is not subnormal: rsqrtf would take three more instructions for those.
__device__ inline float inverse_root(float value) {
#ifdef __CUDA_ARCH__
  float result;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
#else
  return rsqrtf(value);
#endif
}

// One value through the read-only path, which is for what no grid writes as long as this one runs: one that begins
// early (see wait_for_earlier_grids) cannot know that.
template <typename T>
__device__ inline T load_constant(const T* from) {
#ifdef RMSNORM_DEPLOY_CUDA_PDL
  return *from;
#else
  return __ldg(from);
#endif
}
// Toolkits before 12.2 know no __ldg of bfloat16 below sm_80.
__device__ inline Bfloat load_constant(const Bfloat* from) {
  const unsigned short bits = load_constant(reinterpret_cast<const unsigned short*>(from));
  Bfloat value;
  memcpy(&value, &bits, sizeof bits);
  return value;
}

// 16 bytes at chunk `index`. x and residual may be written in the same call, so they never go through the read-only
// path; scale and bias do.
__device__ inline uint4 load_chunk(const void* base, std::int64_t index) {
  return static_cast<const uint4*>(base)[index];
}
__device__ inline uint4 load_constant_chunk(const void* base, std::int64_t index) {
  return load_constant(static_cast<const uint4*>(base) + index);
}
__device__ inline void store_chunk(void* base, std::int64_t index, const uint4& value) {
  static_cast<uint4*>(base)[index] = value;
}

// Keeps the compiler from holding on to the unpacked values of a chunk: they take twice the registers of the chunk, and
// unpacking again is cheap beside memory.
__device__ inline void keep_packed(uint4& raw) {
  asm volatile("" : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w));
}

// The same for whatever follows from `value`: addresses, above all.
__device__ inline void forget(int& value) { asm volatile("" : "+r"(value)); }

// Copies of chunks from global to shared memory that go on by themselves: each thread waits for its own, and no other
// thread may read them before a barrier. Before sm_80 they are made at once.
__device__ inline void copy_ahead(uint4* to, const void* base, std::int64_t index) {
  __pipeline_memcpy_async(to, static_cast<const uint4*>(base) + index, sizeof(uint4));
}
__device__ inline void end_of_copies() { __pipeline_commit(); }
// Until all copies are there but those of the last `kLater` groups that end_of_copies() closed.
template <int kLater>
__device__ inline void wait_for_copies() {
  __pipeline_wait_prior(kLater);
}

}  // namespace cuda
}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CUDA_DEVICE_H_
