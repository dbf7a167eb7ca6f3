#include "quantise.h"

#include "../contract/check.h"
#include "address.h"
#include "convert.h"
#include "scalar.h"
#include "table.h"

namespace rmsnorm_deploy {
namespace {

float float_at(const void* base, std::int32_t type, std::int64_t index) noexcept {
  switch (type) {
    case RMS_NORM_FLOAT16:
      return static_cast<float>(widen(*at<Half>(base, index)));
    case RMS_NORM_BFLOAT16:
      return static_cast<float>(widen(*at<Bfloat>(base, index)));
    default:
      return *at<float>(base, index);
  }
}

}  // namespace

int quantised_index(std::int32_t type) noexcept {
  return type == RMS_NORM_INT8 ? kInt8 : type == RMS_NORM_UINT8 ? kUint8 : kFloat8;
}

void quantised_values(const rms_norm_params& p, const void* scale, const void* zero_point, std::int64_t first,
                      std::int64_t count, float* scales, std::int32_t* zero_points) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    scales[i] = float_at(scale, p.quantised_scale_type, first + i);
    zero_points[i] = 0;
    if (!zero_point) continue;
    if (p.quantised_type == RMS_NORM_INT8) {
      zero_points[i] = *at<std::int8_t>(zero_point, first + i);
    } else {
      zero_points[i] = *at<std::uint8_t>(zero_point, first + i);
    }
  }
}

}  // namespace rmsnorm_deploy
