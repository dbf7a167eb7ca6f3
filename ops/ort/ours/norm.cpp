#include "norm.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "../../contract/check.h"
#include "../errors.h"
#include "../known.h"
#include "../work.h"
#include "attributes.h"
#include "gpu.h"
#include "params.h"

namespace rmsnorm_deploy {
namespace {

using ort::Api;
using ort::KernelContext;
using ort::KernelInfo;

// Whether a bias is the neutral one, -0.0 throughout: adding that changes no value, not even a zero's sign.
bool adds_nothing(const Constant& bias, std::int32_t type) {
  const auto all_neutral = [&bias](const auto* values) {
    return std::all_of(values, values + bias.shape.count(), [](auto v) { return v == 0 && std::signbit(v); });
  };
  if (!bias.data) return false;
  return type == RMS_NORM_FLOAT64 ? all_neutral(reinterpret_cast<const double*>(bias.data.get()))
                                  : all_neutral(reinterpret_cast<const float*>(bias.data.get()));
}

class Norm final : public Kernel {
 public:
  Norm(const Op& op, Node node, const KernelInfo* info)
      : Kernel(std::move(node)),
        on_gpu_(op.provider.on_gpu),
        types_(op.types),
        residual_at_(position_of(op.signature->inputs, Role::kResidual)),
        scale_at_(position_of(op.signature->inputs, Role::kScale)),
        bias_at_(position_of(op.signature->inputs, Role::kBias)),
        sum_at_(position_of(op.signature->outputs, Role::kSum)),
        attributes_(norm_attributes(*this, info, op.types.x)) {
    if (on_gpu_) return;  // constants are in its memory, and its kernels take them as they are
    scale_ = constant_at(info, scale_at_);
    if (bias_at_ < 0) return;
    bias_ = constant_at(info, bias_at_);
    neutral_bias_ = adds_nothing(bias_, arithmetic());
    if (!bias_.data) scale_.data.reset();  // the plan takes one type for both
    if (!scale_.data && !neutral_bias_) bias_.data.reset();
  }

  void compute(KernelContext* context) const override;

 private:
  std::int32_t arithmetic() const { return arithmetic_of(attributes_, types_); }
  Constant constant_at(const KernelInfo* info, int index) const {
    return constant_input(*this, info, static_cast<std::size_t>(index), types_.scale, attributes_.round_type,
                          arithmetic());
  }
  Input input(const KernelContext* context, int index) const {
    return input_at(*this, context, static_cast<std::size_t>(index));
  }
  void set_weights(const KernelContext* context, const Shape& x, rms_norm_params& params) const;
  // Everything but where X, its companions and the results are.
  void describe(const KernelContext* context, const Shape& x, rms_norm_params& params) const;
  void set_outputs(KernelContext* context, const Shape& x, Tensors& tensors) const;

  bool on_gpu_;
  Types types_;
  int residual_at_;  // -1: the operator has none; so with the others
  int scale_at_;
  int bias_at_;
  int sum_at_;
  NormAttributes attributes_;
  Constant scale_;
  Constant bias_;
  bool neutral_bias_ = false;  // the bias changes nothing, so that no kernel sees it
  Known known_;                // with constant weights
};

void Norm::set_weights(const KernelContext* context, const Shape& x, rms_norm_params& params) const {
  params.bias = nullptr;
  if (scale_.data) {
    params.scale_type = arithmetic();
    params.scale = scale_.data.get();
    params.bias = bias_.data.get();
    broadcast(*this, "scale", scale_.shape, x, params.scale_strides);
    if (params.bias) broadcast(*this, "bias", bias_.shape, x, params.bias_strides);
    if (neutral_bias_) params.bias = nullptr;
    return;
  }
  const Input scale = input(context, scale_at_);
  params.scale = scale.data;
  broadcast(*this, "scale", scale.shape, x, params.scale_strides);
  if (neutral_bias_) {
    broadcast(*this, "bias", bias_.shape, x, params.bias_strides);  // only its shape can be wrong
  } else if (bias_at_ >= 0) {
    const Input bias = input(context, bias_at_);
    params.bias = bias.data;
    broadcast(*this, "bias", bias.shape, x, params.bias_strides);
  }
}

void Norm::describe(const KernelContext* context, const Shape& x, rms_norm_params& params) const {
  set_attributes(*this, attributes_, types_, x, params);
  set_weights(context, x, params);
}

void Norm::set_outputs(KernelContext* context, const Shape& x, Tensors& tensors) const {
  tensors.y = output_at(*this, context, 0, x);
  if (sum_at_ >= 0) tensors.sum = output_at(*this, context, static_cast<std::size_t>(sum_at_), x);
}

void Norm::compute(KernelContext* context) const {
  const Input x = input(context, 0);
  Tensors tensors;
  tensors.x = x.data;
  if (residual_at_ >= 0) tensors.residual = residual_input(*this, context, residual_at_, x.shape);
  if (const Known::Norm* norm = known_.find(x.shape)) {
    set_outputs(context, x.shape, tensors);
    return run_plan(*this, context, norm->plan, tensors);
  }
  if (scale_.data && known_.wants(x.shape)) {
    auto made = std::make_unique<Known::Norm>();
    made->x = x.shape;
    describe(context, x.shape, made->params);
    set_outputs(context, x.shape, tensors);
    tensors.put(made->params);
    prepare_norm(*this, made->plan, made->params, x.shape, true);
    return run_plan(*this, context, known_.keep(made)->plan, tensors);
  }
  rms_norm_params params;  // its long arrays are set as far as they are used
  describe(context, x.shape, params);
  set_outputs(context, x.shape, tensors);
  if (x.shape.count() == 0) return;
  tensors.put(params);
  if (on_gpu_) {
    launch(*this, context, params, nullptr, x.shape);
  } else {
    run_norm(*this, context, params, x.shape, scale_.data != nullptr);
  }
}

}  // namespace

std::unique_ptr<Kernel> make_norm(const Op& op, const Api* api, const KernelInfo* info) {
  return std::make_unique<Norm>(op, node_of(api, info, op.signature->name), info);
}

}  // namespace rmsnorm_deploy
