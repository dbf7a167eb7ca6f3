// Norms of rows that lie one behind the other, in chunks of 16 bytes: inner is 1, every row begins on a multiple of 16
// bytes and is a whole number of chunks long, and scale and bias are contiguous or one value.
#ifndef RMSNORM_DEPLOY_CUDA_ROWS_CUH_
#define RMSNORM_DEPLOY_CUDA_ROWS_CUH_

#include <type_traits>

#include "kernels.h"
#include "statistic.cuh"
#include "weights.cuh"

namespace rmsnorm_deploy {
namespace cuda {

// The second half of a sum over the threads of a row: over the sums of a thread, and over warps where the row has
// several. `partial` has room for one value of each warp and sum.
template <int kSums, typename A>
__device__ inline A over_warps(const A (&sums)[kSums], int group_log2, A* partial) {
  A total = sums[0];
  if (group_log2 <= 5) {
#pragma unroll
    for (int q = 1; q < kSums; ++q) total.add(sums[q]);
    return total;
  }
  const int warps = 1 << (group_log2 - 5);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  if (threadIdx.x % kWarp == 0) {
#pragma unroll
    for (int q = 0; q < kSums; ++q) partial[q * warps + warp] = sums[q];
  }
  __syncthreads();
  total = partial[0];
  for (int i = 1; i < kSums * warps; ++i) total.add(partial[i]);
  return total;
}

// The sums over the threads of a row, added up, the same bits in each thread.
//
// A row of many chunks has one order of additions, whether a thread has two of its chunks and one sum, or half as many
// threads have four chunks and two sums: so a row's result does not depend on how many rows there are beside it.
template <int kSums, typename A>
__device__ inline A reduced(A (&sums)[kSums], int group_log2, A* partial) {
#pragma unroll
  for (int step = 4; step >= 0; --step) {
    if (step < group_log2) {
#pragma unroll
      for (int q = 0; q < kSums; ++q) sums[q].add(sums[q].shuffled(kAllLanes, 1 << step));
    }
  }
  return over_warps(sums, group_log2, partial);
}

// The same where only the lanes that share this thread's row come, and only seldom.
template <int kSums, typename A>
__device__ inline A reduced_alone(A (&sums)[kSums], unsigned lanes, int group_log2, A* partial) {
#pragma unroll 1
  for (int offset = group_log2 < 5 ? 1 << group_log2 >> 1 : 16; offset > 0; offset >>= 1) {
#pragma unroll
    for (int q = 0; q < kSums; ++q) sums[q].add(sums[q].shuffled(lanes, offset));
  }
  return over_warps(sums, group_log2, partial);
}

// The lanes that share this thread's row.
__device__ inline unsigned lanes_of_row(int group_log2) {
  if (group_log2 >= 5) return kAllLanes;
  const unsigned first = threadIdx.x % kWarp >> group_log2 << group_log2;
  return ((1u << (1 << group_log2)) - 1) << first;
}

// Values of one chunk, of which the first `measured` count; zeros for the others. In ordinary rows all count.
template <typename T, bool kAll>
__device__ inline void unpack_measured(const uint4& raw, float (&values)[kChunk<T>], std::int64_t measured) {
  unpack(raw, values, static_cast<const T*>(nullptr));
  if (!kAll && measured < kChunk<T>) {
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
    unpack_measured<T, false>(raw, v, measured);
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
    unpack_measured<T, false>(raw, v, measured);
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) v[i] *= shift;
    sum.add(squares<T>(v));
  }
};

// The factor of a row that is not ordinary. each(results, shift) hands every chunk of this thread to the result of its
// sum. All threads of the row come here, and no others need to: fewer than a warp where a warp has several rows, else
// the whole block.
template <typename T, int kSums, typename Each>
__device__ inline Factor rescued(const SumOf<T>& sum, const RowArgs& a, SumOf<T>* partial, Each each) {
  const unsigned lanes = lanes_of_row(a.group_log2);
  Largest<T> most[kSums];
  each(most, 1.0f);
  const float largest =
      reduced_alone(most, lanes, a.group_log2, reinterpret_cast<Largest<T>*>(partial + 2 * kMostWarps)).value;
  const float shift = scaling(largest, a.statistic);
  Scaled<T> scaled[kSums];
  each(scaled, shift);
  SumOf<T> sums[kSums];
#pragma unroll
  for (int q = 0; q < kSums; ++q) sums[q] = scaled[q].sum;
  const SumOf<T> total = reduced_alone(sums, lanes, a.group_log2, partial + 3 * kMostWarps);
  return rescued_factor(sum, total, largest, shift, a.statistic);
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

// y of one chunk. `bias` is where the row's bias begins.
template <typename T, typename S, int kForm, bool kOrdinary>
__device__ inline uint4 finished(const uint4& raw, const Factor& f, const WeightChunk<T, S>& scale, const void* bias,
                                 std::int64_t index, const RowArgs& a) {
  constexpr int kValues = kChunk<T>;
  const bool twice =
      kForm == kTwoRoundings || (kForm == kAnyForm && sizeof(T) == 2 && a.round_type != RMS_NORM_FLOAT32);
  float v[kValues];
  unpack(raw, v, static_cast<const T*>(nullptr));
#pragma unroll
  for (int i = 0; i < kValues; ++i) v[i] = normalised<T, kOrdinary>(v[i], f);
  if constexpr (sizeof(T) == 2) {
    if (twice) {
      const uint4 y = product(pack(v, static_cast<const T*>(nullptr)), scale.packed(), static_cast<const T*>(nullptr));
      if (kForm != kAnyForm || !a.bias.data) return y;
      unpack(y, v, static_cast<const T*>(nullptr));
    }
  }
  float w[kValues];
  if (!twice) {
    scale.unpacked(w);
#pragma unroll
    for (int i = 0; i < kValues; ++i) v[i] *= w[i];
  }
  if (kForm == kAnyForm && a.bias.data) {
    WeightChunk<T, S> b;
    b.load(bias, index, a.bias.single);
    b.unpacked(w);
    if (sizeof(S) != sizeof(T) && twice) round_all<T>(w);
#pragma unroll
    for (int i = 0; i < kValues; ++i) v[i] += w[i];
  }
  return pack(v, static_cast<const T*>(nullptr));
}

template <typename S>
__device__ inline const void* weights_of_row(const RowWeights& w, std::int64_t row) {
  if (w.row_stride == 0) return w.data;
  return static_cast<const S*>(w.data) + static_cast<std::uint32_t>(row) / w.repeat % w.period * w.row_stride;
}

// Chunk `index` of a row's scale. Where both roundings are certain, a float32 scale is rounded to x's type at once, and
// the kernel is the same for both.
template <typename T, typename S, int kForm>
__device__ inline WeightChunk<T, S> scale_chunk(const RowWeights& w, const void* from, int index) {
  WeightChunk<T, S> chunk;
  if constexpr (kForm == kTwoRoundings) {
    if (w.type == RMS_NORM_FLOAT32) {
      WeightChunk<T, float> wide;
      wide.load(from, index, w.single);
      chunk.raw[0] = wide.packed();
      return chunk;
    }
  }
  chunk.load(from, index, w.single);
  return chunk;
}

// All that is left of a row that is not ordinary. It is seldom, and reads everything again: the kernel then keeps
// nothing for it, and it is short.
template <typename T, typename S, int kSums, bool kResidual, int kForm>
__device__ inline void finish_odd(const SumOf<T>& sum, const RowArgs& a, std::int64_t row, SumOf<T>* partial) {
  constexpr int kValues = kChunk<T>;
  const int group = 1 << a.group_log2;
  const int lane = static_cast<int>(threadIdx.x) & (group - 1);
  const bool there = row < a.outer;
  const int chunks = there ? a.chunks : 0;
  const std::int64_t start = row * a.chunks;
  const void* const again = kResidual ? a.sum : a.x;  // this thread has stored those of its chunks
  const Factor factor = rescued<T, kSums>(sum, a, partial, [&](auto& results, float shift) {
#pragma unroll 1
    for (int first = lane; first < chunks; first += kSums * group) {
#pragma unroll
      for (int q = 0; q < kSums; ++q) {
        const int index = first + q * group;
        if (index < chunks) results[q].take(shift, load_chunk(again, start + index), a.measured - index * kValues);
      }
    }
  });
  const void* const scale = there ? weights_of_row<S>(a.scale, row) : nullptr;
  const void* const bias = there && a.bias.data ? weights_of_row<S>(a.bias, row) : nullptr;
#pragma unroll 1
  for (int index = lane; index < chunks; index += group) {
    const WeightChunk<T, S> w = scale_chunk<T, S, kForm>(a.scale, scale, index);
    const uint4 raw = load_chunk(again, start + index);
    store_chunk(a.y, start + index, finished<T, S, kForm, false>(raw, factor, w, bias, index, a));
  }
}

// Least number of resident blocks of 256 threads that the compiler has to leave registers for. What counts is that
// enough bytes are in flight on a multiprocessor (by Little's law an H100 wants some 20 KB of loads) and that nothing
// spills. Blocks, registers a thread, and bytes of x and residual in flight:
//
//   chunks   x and scale of its type   with residual, or a float32 scale   with both
//     2       4    64    32 KB          4    64    64 KB, 32 KB              3    80    48 KB
//     4       3    80    48 KB
constexpr int resident_blocks(int chunks, bool residual, bool wide_scale) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  if (wide_scale) return 3;  // bfloat16 is rounded by several instructions there, which need registers of their own
#endif
  return chunks == 4 || (residual && wide_scale) ? 3 : 4;
}

// Rows of at most kChunks chunks to a thread, kept in registers.
template <typename T, typename S, int kChunks, bool kResidual, int kForm>
__global__ void __launch_bounds__(kRowsThreads, resident_blocks(kChunks, kResidual, sizeof(S) != sizeof(T)))
    rows_kernel(const __grid_constant__ RowArgs a) {
  wait_for_earlier_grids();
  constexpr int kValues = kChunk<T>;
  constexpr int kSums = kChunks / 2;
  constexpr bool kPlain = kForm != kAnyForm;
  // An ordinary call has so few rows that their numbers fit 32 bits. Offsets never do.
  using Row = std::conditional_t<kPlain, std::int32_t, std::int64_t>;
  const int group = 1 << a.group_log2;
  const int lane = static_cast<int>(threadIdx.x) & (group - 1);
  const int chunks = a.chunks;
  const Row rows = static_cast<Row>(a.outer);
  const Row rows_per_block = static_cast<Row>(blockDim.x >> a.group_log2);
  const Row step = rows_per_block * static_cast<Row>(gridDim.x);
  auto* const partial = reinterpret_cast<SumOf<T>*>(shared_memory);
  int turn = 0;
  WeightChunk<T, S> scale[kChunks];
  bool loaded = false;

  // The bound is the same for the whole block, so that every thread reaches every barrier and shuffle.
  Row first = static_cast<Row>(blockIdx.x) * rows_per_block;
  std::int64_t start = static_cast<std::int64_t>(first + static_cast<Row>(threadIdx.x >> a.group_log2)) * chunks + lane;
  for (; first < rows; first += step, start += static_cast<std::int64_t>(step) * chunks) {
    const Row row = first + static_cast<Row>(threadIdx.x >> a.group_log2);
    bool has[kChunks];
    uint4 x[kChunks];
    uint4 residual[kChunks];
#pragma unroll
    for (int p = 0; p < kChunks; ++p) {
      has[p] = row < rows && lane + p * group < chunks;
      x[p] = has[p] ? load_chunk(a.x, start + p * group) : make_uint4(0, 0, 0, 0);
      if (kResidual) residual[p] = has[p] ? load_chunk(a.residual, start + p * group) : make_uint4(0, 0, 0, 0);
    }
    // Asked for now, needed only after the reduction; the same for all rows of this block unless scale has outer
    // dimensions.
    if (!loaded) {
      loaded = kPlain || a.scale.row_stride == 0;
      const void* const from = !kPlain && row < rows ? weights_of_row<S>(a.scale, row) : a.scale.data;
#pragma unroll
      for (int p = 0; p < kChunks; ++p) {
        const int index = lane + p * group;
        if (index < chunks) scale[p] = scale_chunk<T, S, kForm>(a.scale, from, index);
      }
    }

    SumOf<T> sums[kSums];
#pragma unroll
    for (int p = 0; p < kChunks; ++p) {
      if (kResidual) {
        x[p] = added<T>(x[p], residual[p], a.statistic);
        if (has[p]) store_chunk(a.sum, start + p * group, x[p]);
      }
      float v[kValues];
      unpack_measured<T, kPlain>(x[p], v, a.measured - (lane + p * group) * kValues);
      sums[p % kSums].add(squares<T>(v));
    }
    const SumOf<T> sum = reduced(sums, a.group_log2, partial + turn * kMostWarps);
    turn ^= 1;
    const Mean mean = mean_of(sum, a.statistic);
    const void* const bias = !kPlain && a.bias.data && row < rows ? weights_of_row<S>(a.bias, row) : nullptr;
    if (is_ordinary(mean, a.statistic)) {  // the same in all threads of a row
      const Factor factor = factor_of(mean, a.statistic, sum);
#pragma unroll
      for (int p = 0; p < kChunks; ++p) {
        keep_packed(x[p]);
        if (!kPlain && !has[p]) continue;  // a bias is not read behind its end; all else is cheaper without a branch
        const uint4 y = finished<T, S, kForm, true>(x[p], factor, scale[p], bias, lane + p * group, a);
        if (has[p]) store_chunk(a.y, start + p * group, y);
      }
    } else {
      finish_odd<T, S, kSums, kResidual, kForm>(sum, a, row, partial);
    }
  }
}

// Longer rows, one to a block. Kept in shared memory if that has room for a row, with its residual beside it; with room
// for a second one, the next row is copied there while this one is worked on. Else read twice.
template <typename T, typename S, bool kResidual>
__global__ void __launch_bounds__(kLongRowsThreads, 2) long_rows_kernel(const __grid_constant__ RowArgs a) {
  wait_for_earlier_grids();
  constexpr int kValues = kChunk<T>;
  constexpr int kBatch = 2;
  const int chunks = a.chunks;
  const int stride = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  auto* const partial = reinterpret_cast<SumOf<T>*>(shared_memory);
  int turn = 0;
  // Each thread reads only what it has copied or put away itself. So it waits for nobody else's copies, and copies into
  // a buffer when it has finished with what was there: its last stores to y needed that.
  const auto buffer = [&](std::int64_t row) {
    const bool second = a.buffers == 2 && (row / gridDim.x & 1) != 0;
    return shared_memory + kReduceBytes / 16 + (second ? (kResidual ? 2 : 1) * chunks : 0);
  };
  const auto fetch = [&](std::int64_t row) {
    if (row < a.outer) {
      uint4* const to = buffer(row);
      for (int index = thread; index < chunks; index += stride) {
        copy_ahead(to + index, a.x, row * chunks + index);
        if (kResidual) copy_ahead(to + chunks + index, a.residual, row * chunks + index);
      }
    }
    end_of_copies();
  };

  if (a.buffers == 2) fetch(blockIdx.x);
  for (std::int64_t row = blockIdx.x; row < a.outer; row += gridDim.x) {
    const std::int64_t start = row * chunks;
    uint4* const kept = buffer(row);
    if (a.buffers == 2) {
      fetch(row + gridDim.x);
      wait_for_copies<1>();
    } else if (a.buffers == 1) {
      fetch(row);
      wait_for_copies<0>();
    }
    SumOf<T> sums[1];
    for (int first = thread; first < chunks; first += kBatch * stride) {
      uint4 x[kBatch];
      uint4 residual[kBatch];
#pragma unroll
      for (int p = 0; p < kBatch; ++p) {
        const int index = first + p * stride;
        x[p] = residual[p] = make_uint4(0, 0, 0, 0);
        if (index >= chunks) continue;
        x[p] = a.buffers ? kept[index] : load_chunk(a.x, start + index);
        if (kResidual) residual[p] = a.buffers ? kept[chunks + index] : load_chunk(a.residual, start + index);
      }
#pragma unroll
      for (int p = 0; p < kBatch; ++p) {
        const int index = first + p * stride;
        if (kResidual) {
          x[p] = added<T>(x[p], residual[p], a.statistic);
          if (index < chunks) store_chunk(a.sum, start + index, x[p]);
          if (a.buffers && index < chunks) kept[index] = x[p];
        }
        float v[kValues];
        unpack_measured<T, false>(x[p], v, a.measured - static_cast<std::int64_t>(index) * kValues);
        sums[0].add(squares<T>(v));
      }
    }
    const uint4* const again =
        a.buffers ? kept : static_cast<const uint4*>(kResidual ? static_cast<const void*>(a.sum) : a.x) + start;
    const void* const from = weights_of_row<S>(a.scale, row);
    WeightChunk<T, S> scale[kBatch];
#pragma unroll
    for (int p = 0; p < kBatch; ++p) {
      const int index = thread + p * stride;
      if (index < chunks) scale[p].load(from, index, a.scale.single);
    }
    const SumOf<T> sum = reduced(sums, a.group_log2, partial + turn * kMostWarps);
    turn ^= 1;
    const Mean mean = mean_of(sum, a.statistic);
    Factor factor = factor_of(mean, a.statistic, sum);
    if (!is_ordinary(mean, a.statistic)) {
      factor = rescued<T, 1>(sum, a, partial, [&](auto& results, float shift) {
        for (int index = thread; index < chunks; index += stride) {
          const uint4 raw = again[index];  // a reference would be read byte by byte
          results[0].take(shift, raw, a.measured - static_cast<std::int64_t>(index) * kValues);
        }
      });
    }
    const void* const bias = a.bias.data ? weights_of_row<S>(a.bias, row) : nullptr;
    for (int first = thread; first < chunks; first += kBatch * stride) {
      uint4 x[kBatch];
#pragma unroll
      for (int p = 0; p < kBatch; ++p) {
        const int index = first + p * stride;
        x[p] = index < chunks ? again[index] : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int p = 0; p < kBatch; ++p) {
        const int index = first + p * stride;
        if (index < chunks) {
          store_chunk(a.y, start + index, finished<T, S, kAnyForm, false>(x[p], factor, scale[p], bias, index, a));
          const int next = index + kBatch * stride;
          if (next < chunks) scale[p].load(from, next, a.scale.single);
        }
      }
    }
  }
}

}  // namespace cuda
}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CUDA_ROWS_CUH_
