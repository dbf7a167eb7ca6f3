// Norms of rows with outputs of version 2 of the contract, in chunks of 16 bytes: rows are a whole number of chunks
// long, and lie anywhere. The order of additions is that of rows.cuh, and so are the bits of y.
#ifndef RMSNORM_DEPLOY_CUDA_OUTPUTS_ROWS_CUH_
#define RMSNORM_DEPLOY_CUDA_OUTPUTS_ROWS_CUH_

#include "outputs.cuh"
#include "rows.cuh"

namespace rmsnorm_deploy {
namespace cuda {

// Chunk of T at `offset` elements, wherever that is.
template <typename T>
__device__ inline uint4 load_anywhere(const void* base, std::int64_t offset, bool in_chunks) {
  const T* const from = static_cast<const T*>(base) + offset;
  if (in_chunks) return load_chunk(from, 0);
  T values[kChunk<T>];
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) values[i] = from[i];
  uint4 raw;
  memcpy(&raw, values, sizeof raw);
  return raw;
}
template <typename T>
__device__ inline void store_anywhere(void* base, std::int64_t offset, bool in_chunks, const uint4& raw) {
  T* const to = static_cast<T*>(base) + offset;
  if (in_chunks) return store_chunk(to, 0, raw);
  T values[kChunk<T>];
  memcpy(values, &raw, sizeof raw);
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) to[i] = values[i];
}

// The results of one chunk as the norm gives them, before they are rounded to y's type.
template <typename T>
__device__ inline void results_of(const uint4& raw, const Factor& f, const RowArgs& a, const void* scale,
                                  const void* bias, int index, float (&v)[kChunk<T>]) {
  constexpr int kValues = kChunk<T>;
  const bool twice = sizeof(T) == 2 && a.round_type != RMS_NORM_FLOAT32;
  const auto weights = [&](const RowWeights& w, const void* from, float (&values)[kValues]) {
    if (sizeof(T) == 2 && w.type == RMS_NORM_FLOAT32) {
      WeightChunk<T, float> chunk;
      chunk.load(from, index, w.single);
      chunk.unpacked(values);
      if (twice) round_all<T>(values);
    } else {
      WeightChunk<T, T> chunk;
      chunk.load(from, index, w.single);
      chunk.unpacked(values);
    }
  };
  float w[kValues];
  weights(a.scale, scale, w);
  unpack(raw, v, static_cast<const T*>(nullptr));
#pragma unroll
  for (int i = 0; i < kValues; ++i) v[i] = normalised<T>(v[i], f);
  if constexpr (sizeof(T) == 2) {
    if (twice) {
      // Both are of 16 bits by now. A product that is subnormal in float32 would be rounded twice.
      const uint4 y = product(pack(v, static_cast<const T*>(nullptr)), pack(w, static_cast<const T*>(nullptr)),
                              static_cast<const T*>(nullptr));
      unpack(y, v, static_cast<const T*>(nullptr));
    }
  }
  if (!twice) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) v[i] *= w[i];
  }
  if (bias) {
    weights(a.bias, bias, w);
#pragma unroll
    for (int i = 0; i < kValues; ++i) v[i] += w[i];
    if (twice) round_all<T>(v);
  }
}

// y of one chunk: rounds the values to its type, and stores them.
template <typename T>
__device__ inline void hand_over(float (&v)[kChunk<T>], const Outputs& out, void* y, std::int64_t offset) {
  constexpr int kValues = kChunk<T>;
  const bool in_chunks = out.in_chunks >> kRowsOfY & 1;
  if constexpr (sizeof(T) == 4) {
    if (out.y_type != RMS_NORM_FLOAT32) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) v[i] = round_to(v[i], out.y_type);
      if (!y) return;
#pragma unroll
      for (int i = 0; i < kValues; ++i) store_value(y, out.y_type, offset + i, v[i]);
      return;
    }
    if (y) store_anywhere<float>(y, offset, in_chunks, pack(v, static_cast<const float*>(nullptr)));
  } else {
    if (out.y_type != RMS_NORM_FLOAT32) {
      const uint4 raw = pack(v, static_cast<const T*>(nullptr));
      if (y) store_anywhere<T>(y, offset, in_chunks, raw);
      unpack(raw, v, static_cast<const T*>(nullptr));
      return;
    }
    if (!y) return;
#pragma unroll
    for (int half = 0; half < kValues; half += 4) {
      const float four[4] = {v[half], v[half + 1], v[half + 2], v[half + 3]};
      store_anywhere<float>(y, offset + half, in_chunks, pack(four, static_cast<const float*>(nullptr)));
    }
  }
}

// 8 bits of each value of one chunk.
template <typename T>
__device__ inline void store_quantised(const float (&v)[kChunk<T>], const Outputs& out, const Quantisation& q,
                                       std::int64_t offset) {
  constexpr int kWords = kChunk<T> / 4;
  unsigned words[kWords];
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    words[k] = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) words[k] |= quantised(v[4 * k + i], out, q) << 8 * i;
  }
  unsigned char* const to = static_cast<unsigned char*>(out.quantised) + offset;
  if (out.in_chunks >> kRowsOfQuantised & 1) {
    if constexpr (kWords == 2) {
      *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    } else {
      *reinterpret_cast<unsigned*>(to) = words[0];
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 4 * kWords; ++i) to[i] = static_cast<unsigned char>(words[i / 4] >> 8 * (i % 4));
}

// 2^group_log2 threads to a row, as many as two chunks to a thread take, at most a block of kLongRowsThreads. The first
// two chunks of a thread stay in registers, further ones are read again, from L2.
template <typename T>
__global__ void __launch_bounds__(kLongRowsThreads, 1) output_rows_kernel(const __grid_constant__ OutputRowArgs all) {
  wait_for_earlier_grids();
  constexpr int kValues = kChunk<T>;
  constexpr int kKept = 2;
  const RowArgs& a = all.row;
  const Outputs& out = all.out;
  const int group = 1 << a.group_log2;
  const int lane = static_cast<int>(threadIdx.x) & (group - 1);
  const std::int64_t rows_per_block = static_cast<std::int64_t>(blockDim.x >> a.group_log2);
  auto* const partial = reinterpret_cast<SumOf<T>*>(shared_memory);
  auto* const partial_extremes = reinterpret_cast<Extremes*>(shared_memory + kReduceBytes / 16);
  const auto in_chunks = [&](RowTensor tensor) { return (out.in_chunks >> tensor & 1) != 0; };
  int turn = 0;
  // The bound is the same for the whole block, so that every thread reaches every barrier and shuffle.
  for (std::int64_t first = blockIdx.x * rows_per_block; first < a.outer; first += rows_per_block * gridDim.x) {
    const std::int64_t row = first + (threadIdx.x >> a.group_log2);
    const bool there = row < a.outer;
    const int chunks = there ? a.chunks : 0;
    const Starts at = starts_of(out, there ? row : 0);
    const auto enter = [&](int index) {
      uint4 x = load_anywhere<T>(a.x, at.of[kRowsOfX] + index * kValues, in_chunks(kRowsOfX));
      if (a.residual) {
        const std::int64_t from = at.of[kRowsOfResidual] + index * kValues;
        x = added<T>(x, load_anywhere<T>(a.residual, from, in_chunks(kRowsOfResidual)), a.statistic);
        store_anywhere<T>(a.sum, at.of[kRowsOfSum] + index * kValues, in_chunks(kRowsOfSum), x);
      }
      return x;
    };
    const auto again = [&](int index) {  // what enter() gave: this thread has stored it
      return a.residual ? load_anywhere<T>(a.sum, at.of[kRowsOfSum] + index * kValues, in_chunks(kRowsOfSum))
                        : load_anywhere<T>(a.x, at.of[kRowsOfX] + index * kValues, in_chunks(kRowsOfX));
    };
    const auto squares_of = [&](const uint4& raw, int index) {
      float v[kValues];
      unpack_measured<T, false>(raw, v, a.measured - static_cast<std::int64_t>(index) * kValues);
      return squares<T>(v);
    };

    SumOf<T> sums[1];
    uint4 kept[kKept];
#pragma unroll
    for (int p = 0; p < kKept; ++p) {
      const int index = lane + p * group;
      kept[p] = make_uint4(0, 0, 0, 0);
      if (index >= chunks) continue;
      kept[p] = enter(index);
      sums[0].add(squares_of(kept[p], index));
    }
#pragma unroll 1
    for (int index = lane + kKept * group; index < chunks; index += group) {
      sums[0].add(squares_of(enter(index), index));
    }
    const SumOf<T> sum = reduced(sums, a.group_log2, partial + turn * kMostWarps);
    turn ^= 1;
    const Mean mean = mean_of(sum, a.statistic);
    Factor factor = factor_of(mean, a.statistic, sum);
    if (!is_ordinary(mean, a.statistic)) {  // the same in all threads of a row
      factor = rescued<T, 1>(sum, a, partial, [&](auto& results, float shift) {
#pragma unroll 1
        for (int index = lane; index < chunks; index += group) {
          results[0].take(shift, again(index), a.measured - static_cast<std::int64_t>(index) * kValues);
        }
      });
    }

    const void* const scale = sizeof(T) == 2 && a.scale.type == RMS_NORM_FLOAT32
                                  ? weights_of_row<float>(a.scale, there ? row : 0)
                                  : weights_of_row<T>(a.scale, there ? row : 0);
    const void* const bias = !a.bias.data ? nullptr
                             : sizeof(T) == 2 && a.bias.type == RMS_NORM_FLOAT32
                                 ? weights_of_row<float>(a.bias, there ? row : 0)
                                 : weights_of_row<T>(a.bias, there ? row : 0);
    const Quantisation q = quantisation_of(out, there ? row : 0);
    Extremes extremes[1];
    const auto finish = [&](const uint4& raw, int index) {
      float v[kValues];
      results_of<T>(raw, factor, a, scale, bias, index, v);
      hand_over<T>(v, out, a.y, at.of[kRowsOfY] + index * kValues);
      if (out.quantised_type) store_quantised<T>(v, out, q, at.of[kRowsOfQuantised] + index * kValues);
#pragma unroll
      for (int i = 0; i < kValues; ++i) extremes[0].take(v[i]);
    };
#pragma unroll
    for (int p = 0; p < kKept; ++p) {
      keep_packed(kept[p]);
      const int index = lane + p * group;
      if (index < chunks) finish(kept[p], index);
    }
#pragma unroll 1
    for (int index = lane + kKept * group; index < chunks; index += group) finish(again(index), index);
    if (out.least || out.most) {
      // One room for all rows: the next row's sums have a barrier before this is written again.
      const Extremes found = reduced(extremes, a.group_log2, partial_extremes);
      if (there && lane == 0) store_extremes(out, row, found);
    }
  }
}

}  // namespace cuda
}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CUDA_OUTPUTS_ROWS_CUH_
