// What nodes that are a norm of X have in common, whatever becomes of its y: how a call comes to its norm.
#ifndef RMSNORM_DEPLOY_ORT_OURS_NORM_KERNEL_H_
#define RMSNORM_DEPLOY_ORT_OURS_NORM_KERNEL_H_

#include "../../cpu/plan.h"
#include "../custom_op.h"
#include "../known.h"
#include "attributes.h"

namespace rmsnorm_deploy {

class NormKernel : public Kernel {
 public:
  NormKernel(const Op& op, Node node, const ort::KernelInfo* info);

  void compute(ort::KernelContext* context) const final;

 protected:
  // Everything but where X, its companions and the results are.
  virtual void describe(const ort::KernelContext* context, const Shape& x, rms_norm_params& params) const = 0;

  // Where the results go: y and the sum, where there is one.
  virtual void set_outputs(ort::KernelContext* context, const Shape& x, Tensors& tensors) const;

  // An X without elements.
  virtual void run_empty(const Tensors&) const {}

  virtual void run(ort::KernelContext* context, const Known::Norm& norm, const Tensors& tensors) const;

  bool on_gpu_;
  Types types_;
  int residual_at_;  // -1: the operator has none; so with the sum
  int scale_at_;
  int sum_at_;
  int y_at_;
  NormAttributes attributes_;
  Constant scale_;         // empty unless all that `describe` looks at, beside X, is constant
  bool moderate_ = false;  // whether it is, as Plan wants to know

 private:
  bool prepare(ort::KernelContext* context, const Shape& x, Tensors& tensors, Known::Norm& norm) const;

  Known known_;  // where there is a scale_
};

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_OURS_NORM_KERNEL_H_
