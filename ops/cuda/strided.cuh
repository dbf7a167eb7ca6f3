// Norms down the columns of [outer, size, inner], and of any rows that the kernels of rows.cuh do not take. A block has
// 256 threads: `columns` side by side, so that a warp's loads are contiguous, times `slices` down the normalised run,
// times as many units (one outer position, one tile of columns) as fit.
#ifndef RMSNORM_DEPLOY_CUDA_STRIDED_CUH_
#define RMSNORM_DEPLOY_CUDA_STRIDED_CUH_

#include "kernels.h"
#include "statistic.cuh"
#include "weights.cuh"

namespace rmsnorm_deploy {
namespace cuda {

// One, or a chunk, of adjacent columns.
template <typename T, int kValues>
struct Columns {
  uint4 raw;
  __device__ void load(const void* base, std::int64_t at) { raw = load_chunk(base, at / kValues); }
  __device__ void store(void* base, std::int64_t at) const { store_chunk(base, at / kValues, raw); }
  __device__ void unpacked(float (&v)[kValues]) const { unpack(raw, v, static_cast<const T*>(nullptr)); }
  __device__ void set(const float (&v)[kValues]) { raw = pack(v, static_cast<const T*>(nullptr)); }
};
template <typename T>
struct Columns<T, 1> {
  T raw;
  __device__ void load(const void* base, std::int64_t at) { raw = static_cast<const T*>(base)[at]; }
  __device__ void store(void* base, std::int64_t at) const { static_cast<T*>(base)[at] = raw; }
  template <typename C>
  __device__ void unpacked(C (&v)[1]) const {
    v[0] = static_cast<C>(widen(raw));
  }
  template <typename C>
  __device__ void set(const C (&v)[1]) {
    narrow(v[0], raw);
  }
};

// Where a thread works.
struct Place {
  std::int64_t outer;
  std::int64_t column;  // the first of its own
  int slice;
  bool active;
};

__device__ inline Place place_of(const Args& a, std::int64_t first_unit, int values) {
  const int thread = static_cast<int>(threadIdx.x);
  const int per_unit = a.columns * a.slices;
  const std::int64_t unit = first_unit + thread / per_unit;
  Place place;
  place.outer = unit / a.tiles;
  place.column = ((unit - place.outer * a.tiles) * a.columns + thread % a.columns) * values;
  place.slice = thread % per_unit / a.columns;
  place.active = place.outer < a.outer && place.column < a.inner;
  return place;
}

// Adds what the slices of a unit have, column by column, in shared memory: the same bits in every slice afterwards.
// Every thread of the block has to come here.
template <typename A, int kValues>
__device__ inline void reduce_slices(A (&sums)[kValues], const Args& a, int slice) {
  auto* const shared = reinterpret_cast<A*>(shared_memory);
  const int thread = static_cast<int>(threadIdx.x);
  // Values of one column lie blockDim.x apart: neighbouring threads use neighbouring banks.
  const int stride = static_cast<int>(blockDim.x);
  __syncthreads();  // what was here before has been read
#pragma unroll
  for (int i = 0; i < kValues; ++i) shared[thread + i * stride] = sums[i];
  for (int half = a.slices / 2; half > 0; half /= 2) {
    __syncthreads();
    if (slice < half) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        A sum = shared[thread + i * stride];
        sum.add(shared[thread + half * a.columns + i * stride]);
        shared[thread + i * stride] = sum;
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kValues; ++i) sums[i] = shared[thread - slice * a.columns + i * stride];
}

struct LargestOf {
  float value = 0;
  __device__ void add(const LargestOf& other) { value = fmaxf(value, other.value); }
};

// Scale or bias. Chunks of columns are taken only where it is the same in all columns and at all outer positions, and a
// dimension at most is left of the normalised run; its type is that of x, or float32.
template <int kValues>
__device__ inline std::int64_t weights_start(const Weights& w, const Place& at) {
  return kValues > 1 ? 0 : outer_offset(w, at.outer) + inner_offset(w, at.column);
}
template <typename T, int kValues>
__device__ inline float weight_of(const Weights& w, std::int64_t start, std::int64_t i, std::int32_t round_type) {
  if constexpr (kValues == 1) {
    return weight_at<float>(w, start + axes_offset(w, i), round_type);
  } else {
    const std::int64_t at = w.single ? 0 : i * w.stride[0];
    const float value = w.type == RMS_NORM_FLOAT32 ? load_constant(static_cast<const float*>(w.data) + at)
                                                   : widen(load_constant(static_cast<const T*>(w.data) + at));
    return sizeof(T) == 2 && round_type != RMS_NORM_FLOAT32 ? rounded<T>(value) : value;
  }
}

// kKept: so many loads of a thread are kept in registers, and cover the whole run; 0: the values are read twice.
template <typename T, int kValues, int kKept>
__global__ void __launch_bounds__(kStridedThreads, 2) strided_kernel(const __grid_constant__ Args a) {
  wait_for_earlier_grids();
  const int units_per_block = kStridedThreads / (a.columns * a.slices);
  const std::int64_t units = a.outer * a.tiles;
  const bool twice = sizeof(T) == 2 && a.round_type != RMS_NORM_FLOAT32;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * units_per_block; first < units;
       first += static_cast<std::int64_t>(gridDim.x) * units_per_block) {
    const Place at = place_of(a, first, kValues);
    const std::int64_t start = at.outer * a.size * a.inner + at.column;
    const std::int64_t size = at.active ? a.size : 0;
    const std::int64_t measured = at.active ? a.measured : 0;
    const std::int64_t slices = a.slices;
    Columns<T, kValues> kept[kKept > 0 ? kKept : 1];
    SumOf<T> sums[kValues];

    const auto enter = [&](std::int64_t i, Columns<T, kValues>& x) {
      x.load(a.x, start + i * a.inner);
      float v[kValues];
      if (a.residual) {
        Columns<T, kValues> residual;
        residual.load(a.residual, start + i * a.inner);
        float r[kValues];
        x.unpacked(v);
        residual.unpacked(r);
#pragma unroll
        for (int k = 0; k < kValues; ++k) v[k] = combined(v[k], r[k], a.statistic);
        x.set(v);
        x.store(a.sum, start + i * a.inner);
      }
      if (i >= measured) return;
      x.unpacked(v);
#pragma unroll
      for (int k = 0; k < kValues; ++k) sums[k].add(v[k] * v[k]);
    };
    const std::int64_t scale_start = at.active ? weights_start<kValues>(a.scale, at) : 0;
    const std::int64_t bias_start = at.active && a.bias.data ? weights_start<kValues>(a.bias, at) : 0;
    float scales[kKept > 0 ? kKept : 1];
    if constexpr (kKept > 0) {
#pragma unroll
      for (int p = 0; p < kKept; ++p) {
        const std::int64_t i = at.slice + p * slices;
        if (i < size) enter(i, kept[p]);
      }
      // Asked for before the reduction.
#pragma unroll
      for (int p = 0; p < kKept; ++p) {
        const std::int64_t i = at.slice + p * slices;
        scales[p] = i < size ? weight_of<T, kValues>(a.scale, scale_start, i, a.round_type) : 0.0f;
      }
    } else {
      for (std::int64_t i = at.slice; i < size; i += slices) enter(i, kept[0]);
    }
    reduce_slices(sums, a, at.slice);

    const void* const again = a.residual ? static_cast<const void*>(a.sum) : a.x;
    Factor factors[kValues];
    bool ordinary = true;
#pragma unroll
    for (int k = 0; k < kValues; ++k) {
      const Mean mean = mean_of(sums[k], a.statistic);
      ordinary = ordinary && (!at.active || is_ordinary(mean, a.statistic));
      factors[k] = factor_of(mean, a.statistic, sums[k]);
    }
    if (__syncthreads_or(!ordinary)) {
      // The whole block goes over its values again, for the sake of columns that float32 arithmetic gets wrong.
      LargestOf most[kValues];
#pragma unroll 1
      for (std::int64_t i = at.slice; i < measured; i += slices) {
        Columns<T, kValues> x;
        x.load(again, start + i * a.inner);
        float v[kValues];
        x.unpacked(v);
#pragma unroll
        for (int k = 0; k < kValues; ++k) most[k].value = fmaxf(most[k].value, fabsf(v[k]));
      }
      reduce_slices(most, a, at.slice);
      SumOf<T> scaled[kValues];
#pragma unroll 1
      for (std::int64_t i = at.slice; i < measured; i += slices) {
        Columns<T, kValues> x;
        x.load(again, start + i * a.inner);
        float v[kValues];
        x.unpacked(v);
#pragma unroll
        for (int k = 0; k < kValues; ++k) {
          v[k] *= scaling(most[k].value, a.statistic);
          scaled[k].add(v[k] * v[k]);
        }
      }
      reduce_slices(scaled, a, at.slice);
#pragma unroll
      for (int k = 0; k < kValues; ++k) {
        if (is_ordinary(mean_of(sums[k], a.statistic), a.statistic)) continue;
        const float shift = scaling(most[k].value, a.statistic);
        factors[k] = rescued_factor(sums[k], scaled[k], most[k].value, shift, a.statistic);
      }
    }

    const auto finish = [&](std::int64_t i, Columns<T, kValues>& x, float scale) {
      float v[kValues];
      x.unpacked(v);
#pragma unroll
      for (int k = 0; k < kValues; ++k) {
        v[k] = normalised<T>(v[k], factors[k]);
        if (twice) v[k] = rounded<T>(v[k]);
        v[k] *= scale;
      }
      if (a.bias.data) {
        const float bias = weight_of<T, kValues>(a.bias, bias_start, i, a.round_type);
#pragma unroll
        for (int k = 0; k < kValues; ++k) {
          if (twice) v[k] = rounded<T>(v[k]);
          v[k] += bias;
        }
      }
      x.set(v);
      x.store(a.y, start + i * a.inner);
    };
    if constexpr (kKept > 0) {
      int slice = at.slice;
      forget(slice);
#pragma unroll
      for (int p = 0; p < kKept; ++p) {
        const std::int64_t i = slice + p * slices;
        keep_packed(kept[p].raw);
        if (i < size) finish(i, kept[p], scales[p]);
      }
    } else {
      for (std::int64_t i = at.slice; i < size; i += slices) {
        kept[0].load(again, start + i * a.inner);
        finish(i, kept[0], weight_of<T, kValues>(a.scale, scale_start, i, a.round_type));
      }
    }
  }
}

// Arithmetic in float64.
template <typename T>
__global__ void __launch_bounds__(kStridedThreads, 2) float64_strided_kernel(const __grid_constant__ Args a) {
  wait_for_earlier_grids();
  const int units_per_block = kStridedThreads / (a.columns * a.slices);
  const std::int64_t units = a.outer * a.tiles;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * units_per_block; first < units;
       first += static_cast<std::int64_t>(gridDim.x) * units_per_block) {
    const Place at = place_of(a, first, 1);
    const std::int64_t start = at.outer * a.size * a.inner + at.column;
    const std::int64_t size = at.active ? a.size : 0;
    Sum<double, true> sums[1];
    for (std::int64_t i = at.slice; i < size; i += a.slices) {
      const std::int64_t here = start + i * a.inner;
      T x = static_cast<const T*>(a.x)[here];
      if (a.residual) {
        const T residual = static_cast<const T*>(a.residual)[here];
        narrow(combined(static_cast<double>(widen(x)), static_cast<double>(widen(residual)), a.statistic), x);
        static_cast<T*>(a.sum)[here] = x;
      }
      const double v = widen(x);
      if (i < a.measured) sums[0].add(v * v);
    }
    reduce_slices(sums, a, at.slice);
    // Infinity makes the lost part a NaN.
    const double total = isinf(sums[0].value) ? sums[0].value : sums[0].total();
    const double rms = rms_of(total, a.statistic);
    const T* const again = static_cast<const T*>(a.residual ? a.sum : a.x);
    for (std::int64_t i = at.slice; i < size; i += a.slices) {
      const std::int64_t here = start + i * a.inner;
      const std::int64_t scale_at =
          outer_offset(a.scale, at.outer) + axes_offset(a.scale, i) + inner_offset(a.scale, at.column);
      double v = round_to(static_cast<double>(widen(again[here])) / rms, a.round_type);
      v = round_to(v * weight_at<double>(a.scale, scale_at, a.round_type), a.round_type);
      if (a.bias.data) {
        const std::int64_t bias_at =
            outer_offset(a.bias, at.outer) + axes_offset(a.bias, i) + inner_offset(a.bias, at.column);
        v = round_to(v + weight_at<double>(a.bias, bias_at, a.round_type), a.round_type);
      }
      narrow(v, static_cast<T*>(a.y)[here]);
    }
  }
}

}  // namespace cuda
}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CUDA_STRIDED_CUH_
