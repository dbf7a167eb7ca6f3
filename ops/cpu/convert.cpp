#include "convert.h"

#include "address.h"
#include "dispatch.h"
#include "scalar.h"

namespace rmsnorm_deploy {
namespace {

template <typename From, typename To>
void convert_all(const void* data, std::int64_t count, std::int32_t round_type, void* result) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    narrow(round_to(widen(*at<From>(data, i)), round_type), *at<To>(result, i));
  }
}

template <typename To>
void convert_from(const void* data, std::int32_t type, std::int64_t count, std::int32_t round_type,
                  void* result) noexcept {
  switch (type) {
    case RMS_NORM_FLOAT32:
      return convert_all<float, To>(data, count, round_type, result);
    case RMS_NORM_FLOAT16:
      return convert_all<Half, To>(data, count, round_type, result);
    case RMS_NORM_BFLOAT16:
      return convert_all<Bfloat, To>(data, count, round_type, result);
    default:
      return convert_all<double, To>(data, count, round_type, result);
  }
}

template <typename T>
void narrow_all(const float* from, std::int64_t count, void* to) noexcept {
  for (std::int64_t i = 0; i < count; ++i) narrow(widen(from[i]), *at<T>(to, i));
}

}  // namespace

int element_index(std::int32_t type) noexcept {
  return type == RMS_NORM_FLOAT16 ? kFloat16 : type == RMS_NORM_BFLOAT16 ? kBfloat16 : kFloat32;
}

void convert(const void* data, std::int32_t type, std::int64_t count, std::int32_t round_type, std::int32_t to,
             void* result) noexcept {
  if (to == RMS_NORM_FLOAT32 && type != RMS_NORM_FLOAT64) {
    if (const KernelTable* table = kernels()) {
      return table->weights[element_index(type)][element_index(round_type)](data, static_cast<float*>(result), count);
    }
  }
  if (to == RMS_NORM_FLOAT32) {
    convert_from<float>(data, type, count, round_type, result);
  } else {
    convert_from<double>(data, type, count, round_type, result);
  }
}

void narrow_floats(const float* from, std::int64_t count, std::int32_t type, void* to) noexcept {
  if (const KernelTable* table = kernels()) {
    table->narrow[element_index(type)](from, to, count);
  } else if (type == RMS_NORM_FLOAT16) {
    narrow_all<Half>(from, count, to);
  } else {
    narrow_all<Bfloat>(from, count, to);
  }
}

}  // namespace rmsnorm_deploy
