// What version 2 of the contract makes of a row's results: y of another type, 8-bit values, extremes; and where rows
// lie.
#ifndef RMSNORM_DEPLOY_CUDA_OUTPUTS_CUH_
#define RMSNORM_DEPLOY_CUDA_OUTPUTS_CUH_

#include "kernels.h"
#include "weights.cuh"

namespace rmsnorm_deploy {
namespace cuda {

// Where one row begins in each tensor, in elements.
struct Starts {
  std::int64_t of[kRowTensors];
};

__device__ inline Starts starts_of(const Outputs& out, std::int64_t row) {
  Starts at = {};
#pragma unroll 1
  for (int i = out.dimensions - 1; i >= 0; --i) {
    std::int64_t place = row;
    if (i > 0) {
      // Most numbers of rows fit 32 bits, in which a division takes a fraction of the time.
      const std::int64_t extent = out.extent[i];
      const bool small = (static_cast<std::uint64_t>(row | extent) >> 32) == 0;
      const std::int64_t rest =
          small ? static_cast<std::int64_t>(static_cast<std::uint32_t>(row) / static_cast<std::uint32_t>(extent))
                : row / extent;
      place = row - rest * extent;
      row = rest;
    }
#pragma unroll
    for (int t = 0; t < kRowTensors; ++t) at.of[t] += place * out.stride[t][i];
  }
  return at;
}

// The least and the greatest of values, NaNs left out.
struct Extremes {
  float least = INFINITY;
  float most = -INFINITY;
  __device__ void take(float value) {
    least = fminf(least, value);
    most = fmaxf(most, value);
  }
  __device__ void add(const Extremes& other) {
    least = fminf(least, other.least);
    most = fmaxf(most, other.most);
  }
  __device__ Extremes shuffled(unsigned lanes, int offset) const {
    Extremes result;
    result.least = __shfl_xor_sync(lanes, least, offset);
    result.most = __shfl_xor_sync(lanes, most, offset);
    return result;
  }
};

__device__ inline void store_extremes(const Outputs& out, std::int64_t row, const Extremes& found) {
  if (out.least) out.least[row] = found.least;
  if (out.most) out.most[row] = found.most;
}

// Scale and zero point of one row's 8-bit values.
struct Quantisation {
  float scale;
  std::int32_t zero_point;
  float low;  // of the quotient, so that the whole number with its zero point is in range
  float high;
};

__device__ inline Quantisation quantisation_of(const Outputs& out, std::int64_t row) {
  Quantisation q = {};
  if (!out.quantised_type) return q;
  const std::int64_t at = out.by_row ? row : 0;
  q.scale = out.quantised_scale_type == RMS_NORM_FLOAT16
                ? widen(load_constant(static_cast<const Half*>(out.quantised_scale) + at))
            : out.quantised_scale_type == RMS_NORM_BFLOAT16
                ? widen(load_constant(static_cast<const Bfloat*>(out.quantised_scale) + at))
                : load_constant(static_cast<const float*>(out.quantised_scale) + at);
  const bool with_sign = out.quantised_type == RMS_NORM_INT8;
  if (out.zero_point) {
    q.zero_point = with_sign ? static_cast<std::int32_t>(static_cast<const signed char*>(out.zero_point)[at])
                             : static_cast<std::int32_t>(static_cast<const unsigned char*>(out.zero_point)[at]);
  }
  q.low = static_cast<float>((with_sign ? -128 : 0) - q.zero_point);
  q.high = static_cast<float>((with_sign ? 127 : 255) - q.zero_point);
  return q;
}

// float8e4m3fn: 1 sign, 4 exponent and 3 fraction bits, the largest 448; nothing is infinite.
__device__ inline unsigned float8_of(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  return pair & 0xffu;
#else
  unsigned bits;
  memcpy(&bits, &value, sizeof bits);
  const unsigned sign = bits >> 24 & 0x80u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return sign | 0x7fu;
  float magnitude;
  memcpy(&magnitude, &bits, sizeof bits);
  magnitude = fminf(magnitude, 448.0f);
  // Below 2^-6 the values are multiples of 2^-9, which is the spacing of floats from 2^14 on; the addition rounds.
  const bool small = magnitude < 0x1p-6f;
  if (small) magnitude += 0x1p14f;
  memcpy(&bits, &magnitude, sizeof bits);
  return sign | (small ? bits - (141u << 23) : (bits - (120u << 23) + 0x7ffffu + (bits >> 20 & 1u)) >> 20);
#endif
}

// A division, and not a product with the reciprocal: the quotient may lie at a tie. A NaN becomes the least value, as
// fmaxf returns the number of the two. Both bounds are whole numbers, so that they may come before the rounding.
__device__ inline unsigned quantised(float value, const Outputs& out, const Quantisation& q) {
  float quotient = value / q.scale;
  if (out.quotient_type != RMS_NORM_FLOAT32) quotient = round_to(quotient, out.quotient_type);
  if (out.quantised_type == RMS_NORM_FLOAT8E4M3FN) return float8_of(quotient);
  return static_cast<unsigned>(__float2int_rn(fminf(fmaxf(quotient, q.low), q.high)) + q.zero_point) & 0xffu;
}

// One value as y has it.
__device__ inline void store_value(void* y, std::int32_t type, std::int64_t at, float value) {
  if (type == RMS_NORM_FLOAT32) {
    static_cast<float*>(y)[at] = value;
  } else if (type == RMS_NORM_FLOAT16) {
    narrow(value, static_cast<Half*>(y)[at]);
  } else {
    narrow(value, static_cast<Bfloat*>(y)[at]);
  }
}

}  // namespace cuda
}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CUDA_OUTPUTS_CUH_
