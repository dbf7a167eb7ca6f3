#include <algorithm>
#include <limits>
#include <string>

#include "../../cpu/convert.h"
#include "../attributes.h"
#include "../errors.h"
#include "../runtime.h"
#include "kernels.h"
#include "rows.h"

namespace rmsnorm_deploy {
namespace {

using ort::Api;
using ort::KernelContext;
using ort::KernelInfo;

class Norm final : public Kernel {
 public:
  Norm(const Op& op, Node node, const KernelInfo* info)
      : Kernel(std::move(node)), types_(op.types), inverse_at_(position_of(op.signature->outputs, Role::kInverseRms)) {
    read(*this, info, "epsilon", &epsilon_);
    read(*this, info, "axis", &axis_);
    const std::int32_t to = types_.x == RMS_NORM_FLOAT64 ? RMS_NORM_FLOAT64 : RMS_NORM_FLOAT32;
    scale_ = constant_input(*this, info, 1, types_.scale, to, to);
  }

  void compute(KernelContext* context) const override;

 private:
  Types types_;
  int inverse_at_;          // output; -1: the operator has none
  std::int64_t axis_ = -1;  // first normalised dimension
  float epsilon_ = 1e-5f;
  Constant scale_;
};

// Strides of scale along x. Since 1.24 onnxruntime takes every scale that broadcasts into x. Before, it took every one
// with as many values as are normalised, whatever its shape; such a runtime gets that, and then what broadcasts.
void scale_strides(const Node& node, const Shape& scale, const Shape& x, std::int64_t axis, std::int64_t* strides) {
  if (runtime_minor() < 24) {
    Shape normalised;
    normalised.rank = x.rank - static_cast<std::size_t>(axis);
    std::copy(x.dims + axis, x.dims + x.rank, normalised.dims);
    if (scale.count() == normalised.count()) {
      broadcast(normalised, x, strides);
      return;
    }
  }
  broadcast(node, "scale", scale, x, strides);
}

// Whether all rows read `strides` as one contiguous row.
bool shared_by_rows(const Shape& x, std::size_t axis, const std::int64_t* strides) {
  std::int64_t wanted = 1;
  for (std::size_t i = x.rank; i-- > 0;) {
    if (x.dims[i] != 1 && strides[i] != (i < axis ? 0 : wanted)) return false;
    wanted *= x.dims[i];
  }
  return true;
}

void Norm::compute(KernelContext* context) const {
  const Input x = input_at(*this, context, 0);
  const std::int64_t rank = static_cast<std::int64_t>(x.shape.rank);
  const std::int64_t axis = axis_ < 0 ? axis_ + rank : axis_;
  if (axis < 0 || axis >= rank) {
    throw Error(ort::kInvalidArgument,
                owner + ": axis " + std::to_string(axis_) + " is outside X of shape " + x.shape.text());
  }
  rms_norm_params params = plain_params(types_.x, x.shape, axis, epsilon_);
  const bool constant = scale_.data != nullptr;
  Input scale;
  if (!constant) scale = input_at(*this, context, 1);
  scale_strides(*this, constant ? scale_.shape : scale.shape, x.shape, axis, params.scale_strides);

  Shape one_a_row = x.shape;
  std::fill(one_a_row.dims + axis, one_a_row.dims + rank, 1);
  void* const y = output_at(*this, context, 0, x.shape);
  float* const inverse =
      inverse_at_ >= 0
          ? static_cast<float*>(output_at(*this, context, static_cast<std::size_t>(inverse_at_), one_a_row))
          : nullptr;
  const std::int64_t count = x.shape.count();
  const std::int64_t rows = one_a_row.count();
  if (count == 0) {
    if (inverse) std::fill_n(inverse, rows, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const std::int64_t size = count / rows;
  // Before anything is written: y may be where x is.
  if (inverse) inverse_rms(x.data, types_.x, rows, size, static_cast<double>(epsilon_), inverse);

  if (types_.x == types_.scale) {
    params.x = x.data;
    params.y = y;
    params.scale = constant ? scale_.data.get() : scale.data;
    if (!constant) params.scale_type = types_.scale;
    run_norm(*this, context, params, x.shape, constant);
    return;
  }
  const Floats floats = floats_of(scale_, scale, types_.scale);
  if (shared_by_rows(x.shape, static_cast<std::size_t>(axis), params.scale_strides)) {
    FloatRows work(size, x.data, types_.x, y, types_.scale);
    work.scale = floats.data;
    work.epsilon = epsilon_;
    run_rows(*this, context, work, rows);
    return;
  }
  // Rare: the whole tensor at once, in float32.
  std::unique_ptr<float[]> scratch;
  float* normed = static_cast<float*>(y);
  if (types_.scale != RMS_NORM_FLOAT32) {
    scratch.reset(new float[static_cast<std::size_t>(count)]);
    normed = scratch.get();
  }
  params.x = x.data;
  if (types_.x != RMS_NORM_FLOAT32) {
    widen_floats(x.data, types_.x, count, normed);
    params.x = normed;
  }
  params.x_type = RMS_NORM_FLOAT32;
  params.scale = floats.data;
  params.y = normed;
  run_norm(*this, context, params, x.shape, true);
  if (scratch) narrow_floats(normed, count, types_.scale, y);
}

}  // namespace

std::unique_ptr<Kernel> make_norm(const Op& op, const Api* api, const KernelInfo* info) {
  return std::make_unique<Norm>(op, node_of(api, info, op.signature->name), info);
}

}  // namespace rmsnorm_deploy
