#include "weights.h"

#include <algorithm>
#include <new>

#include "../contract/check.h"
#include "address.h"
#include "convert.h"

namespace rmsnorm_deploy {

bool Weights::lay_out(const rms_norm_params& params, const void* given, const std::int64_t* strides, bool float64,
                      bool already_rounded) {
  const std::int32_t begin = params.axis_begin;
  const std::int32_t end = begin + params.axis_count;
  const std::int64_t* shape = params.shape;
  for (std::int32_t i = end; i < params.rank; ++i) by_column = by_column || (strides[i] && shape[i] > 1);

  // The wanted layout: leading dimensions along which the values differ, then the normalised ones, then columns.
  const std::int32_t last = by_column ? params.rank : end;
  std::int64_t wanted[RMS_NORM_MAX_RANK] = {};
  std::int64_t count = 1;
  bool same = true;
  for (std::int32_t i = last - 1; i >= 0; --i) {
    const bool spread = i >= begin || (strides[i] != 0 && shape[i] > 1);
    if (!spread) continue;
    wanted[i] = count;
    if (shape[i] > 1) same = same && strides[i] == count;
    count *= shape[i];
  }
  std::copy(wanted, wanted + begin, outer_strides);

  const std::int32_t to = float64 ? RMS_NORM_FLOAT64 : RMS_NORM_FLOAT32;
  const std::int32_t round_type = already_rounded ? RMS_NORM_FLOAT64 : params.round_type;
  const bool exact = already_rounded || round_type == params.scale_type || element_size(round_type) > 4 ||
                     (round_type == RMS_NORM_FLOAT32 && params.scale_type != RMS_NORM_FLOAT64);
  if (same && exact && params.scale_type == to) {
    data = given;
    return true;
  }
  const std::int64_t bytes = element_size(to);
  owned.reset(new (std::nothrow) unsigned char[static_cast<std::size_t>(count * bytes)]);
  if (!owned) return false;
  data = owned.get();
  const std::int64_t from_bytes = element_size(params.scale_type);
  if (same) {
    convert(given, params.scale_type, count, round_type, to, owned.get());
    return true;
  }
  // An odometer over the wanted layout. Its last dimension is a run that is converted at once where it is contiguous,
  // and filled with one value where scale or bias is broadcast along it.
  std::int32_t inmost = last - 1;
  while (inmost > 0 && (wanted[inmost] == 0 || shape[inmost] == 1)) --inmost;
  const std::int64_t run = wanted[inmost] == 0 ? 1 : shape[inmost];
  const std::int64_t step = run == 1 ? 0 : strides[inmost];
  std::int64_t index[RMS_NORM_MAX_RANK] = {};
  std::int64_t from = 0;
  for (std::int64_t done = 0; done < count; done += run) {
    unsigned char* const result = owned.get() + done * bytes;
    const void* const source = advance(given, from * from_bytes);
    if (step == 1) {
      convert(source, params.scale_type, run, round_type, to, result);
    } else {
      for (std::int64_t i = 0; i < (step ? run : 1); ++i) {
        convert(advance(source, i * step * from_bytes), params.scale_type, 1, round_type, to, result + i * bytes);
      }
      if (step == 0 && float64) std::fill_n(at<double>(result, 0), run, *at<double>(result, 0));
      if (step == 0 && !float64) std::fill_n(at<float>(result, 0), run, *at<float>(result, 0));
    }
    for (std::int32_t i = inmost - 1; i >= 0; --i) {
      if (wanted[i] == 0 || shape[i] == 1) continue;
      from += strides[i];
      if (++index[i] < shape[i]) break;
      from -= strides[i] * shape[i];
      index[i] = 0;
    }
  }
  return true;
}

std::int64_t Weights::offset(const rms_norm_params& params, std::int64_t outer) const noexcept {
  std::int64_t result = 0;
  for (std::int32_t i = params.axis_begin - 1; i >= 0 && outer; --i) {
    result += outer % params.shape[i] * outer_strides[i];
    outer /= params.shape[i];
  }
  return result;
}

}  // namespace rmsnorm_deploy
