#include <algorithm>
#include <limits>
#include <string>

#include "../attributes.h"
#include "../errors.h"
#include "kernels.h"
#include "rows.h"

namespace rmsnorm_deploy {
namespace {

using ort::Api;
using ort::KernelContext;
using ort::KernelInfo;

class Skip final : public Kernel {
 public:
  Skip(const Op& op, Node node, const KernelInfo* info) : Kernel(std::move(node)), types_(op.types) {
    read(*this, info, "epsilon", &epsilon_);
    scale_ = constant_input(*this, info, 2, types_.scale, RMS_NORM_FLOAT32, RMS_NORM_FLOAT32);
    std::size_t inputs = 0;
    check(ort::call<ort::KernelInfo_GetInputCount>(api, info, &inputs));
    if (inputs > 3) bias_ = constant_input(*this, info, 3, types_.scale, RMS_NORM_FLOAT32, RMS_NORM_FLOAT32);
  }

  void compute(KernelContext* context) const override;

 private:
  Types types_;
  float epsilon_ = 1e-12f;
  Constant scale_;
  Constant bias_;
};

void expect_row(const Node& node, const char* what, const Shape& shape, std::int64_t size) {
  if (shape.rank != 1 || shape.dims[0] != size) {
    throw Error(ort::kInvalidArgument, node.owner + ": " + what + " of shape " + shape.text() +
                                           " must have the shape [" + std::to_string(size) + "]");
  }
}

void Skip::compute(KernelContext* context) const {
  const Input x = input_at(*this, context, 0);
  const Input skip = input_at(*this, context, 1);
  const std::size_t rank = x.shape.rank;
  if (rank != 2 && rank != 3) {
    throw Error(ort::kInvalidArgument, owner + ": X must have 2 or 3 dimensions, not the shape " + x.shape.text());
  }
  // The built-in kernel reads skip over and over, for as many rows as X has.
  const std::size_t skip_rank = skip.shape.rank;
  if (skip_rank < 2 || skip_rank > rank ||
      !std::equal(x.shape.dims + rank - 2, x.shape.dims + rank,
                  skip.shape.dims + (skip_rank < 2 ? 0 : skip_rank - 2))) {
    throw Error(ort::kInvalidArgument, owner + ": skip of shape " + skip.shape.text() + " must have the shape of X, " +
                                           x.shape.text() + ", or its last two dimensions");
  }
  const std::int64_t size = x.shape.dims[rank - 1];
  const Input scale = input_at(*this, context, 2);
  expect_row(*this, "gamma", scale.shape, size);
  const Input bias = input_at(*this, context, 3);
  if (bias.data) expect_row(*this, "bias", bias.shape, size);

  Shape one_a_row = x.shape;
  one_a_row.dims[rank - 1] = 1;
  void* const y = output_at(*this, context, 0, x.shape);
  float* const mean = static_cast<float*>(output_at(*this, context, 1, one_a_row));
  float* const inverse = static_cast<float*>(output_at(*this, context, 2, one_a_row));
  void* const sum = output_at(*this, context, 3, x.shape);
  const std::int64_t count = x.shape.count();
  const std::int64_t rows = one_a_row.count();
  if (mean) std::fill_n(mean, rows, 0.0f);  // as the built-in kernel does: this norm has no mean
  if (count == 0) {
    if (inverse) std::fill_n(inverse, rows, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  if (skip.shape.count() == 0) {
    throw Error(ort::kInvalidArgument, owner + ": skip of shape " + skip.shape.text() + " is empty");
  }
  const Floats gamma = floats_of(scale_, scale, types_.scale);
  const Floats added = floats_of(bias_, bias, types_.scale);

  if (types_.x == RMS_NORM_FLOAT32 && sum && !added.data && !inverse && skip.shape == x.shape) {
    rms_norm_params params = plain_params(RMS_NORM_FLOAT32, x.shape, static_cast<std::int64_t>(rank - 1), epsilon_);
    params.x = x.data;
    params.residual = skip.data;
    params.scale = gamma.data;
    params.scale_strides[rank - 1] = 1;
    params.y = y;
    params.sum = sum;
    run_norm(*this, context, params, x.shape, true);
    return;
  }
  FloatRows work(size, x.data, types_.x, y, types_.x);
  work.skip = skip.data;
  work.skip_rows = skip.shape.count() / size;
  work.bias = added.data;
  work.scale = gamma.data;
  work.sum = sum;
  work.inverse = inverse;
  work.epsilon = epsilon_;
  run_rows(*this, context, work, rows);
}

}  // namespace

std::unique_ptr<Kernel> make_skip(const Op& op, const Api* api, const KernelInfo* info) {
  return std::make_unique<Skip>(op, node_of(api, info, op.signature->name), info);
}

}  // namespace rmsnorm_deploy
