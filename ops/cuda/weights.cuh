// Where a value of scale or bias is, and what it is in the arithmetic type.
#ifndef RMSNORM_DEPLOY_CUDA_WEIGHTS_CUH_
#define RMSNORM_DEPLOY_CUDA_WEIGHTS_CUH_

#include "args.h"
#include "device.h"

namespace rmsnorm_deploy {
namespace cuda {

// Elements from the first to position `index` of the run made of the dimensions [begin, end).
__device__ inline std::int64_t run_offset(const Weights& w, int begin, int end, std::int64_t index) {
  std::int64_t offset = 0;
#pragma unroll 1
  for (int i = end - 1; i > begin; --i) {
    const std::int64_t rest = index / w.extent[i];
    offset += (index - rest * w.extent[i]) * w.stride[i];
    index = rest;
  }
  return begin < end ? offset + index * w.stride[begin] : 0;
}
__device__ inline std::int64_t outer_offset(const Weights& w, std::int64_t index) {
  return run_offset(w, 0, w.outer_end, index);
}
__device__ inline std::int64_t axes_offset(const Weights& w, std::int64_t index) {
  return run_offset(w, w.outer_end, w.axes_end, index);
}
__device__ inline std::int64_t inner_offset(const Weights& w, std::int64_t index) {
  return run_offset(w, w.axes_end, w.inner_end, index);
}

// `value` rounded to the element type `type`, where that is narrower than the arithmetic.
__device__ inline float round_to(float value, std::int32_t type) {
  if (type == RMS_NORM_FLOAT16) return rounded<Half>(value);
  if (type == RMS_NORM_BFLOAT16) return rounded<Bfloat>(value);
  return value;
}
__device__ inline double round_to(double value, std::int32_t type) {
  if (type == RMS_NORM_FLOAT16) return rounded<Half>(value);
  if (type == RMS_NORM_BFLOAT16) return rounded<Bfloat>(value);
  if (type == RMS_NORM_FLOAT32) return rounded<float>(value);
  return value;
}

// The value at an offset, of any type, rounded to `round_type`. One rounding also from float64.
template <typename C>
__device__ inline C weight_at(const Weights& w, std::int64_t offset, std::int32_t round_type) {
  switch (w.type) {
    case RMS_NORM_FLOAT32:
      return round_to(static_cast<C>(load_constant(static_cast<const float*>(w.data) + offset)), round_type);
    case RMS_NORM_FLOAT16:
      return round_to(static_cast<C>(widen(load_constant(static_cast<const Half*>(w.data) + offset))), round_type);
    case RMS_NORM_BFLOAT16:
      return round_to(static_cast<C>(widen(load_constant(static_cast<const Bfloat*>(w.data) + offset))), round_type);
    default:
      return static_cast<C>(round_to(load_constant(static_cast<const double*>(w.data) + offset), round_type));
  }
}

// One value of S in every place of a chunk.
template <typename S>
__device__ inline uint4 splat(S value) {
  S values[kChunk<S>];
#pragma unroll
  for (int i = 0; i < kChunk<S>; ++i) values[i] = value;
  uint4 raw;
  memcpy(&raw, values, sizeof raw);
  return raw;
}

// As many values of S as a chunk of T has.
template <typename T, typename S>
struct WeightChunk {
  static constexpr int kParts = kChunk<T> / kChunk<S>;
  uint4 raw[kParts];

  // Chunk `index` from `base`, or its first value everywhere.
  __device__ void load(const void* base, std::int64_t index, bool single) {
    if (single) {
      raw[0] = splat(load_constant(static_cast<const S*>(base)));
#pragma unroll
      for (int i = 1; i < kParts; ++i) raw[i] = raw[0];
      return;
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i) raw[i] = load_constant_chunk(base, index * kParts + i);
  }

  __device__ void unpacked(float (&values)[kChunk<T>]) const {
    if constexpr (kParts == 1) {
      unpack(raw[0], values, static_cast<const S*>(nullptr));
    } else {
#pragma unroll
      for (int i = 0; i < kParts; ++i) memcpy(values + i * kChunk<S>, &raw[i], sizeof raw[i]);
    }
  }

  // Rounded to T.
  __device__ uint4 packed() const {
    if constexpr (kParts == 1) {
      return raw[0];
    } else {
      float values[kChunk<T>];
      unpacked(values);
      return pack(values, static_cast<const T*>(nullptr));
    }
  }
};

}  // namespace cuda
}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CUDA_WEIGHTS_CUH_
