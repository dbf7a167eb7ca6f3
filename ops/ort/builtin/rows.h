// Rows of norms that are computed in float32, whatever the type of their tensors.
#ifndef RMSNORM_DEPLOY_ORT_BUILTIN_ROWS_H_
#define RMSNORM_DEPLOY_ORT_BUILTIN_ROWS_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "../tensors.h"
#include "../work.h"

namespace rmsnorm_deploy {

// float32 weights, converted where they have to be. `data` is null where there are none.
struct Floats {
  const float* data = nullptr;
  std::unique_ptr<unsigned char[]> owned;
};

// The constant, or else the input, whose elements are of `type`.
Floats floats_of(const Constant& constant, const Input& input, std::int32_t type);

// `count` elements of `type` as float32.
void widen_floats(const void* from, std::int32_t type, std::int64_t count, float* to);

// The parameters of a plain norm over the dimensions of x from `axis` on; x, y and scale are left open.
rms_norm_params plain_params(std::int32_t type, const Shape& x, std::int64_t axis, float epsilon);

// 1 / rms of `rows` rows, whose elements are of `type`.
void inverse_rms(const void* x, std::int32_t type, std::int64_t rows, std::int64_t size, double epsilon, float* result);

// Rows that are widened to float32, perhaps added up, normed there, and rounded to the type of the output, a few rows
// at a time so that the float32 values stay in the cache. All rows share one scale.
struct FloatRows final : Work {
  // Rows of `size` elements.
  FloatRows(std::int64_t size, const void* x, std::int32_t x_type, void* y, std::int32_t y_type)
      : size(size), x(x), x_type(x_type), y(y), y_type(y_type) {}

  std::int64_t size;
  const void* x;
  std::int32_t x_type;
  void* y;
  std::int32_t y_type;
  const void* skip = nullptr;  // or null; of x_type
  std::int64_t skip_rows = 0;  // after so many rows it starts anew
  const float* bias = nullptr;
  const float* scale = nullptr;
  void* sum = nullptr;  // or null; of x_type
  float* inverse = nullptr;
  float epsilon = 0;
  mutable std::atomic<int> code{RMS_NORM_OK};  // of what went wrong

  void run(std::int64_t begin, std::int64_t end) const noexcept override;

 private:
  void add(std::int64_t row, float* result) const noexcept;
  void norm(const float* from, std::int64_t rows, float* to) const noexcept;
};

// Run `count` rows on onnxruntime's threads.
void run_rows(const Node& node, ort::KernelContext* context, const FloatRows& rows, std::int64_t count);

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_BUILTIN_ROWS_H_
