// What TVM's CUDA text uses, for a host compiler, on top of the emulator of tests/support/cuda. For tests only.
#include <algorithm>

#include "cuda_bf16.h"
#include "cuda_fp16.h"

#undef __shared__
#define __shared__ static  // blocks run one after the other

using std::max;
using std::min;
using uint = unsigned;
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
// A double is rounded to 16 bits once, as the device does: by way of a float whose last bit says that something was cut
// off.
inline float for_rounding(float value) { return value; }
inline float for_rounding(double value) {
  float nearest = static_cast<float>(value);
  if (value != value || static_cast<double>(nearest) == value) return nearest;
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) nearest = std::nextafter(nearest, 0.0f);
  std::uint32_t bits;
  std::memcpy(&bits, &nearest, sizeof bits);
  bits |= 1u;
  std::memcpy(&nearest, &bits, sizeof bits);
  return nearest;
}
struct half : __half {
  half() = default;
  half(float value) : __half(__float2half_rn(value)) {}
  half(double value) : __half(__float2half_rn(for_rounding(value))) {}
  operator float() const { return __half2float(*this); }
};
struct nv_bfloat16 : __nv_bfloat16 {
  nv_bfloat16() = default;
  nv_bfloat16(float value) : __nv_bfloat16(__float2bfloat16_rn(value)) {}
  nv_bfloat16(double value) : __nv_bfloat16(__float2bfloat16_rn(for_rounding(value))) {}
  operator float() const { return __bfloat162float(*this); }
};
// Two values in a word, as the functions of targets/gpus/cuda.py take them: each result is rounded once.
#define __device__
inline float __uint_as_float(unsigned bits) {
  float result;
  std::memcpy(&result, &bits, sizeof bits);
  return result;
}
inline float __low2float(__half2 pair) { return __half2float(pair.x); }
inline float __high2float(__half2 pair) { return __half2float(pair.y); }
inline __half2 __hadd2_rn(__half2 a, __half2 b) {
  return {__float2half_rn(__half2float(a.x) + __half2float(b.x)),
          __float2half_rn(__half2float(a.y) + __half2float(b.y))};
}
inline __nv_bfloat162 __hadd2_rn(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __floats2bfloat162_rn(__bfloat162float(a.x) + __bfloat162float(b.x),
                               __bfloat162float(a.y) + __bfloat162float(b.y));
}
template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T x, y, z, w;
};
using half4 = Four<half>;
using nv_bfloat164 = Four<nv_bfloat16>;

// The value of another thread, by way of memory: every thread of the block has to come here.
template <typename T>
T of_thread(T value, unsigned thread) {
  static T values[1024];
  values[threadIdx.x] = value;
  emulator::barrier();
  const T result = values[thread];
  emulator::barrier();
  return result;
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int offset, int width) {
  const unsigned lane = threadIdx.x % width;
  return of_thread(value, threadIdx.x - lane + ((lane ^ offset) < unsigned(width) ? lane ^ offset : lane));
}
template <typename T>
T __shfl_up_sync(unsigned, T value, int offset, int width) {
  const unsigned lane = threadIdx.x % width;
  return of_thread(value, lane < unsigned(offset) ? threadIdx.x : threadIdx.x - offset);
}
template <typename T>
T __shfl_down_sync(unsigned, T value, int offset, int width) {
  const unsigned lane = threadIdx.x % width;
  return of_thread(value, lane + offset < unsigned(width) ? threadIdx.x + offset : threadIdx.x);
}
