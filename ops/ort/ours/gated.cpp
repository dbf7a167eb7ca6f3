#include "gated.h"

#include <string>

#include "../../cpu/gated.h"
#include "../attributes.h"
#include "../errors.h"
#include "../work.h"
#include "attributes.h"
#include "gpu.h"
#include "params.h"

namespace rmsnorm_deploy {
namespace {

using ort::Api;
using ort::KernelContext;
using ort::KernelInfo;

std::int32_t read_choice(const Node& node, const KernelInfo* info, const char* name, std::int64_t value,
                         std::int64_t last) {
  read(node, info, name, &value);
  if (value < 0 || value > last) {
    throw Error(ort::kInvalidGraph,
                node.owner + ": " + name + " must be 0 to " + std::to_string(last) + ", not " + std::to_string(value));
  }
  return static_cast<std::int32_t>(value);
}

struct GatedWork final : Work {
  GatedPlan plan;
  void run(std::int64_t begin, std::int64_t end) const noexcept override { plan.run(begin, end); }
};

class Gated final : public Kernel {
 public:
  Gated(const Op& op, Node node, const KernelInfo* info)
      : Kernel(std::move(node)),
        on_gpu_(op.provider.on_gpu),
        types_(op.types),
        gate_at_(position_of(op.signature->inputs, Role::kGate)),
        scale_at_(position_of(op.signature->inputs, Role::kScale)),
        attributes_(norm_attributes(*this, info, op.types.x)),
        activation_(read_choice(*this, info, "activation", RMS_NORM_SILU, RMS_NORM_SILU)),
        place_(read_choice(*this, info, "gate_at", RMS_NORM_GATED_FIRST, RMS_NORM_GATED_LAST)) {
    if (on_gpu_) return;  // constants are in its memory, and its kernels take them as they are
    scale_ = constant_input(*this, info, static_cast<std::size_t>(scale_at_), types_.scale, attributes_.round_type,
                            arithmetic());
  }

  void compute(KernelContext* context) const override;

 private:
  std::int32_t arithmetic() const { return arithmetic_of(attributes_, types_); }

  bool on_gpu_;
  Types types_;
  int gate_at_;
  int scale_at_;
  NormAttributes attributes_;
  std::int32_t activation_;
  std::int32_t place_;
  Constant scale_;
};

void Gated::compute(KernelContext* context) const {
  const Input x = input_at(*this, context, 0);
  const Input gate = input_at(*this, context, static_cast<std::size_t>(gate_at_));
  if (!(gate.shape == x.shape)) {
    throw Error(ort::kInvalidArgument,
                owner + ": gate of shape " + gate.shape.text() + " must have the shape of X, " + x.shape.text());
  }
  rms_norm_params params;
  set_attributes(*this, attributes_, types_, x.shape, params);
  params.residual = nullptr;
  params.sum = nullptr;
  params.bias = nullptr;
  if (scale_.data) {
    params.scale_type = arithmetic();
    params.scale = scale_.data.get();
    broadcast(*this, "scale", scale_.shape, x.shape, params.scale_strides);
  } else {
    const Input scale = input_at(*this, context, static_cast<std::size_t>(scale_at_));
    params.scale = scale.data;
    broadcast(*this, "scale", scale.shape, x.shape, params.scale_strides);
  }
  params.x = x.data;
  params.y = output_at(*this, context, 0, x.shape);
  if (x.shape.count() == 0) return;
  const rms_norm_gate given = {RMS_NORM_GATE_VERSION, types_.gate, activation_, place_, gate.data};
  if (on_gpu_) return launch(*this, context, params, &given, x.shape);
  GatedWork work;
  if (const int code = work.plan.prepare(params, given, scale_.data != nullptr)) {
    throw Error(ort::kInvalidArgument,
                owner + ": " + rmsnorm_deploy_error_text(code) + " (X has shape " + x.shape.text() + ")");
  }
  run_parallel(*this, context, work, work.plan.units(), work.plan.unit_work());
}

}  // namespace

std::unique_ptr<Kernel> make_gated(const Op& op, const Api* api, const KernelInfo* info) {
  return std::make_unique<Gated>(op, node_of(api, info, op.signature->name), info);
}

}  // namespace rmsnorm_deploy
