#include "norm.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "norm_kernel.h"
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

class Norm final : public NormKernel {
 public:
  Norm(const Op& op, Node node, const KernelInfo* info)
      : NormKernel(op, std::move(node), info), bias_at_(position_of(op.signature->inputs, Role::kBias)) {
    if (on_gpu_) return;  // constants are in its memory, and its kernels take them as they are
    scale_ = constant_at(info, scale_at_);
    if (bias_at_ < 0) return;
    bias_ = constant_at(info, bias_at_);
    neutral_bias_ = adds_nothing(bias_, arithmetic());
    if (!bias_.data) scale_.data.reset();  // the plan takes one type for both
    if (!scale_.data && !neutral_bias_) bias_.data.reset();
  }

 private:
  std::int32_t arithmetic() const { return arithmetic_of(attributes_, types_); }
  Constant constant_at(const KernelInfo* info, int index) const {
    return constant_input(*this, info, static_cast<std::size_t>(index), types_.scale, attributes_.round_type,
                          arithmetic());
  }
  Input input(const KernelContext* context, int index) const {
    return input_at(*this, context, static_cast<std::size_t>(index));
  }
  void describe(const KernelContext* context, const Shape& x, rms_norm_params& params) const override;

  int bias_at_;  // -1: the operator has none
  Constant bias_;
  bool neutral_bias_ = false;  // the bias changes nothing, so that no kernel sees it
};

void Norm::describe(const KernelContext* context, const Shape& x, rms_norm_params& params) const {
  set_attributes(*this, attributes_, types_, x, params);
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

}  // namespace

std::unique_ptr<Kernel> make_norm(const Op& op, const Api* api, const KernelInfo* info) {
  return std::make_unique<Norm>(op, node_of(api, info, op.signature->name), info);
}

}  // namespace rmsnorm_deploy
