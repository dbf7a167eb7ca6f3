#include "norm_kernel.h"

#include <memory>
#include <utility>

#include "../work.h"
#include "gpu.h"

namespace rmsnorm_deploy {

using ort::KernelContext;
using ort::KernelInfo;

NormKernel::NormKernel(const Op& op, Node node, const KernelInfo* info)
    : Kernel(std::move(node)),
      on_gpu_(op.provider.on_gpu),
      types_(op.types),
      residual_at_(position_of(op.signature->inputs, Role::kResidual)),
      scale_at_(position_of(op.signature->inputs, Role::kScale)),
      sum_at_(position_of(op.signature->outputs, Role::kSum)),
      y_at_(position_of(op.signature->outputs, Role::kY)),
      attributes_(norm_attributes(*this, info, op.types.x)) {}

void NormKernel::set_outputs(KernelContext* context, const Shape& x, Tensors& tensors) const {
  tensors.y = output_at(*this, context, static_cast<std::size_t>(y_at_), x);
  if (sum_at_ >= 0) tensors.sum = output_at(*this, context, static_cast<std::size_t>(sum_at_), x);
}

void NormKernel::run(KernelContext* context, const Known::Norm& norm, const Tensors& tensors) const {
  run_plan(*this, context, norm.plan, tensors);
}

// What a norm that is not known comes to. False where it does not run, or has been launched already.
bool NormKernel::prepare(KernelContext* context, const Shape& x, Tensors& tensors, Known::Norm& norm) const {
  norm.x = x;
  describe(context, x, norm.params);
  set_outputs(context, x, tensors);
  if (x.count() == 0) {
    run_empty(tensors);
    return false;
  }
  tensors.put(norm.params);
  if (on_gpu_) {
    launch(*this, context, norm.params, nullptr, x);
    return false;
  }
  prepare_norm(*this, norm.plan, norm.params, x, scale_.data != nullptr, moderate_);
  return true;
}

void NormKernel::compute(KernelContext* context) const {
  const Input x = input_at(*this, context, 0);
  Tensors tensors;
  tensors.x = x.data;
  if (residual_at_ >= 0) tensors.residual = residual_input(*this, context, residual_at_, x.shape);
  if (const Known::Norm* const norm = known_.find(x.shape)) {
    set_outputs(context, x.shape, tensors);
    run(context, *norm, tensors);
  } else if (scale_.data && known_.wants(x.shape)) {
    auto made = std::make_unique<Known::Norm>();
    if (prepare(context, x.shape, tensors, *made)) run(context, *known_.keep(made), tensors);
  } else {
    Known::Norm made;
    if (prepare(context, x.shape, tensors, made)) run(context, made, tensors);
  }
}

}  // namespace rmsnorm_deploy
