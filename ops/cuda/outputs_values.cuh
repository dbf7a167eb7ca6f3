// Norms of rows with outputs of version 2 of the contract, value by value: rows of any length with any weights. The
// order of additions is that of strided.cuh, and so are the bits of y.
#ifndef RMSNORM_DEPLOY_CUDA_OUTPUTS_VALUES_CUH_
#define RMSNORM_DEPLOY_CUDA_OUTPUTS_VALUES_CUH_

#include "outputs.cuh"
#include "strided.cuh"

namespace rmsnorm_deploy {
namespace cuda {

template <typename T>
__global__ void __launch_bounds__(kStridedThreads, 2) output_values_kernel(const __grid_constant__ OutputArgs all) {
  wait_for_earlier_grids();
  const Args& a = all.row;
  const Outputs& out = all.out;
  const int units_per_block = kStridedThreads / a.slices;
  const bool twice = sizeof(T) == 2 && a.round_type != RMS_NORM_FLOAT32;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * units_per_block; first < a.outer;
       first += static_cast<std::int64_t>(gridDim.x) * units_per_block) {
    const Place place = place_of(a, first, 1);
    const std::int64_t row = place.active ? place.outer : 0;
    const std::int64_t size = place.active ? a.size : 0;
    const std::int64_t measured = place.active ? a.measured : 0;
    const Starts at = starts_of(out, row);
    const T* const x = static_cast<const T*>(a.x) + at.of[kRowsOfX];
    SumOf<T> sums[1];
    for (std::int64_t i = place.slice; i < size; i += a.slices) {
      T value = x[i];
      if (a.residual) {
        const T residual = static_cast<const T*>(a.residual)[at.of[kRowsOfResidual] + i];
        narrow(combined(widen(value), widen(residual), a.statistic), value);
        static_cast<T*>(a.sum)[at.of[kRowsOfSum] + i] = value;
      }
      if (i < measured) sums[0].add(widen(value) * widen(value));
    }
    reduce_slices(sums, a, place.slice);
    const T* const again = a.residual ? static_cast<const T*>(a.sum) + at.of[kRowsOfSum] : x;
    const Mean mean = mean_of(sums[0], a.statistic);
    Factor factor = factor_of(mean, a.statistic, sums[0]);
    const bool ordinary = !place.active || is_ordinary(mean, a.statistic);
    if (__syncthreads_or(!ordinary)) {
      LargestOf most[1];
      for (std::int64_t i = place.slice; i < measured; i += a.slices) {
        most[0].value = fmaxf(most[0].value, fabsf(widen(again[i])));
      }
      reduce_slices(most, a, place.slice);
      const float shift = scaling(most[0].value, a.statistic);
      SumOf<T> scaled[1];
      for (std::int64_t i = place.slice; i < measured; i += a.slices) {
        const float v = widen(again[i]) * shift;
        scaled[0].add(v * v);
      }
      reduce_slices(scaled, a, place.slice);
      if (!ordinary) factor = rescued_factor(sums[0], scaled[0], most[0].value, shift, a.statistic);
    }

    const std::int64_t scale_start = place.active ? weights_start<1>(a.scale, place) : 0;
    const std::int64_t bias_start = place.active && a.bias.data ? weights_start<1>(a.bias, place) : 0;
    const Quantisation q = quantisation_of(out, row);
    Extremes extremes[1];
    for (std::int64_t i = place.slice; i < size; i += a.slices) {
      float v = normalised<T>(widen(again[i]), factor);
      if (twice) v = rounded<T>(v);
      v *= weight_of<T, 1>(a.scale, scale_start, i, a.round_type);
      if (twice) v = rounded<T>(v);
      if (a.bias.data) {
        v += weight_of<T, 1>(a.bias, bias_start, i, a.round_type);
        if (twice) v = rounded<T>(v);
      }
      v = round_to(v, out.y_type);
      if (a.y) store_value(a.y, out.y_type, at.of[kRowsOfY] + i, v);
      if (out.quantised_type) {
        static_cast<unsigned char*>(out.quantised)[at.of[kRowsOfQuantised] + i] =
            static_cast<unsigned char>(quantised(v, out, q));
      }
      extremes[0].take(v);
    }
    if (out.least || out.most) {
      reduce_slices(extremes, a, place.slice);
      if (place.active && place.slice == 0) store_extremes(out, row, extremes[0]);
    }
  }
}

// Arithmetic in float64, for rows that lie apart; the contract has nothing else of version 2 there.
template <typename T>
__global__ void __launch_bounds__(kStridedThreads, 2)
    float64_output_values_kernel(const __grid_constant__ OutputArgs all) {
  wait_for_earlier_grids();
  const Args& a = all.row;
  const int units_per_block = kStridedThreads / a.slices;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * units_per_block; first < a.outer;
       first += static_cast<std::int64_t>(gridDim.x) * units_per_block) {
    const Place place = place_of(a, first, 1);
    const std::int64_t size = place.active ? a.size : 0;
    const Starts at = starts_of(all.out, place.active ? place.outer : 0);
    const T* const x = static_cast<const T*>(a.x) + at.of[kRowsOfX];
    Sum<double, true> sums[1];
    for (std::int64_t i = place.slice; i < size; i += a.slices) {
      T value = x[i];
      if (a.residual) {
        const T residual = static_cast<const T*>(a.residual)[at.of[kRowsOfResidual] + i];
        narrow(combined(static_cast<double>(widen(value)), static_cast<double>(widen(residual)), a.statistic), value);
        static_cast<T*>(a.sum)[at.of[kRowsOfSum] + i] = value;
      }
      const double v = widen(value);
      if (i < a.measured) sums[0].add(v * v);
    }
    reduce_slices(sums, a, place.slice);
    const double total = isinf(sums[0].value) ? sums[0].value : sums[0].total();
    const double rms = rms_of(total, a.statistic);
    const T* const again = a.residual ? static_cast<const T*>(a.sum) + at.of[kRowsOfSum] : x;
    const std::int64_t scale_start = place.active ? outer_offset(a.scale, place.outer) : 0;
    const std::int64_t bias_start = place.active && a.bias.data ? outer_offset(a.bias, place.outer) : 0;
    for (std::int64_t i = place.slice; i < size; i += a.slices) {
      double v = round_to(static_cast<double>(widen(again[i])) / rms, a.round_type);
      v = round_to(v * weight_at<double>(a.scale, scale_start + axes_offset(a.scale, i), a.round_type), a.round_type);
      if (a.bias.data) {
        const double bias = weight_at<double>(a.bias, bias_start + axes_offset(a.bias, i), a.round_type);
        v = round_to(v + bias, a.round_type);
      }
      narrow(v, static_cast<T*>(a.y)[at.of[kRowsOfY] + i]);
    }
  }
}

}  // namespace cuda
}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CUDA_OUTPUTS_VALUES_CUH_
