// Norms of rows with a gate, in chunks of 16 bytes, under the conditions of rows.cuh: so the gate's rows too begin on a
// multiple of 16 bytes. The order of additions is that of output_rows_kernel.
#ifndef RMSNORM_DEPLOY_CUDA_GATED_ROWS_CUH_
#define RMSNORM_DEPLOY_CUDA_GATED_ROWS_CUH_

#include "gate.cuh"
#include "rows.cuh"

namespace rmsnorm_deploy {
namespace cuda {

// The values of one chunk that are normalised, and of its gate after the activation.
template <typename T>
struct GatedChunk {
  float x[kChunk<T>];
  float g[kChunk<T>];

  // Chunk `index` of a row that begins at chunk `start`.
  __device__ void load(const RowArgs& a, const Gate& gate, std::int64_t start, int index) {
    unpack(load_chunk(a.x, start + index), x, static_cast<const T*>(nullptr));
    if (sizeof(T) == 2 && gate.wide) {
      uint4 raw[2];
      raw[0] = load_chunk(gate.data, 2 * (start + index));
      raw[1] = load_chunk(gate.data, 2 * (start + index) + 1);
      memcpy(g, raw, sizeof g);
    } else {
      unpack(load_chunk(gate.data, start + index), g, static_cast<const T*>(nullptr));
    }
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) g[i] = activated(g[i], gate.silu);
    if (gate.place != RMS_NORM_GATED_FIRST) return;
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) x[i] *= g[i];
  }

  __device__ float largest() const {
    float most = 0;
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) most = fmaxf(most, fabsf(x[i]));
    return most;
  }

  // The results.
  __device__ uint4 finished(const Factor& f, const RowArgs& a, const Gate& gate, const void* scale, int index) const {
    const bool twice = sizeof(T) == 2 && a.round_type != RMS_NORM_FLOAT32;
    float v[kChunk<T>];
    float w[kChunk<T>];
    if (sizeof(T) == 2 && a.scale.type == RMS_NORM_FLOAT32) {
      WeightChunk<T, float> chunk;
      chunk.load(scale, index, a.scale.single);
      chunk.unpacked(w);
      if (twice) round_all<T>(w);
    } else {
      WeightChunk<T, T> chunk;
      chunk.load(scale, index, a.scale.single);
      chunk.unpacked(w);
    }
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) v[i] = normalised<T>(x[i], f);
    if (twice) round_all<T>(v);
    if (gate.place == RMS_NORM_GATED_NORMALISED) {
#pragma unroll
      for (int i = 0; i < kChunk<T>; ++i) v[i] *= g[i];
      if (twice) round_all<T>(v);
    }
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) v[i] *= w[i];
    if (gate.place == RMS_NORM_GATED_LAST) {
      if (twice) round_all<T>(v);
#pragma unroll
      for (int i = 0; i < kChunk<T>; ++i) v[i] *= g[i];
    }
    return pack(v, static_cast<const T*>(nullptr));
  }
};

// 2^group_log2 threads to a row, as many as two chunks to a thread take, at most a block of kLongRowsThreads. The first
// two chunks of a thread stay in registers with their gate, after the activation; further ones are read again, from L2,
// and activated again.
template <typename T>
__global__ void __launch_bounds__(kLongRowsThreads, 1) gated_rows_kernel(const __grid_constant__ GatedRowArgs all) {
  wait_for_earlier_grids();
  constexpr int kKept = 2;
  const RowArgs& a = all.row;
  const Gate& gate = all.gate;
  const int group = 1 << a.group_log2;
  const int lane = static_cast<int>(threadIdx.x) & (group - 1);
  const std::int64_t rows_per_block = static_cast<std::int64_t>(blockDim.x >> a.group_log2);
  auto* const partial = reinterpret_cast<SumOf<T>*>(shared_memory);
  int turn = 0;
  // The bound is the same for the whole block, so that every thread reaches every barrier and shuffle.
  for (std::int64_t first = blockIdx.x * rows_per_block; first < a.outer; first += rows_per_block * gridDim.x) {
    const std::int64_t row = first + (threadIdx.x >> a.group_log2);
    const bool there = row < a.outer;
    const int chunks = there ? a.chunks : 0;
    const std::int64_t start = row * a.chunks;

    SumOf<T> sums[1];
    GatedChunk<T> kept[kKept];
#pragma unroll
    for (int p = 0; p < kKept; ++p) {
      const int index = lane + p * group;
      if (index >= chunks) continue;
      kept[p].load(a, gate, start, index);
      sums[0].add(squares<T>(kept[p].x));
    }
#pragma unroll 1
    for (int index = lane + kKept * group; index < chunks; index += group) {
      GatedChunk<T> chunk;
      chunk.load(a, gate, start, index);
      sums[0].add(squares<T>(chunk.x));
    }
    const SumOf<T> sum = reduced(sums, a.group_log2, partial + turn * kMostWarps);
    turn ^= 1;
    const Mean mean = mean_of(sum, a.statistic);
    Factor factor = factor_of(mean, a.statistic, sum);
    if (!is_ordinary(mean, a.statistic)) {  // the same in all threads of a row, and no others need to come here
      const unsigned lanes = lanes_of_row(a.group_log2);
      Largest<T> most[1];
#pragma unroll 1
      for (int index = lane; index < chunks; index += group) {
        GatedChunk<T> chunk;
        chunk.load(a, gate, start, index);
        most[0].value = fmaxf(most[0].value, chunk.largest());
      }
      const float largest =
          reduced_alone(most, lanes, a.group_log2, reinterpret_cast<Largest<T>*>(partial + 2 * kMostWarps)).value;
      const float shift = scaling(largest, a.statistic);
      SumOf<T> scaled[1];
#pragma unroll 1
      for (int index = lane; index < chunks; index += group) {
        GatedChunk<T> chunk;
        chunk.load(a, gate, start, index);
#pragma unroll
        for (int i = 0; i < kChunk<T>; ++i) chunk.x[i] *= shift;
        scaled[0].add(squares<T>(chunk.x));
      }
      const SumOf<T> total = reduced_alone(scaled, lanes, a.group_log2, partial + 3 * kMostWarps);
      factor = rescued_factor(sum, total, largest, shift, a.statistic);
    }

    const void* const scale = sizeof(T) == 2 && a.scale.type == RMS_NORM_FLOAT32
                                  ? weights_of_row<float>(a.scale, there ? row : 0)
                                  : weights_of_row<T>(a.scale, there ? row : 0);
#pragma unroll
    for (int p = 0; p < kKept; ++p) {
      const int index = lane + p * group;
      if (index < chunks) store_chunk(a.y, start + index, kept[p].finished(factor, a, gate, scale, index));
    }
#pragma unroll 1
    for (int index = lane + kKept * group; index < chunks; index += group) {
      GatedChunk<T> chunk;
      chunk.load(a, gate, start, index);
      store_chunk(a.y, start + index, chunk.finished(factor, a, gate, scale, index));
    }
  }
}

}  // namespace cuda
}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CUDA_GATED_ROWS_CUH_
