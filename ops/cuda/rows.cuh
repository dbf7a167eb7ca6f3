// Norms of rows that lie one behind the other, in chunks of 16 bytes: inner is 1, every row begins on a multiple of 16
// bytes and is a whole number of chunks long, and scale and bias are contiguous or one value.
#ifndef RMSNORM_DEPLOY_CUDA_ROWS_CUH_
#define RMSNORM_DEPLOY_CUDA_ROWS_CUH_

#include "kernels.h"
#include "statistic.cuh"
#include "weights.cuh"

namespace rmsnorm_deploy {
namespace cuda {

// The sum over the threads of a row, the same bits in each. `partial` has room for one value of each warp.
template <typename A>
__device__ inline A reduced(A sum, unsigned lanes, int group_log2, A* partial) {
  for (int offset = group_log2 < 5 ? (1 << group_log2) >> 1 : 16; offset > 0; offset >>= 1) {
    sum.add(sum.shuffled(lanes, offset));
  }
  if (group_log2 <= 5) return sum;
  const unsigned warp = threadIdx.x / kWarp;
  if (threadIdx.x % kWarp == 0) partial[warp] = sum;
  __syncthreads();
  A total = partial[0];
  for (int i = 1; i < 1 << (group_log2 - 5); ++i) total.add(partial[i]);
  return total;
}

// The lanes that share this thread's row.
__device__ inline unsigned lanes_of_row(int group_log2) {
  if (group_log2 >= 5) return kAllLanes;
  const unsigned first = threadIdx.x % kWarp >> group_log2 << group_log2;
  return ((1u << (1 << group_log2)) - 1) << first;
}

// Values of one chunk, of which the first `measured` count; zeros for the others.
template <typename T>
__device__ inline void unpack_measured(const uint4& raw, float (&values)[kChunk<T>], std::int64_t measured) {
  unpack(raw, values, static_cast<const T*>(nullptr));
  if (measured < kChunk<T>) {
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) values[i] = i < measured ? values[i] : 0.0f;
  }
}

template <typename T>
__device__ inline float squares(const float (&v)[kChunk<T>]) {
  float even = v[0] * v[0];
  float odd = v[1] * v[1];
#pragma unroll
  for (int i = 2; i < kChunk<T>; i += 2) {
    even = fmaf(v[i], v[i], even);
    odd = fmaf(v[i + 1], v[i + 1], odd);
  }
  return even + odd;
}

// The largest magnitude, and the sum of squares of values times a power of two: what a thread sees of a row.
template <typename T>
struct Largest {
  float value = 0;
  __device__ void take(float, const uint4& raw, std::int64_t measured) {
    float v[kChunk<T>];
    unpack_measured<T>(raw, v, measured);
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) value = fmaxf(value, fabsf(v[i]));
  }
  __device__ void add(const Largest& other) { value = fmaxf(value, other.value); }
  __device__ Largest shuffled(unsigned lanes, int offset) const {
    Largest result;
    result.value = __shfl_xor_sync(lanes, value, offset);
    return result;
  }
};

template <typename T>
struct Scaled {
  SumOf<T> sum;
  __device__ void take(float shift, const uint4& raw, std::int64_t measured) {
    float v[kChunk<T>];
    unpack_measured<T>(raw, v, measured);
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) v[i] *= shift;
    sum.add(squares<T>(v));
  }
};

// The factor of a row that is not ordinary. `each` hands every chunk of this thread to what it is given. All threads of
// the row come here, and no others need to: fewer than a warp where a warp has several rows, else the whole block.
template <typename T, typename Each>
__device__ inline Factor rescued(const SumOf<T>& sum, const Args& a, SumOf<T>* partial, Each each) {
  const unsigned lanes = lanes_of_row(a.group_log2);
  Largest<T> most;
  each(most, 1.0f);
  most = reduced(most, lanes, a.group_log2, reinterpret_cast<Largest<T>*>(partial + 2 * kMostWarps));
  const float shift = scaling(most.value, a.statistic);
  Scaled<T> scaled;
  each(scaled, shift);
  scaled.sum = reduced(scaled.sum, lanes, a.group_log2, partial + 3 * kMostWarps);
  return rescued_factor(sum, scaled.sum, most.value, shift, a.statistic);
}

// x + residual, rounded to T.
template <typename T>
__device__ inline uint4 added(const uint4& x, const uint4& residual, const Statistic& s) {
  float v[kChunk<T>];
  float r[kChunk<T>];
  unpack(x, v, static_cast<const T*>(nullptr));
  unpack(residual, r, static_cast<const T*>(nullptr));
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) v[i] = combined(v[i], r[i], s);
  return pack(v, static_cast<const T*>(nullptr));
}

template <typename T>
__device__ inline void round_all(float (&values)[kChunk<T>]) {
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) values[i] = rounded<T>(values[i]);
}

// y of one chunk. `bias` is where the row's bias begins.
template <typename T, typename S>
__device__ inline uint4 finished(const uint4& raw, const Factor& f, const WeightChunk<T, S>& scale, const void* bias,
                                 std::int64_t index, const Args& a) {
  constexpr int kValues = kChunk<T>;
  const bool twice = sizeof(T) == 2 && a.round_type != RMS_NORM_FLOAT32;
  float v[kValues];
  float w[kValues];
  unpack(raw, v, static_cast<const T*>(nullptr));
  scale.unpacked(w);
#pragma unroll
  for (int i = 0; i < kValues; ++i) v[i] = normalised<T>(v[i], f);
  if (twice) {
    round_all<T>(v);
    if (sizeof(S) != sizeof(T)) round_all<T>(w);
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) v[i] *= w[i];
  if (a.bias.data) {
    WeightChunk<T, S> b;
    b.load(bias, index, a.bias.single);
    b.unpacked(w);
    if (twice) {
      round_all<T>(v);
      if (sizeof(S) != sizeof(T)) round_all<T>(w);
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) v[i] += w[i];
  }
  return pack(v, static_cast<const T*>(nullptr));
}

template <typename S>
__device__ inline const void* weights_of_row(const Weights& w, std::int64_t row) {
  if (w.row_stride == 0) return w.data;
  return static_cast<const S*>(w.data) + static_cast<std::uint32_t>(row) / w.repeat % w.period * w.row_stride;
}

// Least number of resident blocks of 256 threads that the compiler has to leave registers for. What counts is that
// enough bytes are in flight on a multiprocessor (by Little's law an H100 wants some 20 KB of loads) and that nothing
// spills. Blocks, registers a thread, and bytes of x in flight; a residual doubles them:
//
//   chunks   x and scale of its type   with residual, or a float32 scale   with both
//     1       6    40    24 KB          5    48    20 KB                    4    64    16 KB
//     2       4    64    32 KB          4    64    32 KB                    3    80    24 KB
//     4       3    80    48 KB          2   128    32 KB                    2   128    32 KB
constexpr int resident_blocks(int chunks, bool residual, bool wide_scale) {
  if (chunks == 1) return residual && wide_scale ? 4 : residual || wide_scale ? 5 : 6;
  if (chunks == 2) return residual && wide_scale ? 3 : 4;
  return residual || wide_scale ? 2 : 3;
}

// Rows of at most kChunks chunks to a thread, kept in registers.
template <typename T, typename S, int kChunks, bool kResidual>
__global__ void __launch_bounds__(kRowsThreads, resident_blocks(kChunks, kResidual, sizeof(S) != sizeof(T)))
    rows_kernel(const __grid_constant__ Args a) {
  constexpr int kValues = kChunk<T>;
  const int group = 1 << a.group_log2;
  const int lane = static_cast<int>(threadIdx.x) & (group - 1);
  const int chunks = static_cast<int>(a.size / kValues);
  const std::int64_t rows_per_block = blockDim.x >> a.group_log2;
  const std::int64_t step = rows_per_block * gridDim.x;
  auto* const partial = reinterpret_cast<SumOf<T>*>(shared_memory);
  int turn = 0;
  WeightChunk<T, S> scale[kChunks];
  bool loaded = false;

  // The bound is the same for the whole block, so that every thread reaches every barrier and shuffle.
  for (std::int64_t first = blockIdx.x * rows_per_block; first < a.outer; first += step) {
    const std::int64_t row = first + (threadIdx.x >> a.group_log2);
    const std::int64_t start = row * chunks;
    bool has[kChunks];
    uint4 x[kChunks];
    uint4 residual[kChunks];
#pragma unroll
    for (int p = 0; p < kChunks; ++p) {
      const int index = lane + p * group;
      has[p] = row < a.outer && index < chunks;
      x[p] = has[p] ? load_chunk(a.x, start + index) : make_uint4(0, 0, 0, 0);
      if (kResidual) residual[p] = has[p] ? load_chunk(a.residual, start + index) : make_uint4(0, 0, 0, 0);
    }
    // Asked for now, needed only after the reduction; the same for all rows of this block unless scale has outer
    // dimensions.
    if (!loaded) {
      loaded = a.scale.row_stride == 0;
      const void* const from = row < a.outer ? weights_of_row<S>(a.scale, row) : a.scale.data;
#pragma unroll
      for (int p = 0; p < kChunks; ++p) {
        const int index = lane + p * group;
        if (index < chunks) scale[p].load(from, index, a.scale.single);
      }
    }

    SumOf<T> sum;
#pragma unroll
    for (int p = 0; p < kChunks; ++p) {
      const int index = lane + p * group;
      if (kResidual) {
        x[p] = added<T>(x[p], residual[p], a.statistic);
        if (has[p]) store_chunk(a.sum, start + index, x[p]);
      }
      float v[kValues];
      unpack_measured<T>(x[p], v, a.measured - index * kValues);
      sum.add(squares<T>(v));
    }
    sum = reduced(sum, kAllLanes, a.group_log2, partial + turn * kMostWarps);
    turn ^= 1;
    const Mean mean = mean_of(sum, a.statistic);
    Factor factor = factor_of(mean, a.statistic, sum);
    if (!is_ordinary(mean, a.statistic)) {  // the same in all threads of a row
      factor = rescued<T>(sum, a, partial, [&](auto& result, float shift) {
#pragma unroll
        for (int p = 0; p < kChunks; ++p) {
          keep_packed(x[p]);
          result.take(shift, x[p], a.measured - (lane + p * group) * kValues);
        }
      });
    }
    const void* const bias = a.bias.data && row < a.outer ? weights_of_row<S>(a.bias, row) : nullptr;
#pragma unroll
    for (int p = 0; p < kChunks; ++p) {
      keep_packed(x[p]);
      const int index = lane + p * group;
      if (has[p]) store_chunk(a.y, start + index, finished<T, S>(x[p], factor, scale[p], bias, index, a));
    }
  }
}

// Longer rows, one to a block: kept in shared memory where `staged`, else read twice.
template <typename T, typename S, bool kResidual>
__global__ void __launch_bounds__(kLongRowsThreads, 2) long_rows_kernel(const __grid_constant__ Args a) {
  constexpr int kValues = kChunk<T>;
  constexpr int kBatch = 2;
  const std::int64_t chunks = a.size / kValues;
  const std::int64_t stride = blockDim.x;
  const bool single = a.scale.single;
  auto* const partial = reinterpret_cast<SumOf<T>*>(shared_memory);
  uint4* const kept = shared_memory + kReduceBytes / 16;
  int turn = 0;

  for (std::int64_t row = blockIdx.x; row < a.outer; row += gridDim.x) {
    const std::int64_t start = row * chunks;
    SumOf<T> sum;
    for (std::int64_t first = threadIdx.x; first < chunks; first += kBatch * stride) {
      uint4 x[kBatch];
      uint4 residual[kBatch];
#pragma unroll
      for (int p = 0; p < kBatch; ++p) {
        const std::int64_t index = first + p * stride;
        x[p] = index < chunks ? load_chunk(a.x, start + index) : make_uint4(0, 0, 0, 0);
        if (kResidual) residual[p] = index < chunks ? load_chunk(a.residual, start + index) : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int p = 0; p < kBatch; ++p) {
        const std::int64_t index = first + p * stride;
        if (kResidual) {
          x[p] = added<T>(x[p], residual[p], a.statistic);
          if (index < chunks) store_chunk(a.sum, start + index, x[p]);
        }
        if (a.staged && index < chunks) kept[index] = x[p];
        float v[kValues];
        unpack_measured<T>(x[p], v, a.measured - index * kValues);
        sum.add(squares<T>(v));
      }
    }
    // Each thread reads back only what it has put away itself, from either place.
    const uint4* const again =
        a.staged ? kept : static_cast<const uint4*>(kResidual ? static_cast<const void*>(a.sum) : a.x) + start;
    const void* const from = weights_of_row<S>(a.scale, row);
    WeightChunk<T, S> scale[kBatch];
#pragma unroll
    for (int p = 0; p < kBatch; ++p) {
      const std::int64_t index = threadIdx.x + p * stride;
      if (index < chunks) scale[p].load(from, index, single);
    }
    sum = reduced(sum, kAllLanes, a.group_log2, partial + turn * kMostWarps);
    turn ^= 1;
    const Mean mean = mean_of(sum, a.statistic);
    Factor factor = factor_of(mean, a.statistic, sum);
    if (!is_ordinary(mean, a.statistic)) {
      factor = rescued<T>(sum, a, partial, [&](auto& result, float shift) {
        for (std::int64_t index = threadIdx.x; index < chunks; index += stride) {
          const uint4 raw = again[index];
          result.take(shift, raw, a.measured - index * kValues);
        }
      });
    }
    const void* const bias = a.bias.data ? weights_of_row<S>(a.bias, row) : nullptr;
    for (std::int64_t first = threadIdx.x; first < chunks; first += kBatch * stride) {
      uint4 x[kBatch];
#pragma unroll
      for (int p = 0; p < kBatch; ++p) {
        const std::int64_t index = first + p * stride;
        x[p] = index < chunks ? again[index] : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int p = 0; p < kBatch; ++p) {
        const std::int64_t index = first + p * stride;
        if (index < chunks) {
          store_chunk(a.y, start + index, finished<T, S>(x[p], factor, scale[p], bias, index, a));
          const std::int64_t next = index + kBatch * stride;
          if (next < chunks) scale[p].load(from, next, single);
        }
      }
    }
  }
}

}  // namespace cuda
}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CUDA_ROWS_CUH_
