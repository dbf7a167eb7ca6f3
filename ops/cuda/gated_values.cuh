// Norms with a gate, value by value: any axes, sizes, addresses and weights. The order of additions is that of
// strided.cuh.
#ifndef RMSNORM_DEPLOY_CUDA_GATED_VALUES_CUH_
#define RMSNORM_DEPLOY_CUDA_GATED_VALUES_CUH_

#include "gate.cuh"
#include "strided.cuh"

namespace rmsnorm_deploy {
namespace cuda {

// What a value of x is normalised as.
template <typename T, typename C>
__device__ inline C entered(const Args& a, const Gate& gate, std::int64_t at) {
  const C x = static_cast<C>(widen(static_cast<const T*>(a.x)[at]));
  return gate.place == RMS_NORM_GATED_FIRST ? x * gate_at<T, C>(gate, at) : x;
}

template <typename T>
__global__ void __launch_bounds__(kStridedThreads, 2) gated_values_kernel(const __grid_constant__ GatedArgs all) {
  wait_for_earlier_grids();
  const Args& a = all.row;
  const Gate& gate = all.gate;
  const int units_per_block = kStridedThreads / (a.columns * a.slices);
  const std::int64_t units = a.outer * a.tiles;
  const bool twice = sizeof(T) == 2 && a.round_type != RMS_NORM_FLOAT32;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * units_per_block; first < units;
       first += static_cast<std::int64_t>(gridDim.x) * units_per_block) {
    const Place at = place_of(a, first, 1);
    const std::int64_t start = at.outer * a.size * a.inner + at.column;
    const std::int64_t size = at.active ? a.size : 0;
    SumOf<T> sums[1];
    for (std::int64_t i = at.slice; i < size; i += a.slices) {
      const float v = entered<T, float>(a, gate, start + i * a.inner);
      sums[0].add(v * v);
    }
    reduce_slices(sums, a, at.slice);
    const Mean mean = mean_of(sums[0], a.statistic);
    Factor factor = factor_of(mean, a.statistic, sums[0]);
    const bool ordinary = !at.active || is_ordinary(mean, a.statistic);
    if (__syncthreads_or(!ordinary)) {
      LargestOf most[1];
      for (std::int64_t i = at.slice; i < size; i += a.slices) {
        most[0].value = fmaxf(most[0].value, fabsf(entered<T, float>(a, gate, start + i * a.inner)));
      }
      reduce_slices(most, a, at.slice);
      const float shift = scaling(most[0].value, a.statistic);
      SumOf<T> scaled[1];
      for (std::int64_t i = at.slice; i < size; i += a.slices) {
        const float v = entered<T, float>(a, gate, start + i * a.inner) * shift;
        scaled[0].add(v * v);
      }
      reduce_slices(scaled, a, at.slice);
      if (!ordinary) factor = rescued_factor(sums[0], scaled[0], most[0].value, shift, a.statistic);
    }

    const std::int64_t scale_start = at.active ? weights_start<1>(a.scale, at) : 0;
    for (std::int64_t i = at.slice; i < size; i += a.slices) {
      const std::int64_t here = start + i * a.inner;
      const auto round = [twice](float value) { return twice ? rounded<T>(value) : value; };
      float v = round(normalised<T>(entered<T, float>(a, gate, here), factor));
      if (gate.place == RMS_NORM_GATED_NORMALISED) v = round(v * gate_at<T, float>(gate, here));
      v = round(v * weight_of<T, 1>(a.scale, scale_start, i, a.round_type));
      if (gate.place == RMS_NORM_GATED_LAST) v *= gate_at<T, float>(gate, here);
      narrow(v, static_cast<T*>(a.y)[here]);
    }
  }
}

// Arithmetic in float64.
template <typename T>
__global__ void __launch_bounds__(kStridedThreads, 2)
    float64_gated_values_kernel(const __grid_constant__ GatedArgs all) {
  wait_for_earlier_grids();
  const Args& a = all.row;
  const Gate& gate = all.gate;
  const int units_per_block = kStridedThreads / (a.columns * a.slices);
  const std::int64_t units = a.outer * a.tiles;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * units_per_block; first < units;
       first += static_cast<std::int64_t>(gridDim.x) * units_per_block) {
    const Place at = place_of(a, first, 1);
    const std::int64_t start = at.outer * a.size * a.inner + at.column;
    const std::int64_t size = at.active ? a.size : 0;
    Sum<double, true> sums[1];
    for (std::int64_t i = at.slice; i < size; i += a.slices) {
      const double v = entered<T, double>(a, gate, start + i * a.inner);
      sums[0].add(v * v);
    }
    reduce_slices(sums, a, at.slice);
    // Infinity makes the lost part a NaN.
    const double total = isinf(sums[0].value) ? sums[0].value : sums[0].total();
    const double rms = rms_of(total, a.statistic);
    const std::int64_t scale_start = at.active ? weights_start<1>(a.scale, at) : 0;
    for (std::int64_t i = at.slice; i < size; i += a.slices) {
      const std::int64_t here = start + i * a.inner;
      double v = round_to(entered<T, double>(a, gate, here) / rms, a.round_type);
      if (gate.place == RMS_NORM_GATED_NORMALISED) v = round_to(v * gate_at<T, double>(gate, here), a.round_type);
      v = round_to(v * weight_at<double>(a.scale, scale_start + axes_offset(a.scale, i), a.round_type), a.round_type);
      if (gate.place == RMS_NORM_GATED_LAST) v *= gate_at<T, double>(gate, here);
      narrow(v, static_cast<T*>(a.y)[here]);
    }
  }
}

}  // namespace cuda
}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CUDA_GATED_VALUES_CUH_
