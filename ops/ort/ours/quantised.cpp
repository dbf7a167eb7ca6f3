#include "quantised.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "../../contract/check.h"
#include "../../cpu/plan.h"
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

// What both kinds have in common: the norm itself.
class Quantised : public Kernel {
 public:
  Quantised(const Op& op, Node node, const KernelInfo* info)
      : Kernel(std::move(node)),
        on_gpu_(op.provider.on_gpu),
        types_(op.types),
        residual_at_(position_of(op.signature->inputs, Role::kResidual)),
        scale_at_(position_of(op.signature->inputs, Role::kScale)),
        sum_at_(position_of(op.signature->outputs, Role::kSum)),
        y_at_(position_of(op.signature->outputs, Role::kY)),
        attributes_(norm_attributes(*this, info, op.types.x)) {
    if (attributes_.stash_type != RMS_NORM_FLOAT32) {
      throw Error(ort::kInvalidGraph, owner + ": stash_type must be 1 (float)");
    }
    if (!on_gpu_) {
      scale_ = constant_input(*this, info, static_cast<std::size_t>(scale_at_), types_.scale, attributes_.round_type,
                              RMS_NORM_FLOAT32);
      const auto* const values = reinterpret_cast<const float*>(scale_.data.get());
      moderate_ = values && std::all_of(values, values + scale_.shape.count(),
                                        [](float value) { return std::fabs(value) <= kMostModerate; });
    }
  }

 protected:
  // Everything but what is made of y. Returns X's shape.
  Shape set_norm(KernelContext* context, rms_norm_params& params) const;

  bool on_gpu_;
  Types types_;
  int residual_at_;  // -1: the operator has none; so with the sum
  int scale_at_;
  int sum_at_;
  int y_at_;
  NormAttributes attributes_;
  Constant scale_;
  bool moderate_ = false;  // the constant is, as Plan wants to know
};

Shape Quantised::set_norm(KernelContext* context, rms_norm_params& params) const {
  const Input x = input_at(*this, context, 0);
  set_attributes(*this, attributes_, types_, x.shape, params);
  if (params.axis_begin + params.axis_count != params.rank) {
    throw Error(ort::kInvalidArgument, owner + ": axes " + text_of(attributes_.axes.data(), attributes_.axes.size()) +
                                           " are not the last ones of X of shape " + x.shape.text());
  }
  params.residual = nullptr;
  params.sum = nullptr;
  params.bias = nullptr;
  if (residual_at_ >= 0) {
    const Input residual = input_at(*this, context, static_cast<std::size_t>(residual_at_));
    if (!(residual.shape == x.shape)) {
      throw Error(ort::kInvalidArgument, owner + ": residual of shape " + residual.shape.text() +
                                             " must have the shape of X, " + x.shape.text());
    }
    params.residual = residual.data;
    params.sum = output_at(*this, context, static_cast<std::size_t>(sum_at_), x.shape);
  }
  if (scale_.data) {
    params.scale_type = RMS_NORM_FLOAT32;
    params.scale = scale_.data.get();
    broadcast(*this, "scale", scale_.shape, x.shape, params.scale_strides);
  } else {
    const Input scale = input_at(*this, context, static_cast<std::size_t>(scale_at_));
    params.scale = scale.data;
    broadcast(*this, "scale", scale.shape, x.shape, params.scale_strides);
  }
  params.x = x.data;
  params.y = output_at(*this, context, static_cast<std::size_t>(y_at_), x.shape);
  return x.shape;
}

// -- by a given scale -------------------------------------------------------------------------------------------------

class GivenScale final : public Quantised {
 public:
  GivenScale(const Op& op, Node node, const KernelInfo* info)
      : Quantised(op, std::move(node), info),
        y_scale_at_(position_of(op.signature->inputs, Role::kQuantisedScale)),
        zero_at_(position_of(op.signature->inputs, Role::kZeroPoint)),
        quantised_at_(position_of(op.signature->outputs, Role::kQuantised)) {
    std::int64_t precision = RMS_NORM_FLOAT32;
    read(*this, info, "precision", &precision);
    if (precision != RMS_NORM_FLOAT32 && (precision != types_.x || types_.quantised_scale != types_.x)) {
      // onnxruntime has turned a 16-bit node into a float32 one, and the node follows.
      if (types_.x != RMS_NORM_FLOAT32 || precision > RMS_NORM_BFLOAT16 ||
          element_size(static_cast<std::int32_t>(precision)) != 2) {
        throw Error(ort::kInvalidGraph, owner + ": precision must be 1 (float), or the type of X and y_scale");
      }
      precision = RMS_NORM_FLOAT32;
    }
    quotient_type_ = static_cast<std::int32_t>(precision);
    if (!on_gpu_) {
      const auto bytes = static_cast<std::size_t>(element_size(types_.quantised_scale));
      has_constants_ = constant_value(*this, info, static_cast<std::size_t>(y_scale_at_), bytes, y_scale_) &&
                       constant_value(*this, info, static_cast<std::size_t>(zero_at_), 1, &zero_);
    }
  }

  void compute(KernelContext* context) const override;

 private:
  int y_scale_at_;
  int zero_at_;
  int quantised_at_;
  std::int32_t quotient_type_ = RMS_NORM_FLOAT32;
  // A constant scale and zero point, so that a run need not ask onnxruntime about them.
  bool has_constants_ = false;
  alignas(4) unsigned char y_scale_[4] = {};
  unsigned char zero_ = 0;
};

void GivenScale::compute(KernelContext* context) const {
  rms_norm_params params;
  const Shape x = set_norm(context, params);
  const void* zero = &zero_;
  params.quantised_scale = y_scale_;
  if (!has_constants_) {
    const Input y_scale = input_at(*this, context, static_cast<std::size_t>(y_scale_at_));
    const Input zero_point = input_at(*this, context, static_cast<std::size_t>(zero_at_));
    if (y_scale.shape.count() != 1 || zero_point.shape.count() != 1) {
      throw Error(ort::kInvalidArgument, owner + ": y_scale of shape " + y_scale.shape.text() +
                                             " and y_zero_point of shape " + zero_point.shape.text() +
                                             " must have one value each");
    }
    params.quantised_scale = y_scale.data;
    zero = zero_point.data;
  }
  params.quantised = output_at(*this, context, static_cast<std::size_t>(quantised_at_), x);
  params.quantised_type = types_.quantised;
  params.quantised_scale_type = types_.quantised_scale;
  params.zero_point = types_.quantised == RMS_NORM_FLOAT8E4M3FN ? nullptr : zero;
  params.quotient_type = quotient_type_;
  if (x.count() == 0) return;
  if (on_gpu_) return launch(*this, context, params, nullptr, x);
  Plan plan;
  prepare_norm(*this, plan, params, x, scale_.data != nullptr, moderate_);
  run_plan(*this, context, plan);
}

// -- by a scale of its own range --------------------------------------------------------------------------------------

// The norm, up to the range of y.
struct RangesWork final : Work {
  const Plan* plan;
  RowFactor* factors;  // one for each row
  void run(std::int64_t begin, std::int64_t end) const noexcept override {
    plan->run_ranges(begin, end, factors + begin);
  }
};

// The rest of it, by the scale that followed from the range.
struct BytesWork final : Work {
  const Plan* plan;
  const RowFactor* factors;
  void run(std::int64_t begin, std::int64_t end) const noexcept override {
    plan->run_outputs(begin, end, factors + begin);
  }
};

class OwnScale final : public Quantised {
 public:
  OwnScale(const Op& op, Node node, const KernelInfo* info)
      : Quantised(op, std::move(node), info),
        quantised_at_(position_of(op.signature->outputs, Role::kQuantised)),
        y_scale_at_(position_of(op.signature->outputs, Role::kQuantisedScale)),
        zero_at_(position_of(op.signature->outputs, Role::kZeroPoint)) {}

  void compute(KernelContext* context) const override;

 private:
  template <typename Value>
  Value* one(KernelContext* context, int index) const {
    Shape none;
    return static_cast<Value*>(output_at(*this, context, static_cast<std::size_t>(index), none));
  }

  // The ends of the range of y; `plan` has_ranges().
  std::pair<float, float> norm(KernelContext* context, const Plan& plan, RowFactor* factors) const;
  // The same of any norm of so many rows. It writes `sum`, and leaves the rest to a second norm.
  std::pair<float, float> norm(KernelContext* context, rms_norm_params params, const Shape& x, std::int64_t rows) const;

  int quantised_at_;
  int y_scale_at_;
  int zero_at_;
};

// What DynamicQuantizeLinear makes of the ends of a range that holds zero, in onnxruntime's order of operations.
void scale_of(std::pair<float, float> ends, float* scale, std::uint8_t* zero_point) {
  const auto [least, most] = ends;
  *scale = most == least ? 1.0f : (most - least) / 255.0f;
  const float zero = std::max(0.0f, std::min(255.0f, 0.0f - least / *scale));
  *zero_point = static_cast<std::uint8_t>(std::nearbyint(zero));
}

constexpr std::int64_t kFewRows = 64;

std::pair<float, float> OwnScale::norm(KernelContext* context, const Plan& plan, RowFactor* factors) const {
  RangesWork work;
  work.plan = &plan;
  work.factors = factors;
  run_parallel(*this, context, work, plan.units(), plan.unit_work());
  std::pair<float, float> ends = {0.0f, 0.0f};
  plan.widen_range(factors, &ends.first, &ends.second);
  return ends;
}

std::pair<float, float> OwnScale::norm(KernelContext* context, rms_norm_params params, const Shape& x,
                                       std::int64_t rows) const {
  std::vector<float> ends(2 * static_cast<std::size_t>(rows));
  params.least = ends.data();
  params.most = params.least + rows;
  params.y = nullptr;
  params.quantised = nullptr;
  params.quantised_type = 0;
  run_norm(*this, context, params, x, scale_.data != nullptr);
  return {std::min(0.0f, *std::min_element(params.least, params.most)),
          std::max(0.0f, *std::max_element(params.most, params.most + rows))};
}

void OwnScale::compute(KernelContext* context) const {
  rms_norm_params params;
  const Shape x = set_norm(context, params);
  auto* const y_scale = one<float>(context, y_scale_at_);
  auto* const zero = one<std::uint8_t>(context, zero_at_);
  params.quantised = output_at(*this, context, static_cast<std::size_t>(quantised_at_), x);
  params.quantised_type = RMS_NORM_UINT8;
  params.quantised_scale = y_scale;
  params.quantised_scale_type = RMS_NORM_FLOAT32;
  params.zero_point = zero;
  if (x.count() == 0) return scale_of({0.0f, 0.0f}, y_scale, zero);
  Plan plan;
  prepare_norm(*this, plan, params, x, scale_.data != nullptr, moderate_);
  if (!plan.has_ranges()) {
    scale_of(norm(context, params, x, plan.units()), y_scale, zero);
    if (params.sum) params.x = params.sum;
    params.residual = nullptr;
    params.sum = nullptr;
    return run_norm(*this, context, params, x, scale_.data != nullptr);
  }
  RowFactor few[kFewRows];
  std::unique_ptr<RowFactor[]> many;
  if (plan.units() > kFewRows) many.reset(new RowFactor[static_cast<std::size_t>(plan.units())]);
  BytesWork work;
  work.plan = &plan;
  work.factors = many ? many.get() : few;
  scale_of(norm(context, plan, many ? many.get() : few), y_scale, zero);
  run_parallel(*this, context, work, plan.units(), plan.unit_work());
}

}  // namespace

std::unique_ptr<Kernel> make_quantised(const Op& op, const Api* api, const KernelInfo* info) {
  return std::make_unique<GivenScale>(op, node_of(api, info, op.signature->name), info);
}

std::unique_ptr<Kernel> make_dynamically_quantised(const Op& op, const Api* api, const KernelInfo* info) {
  return std::make_unique<OwnScale>(op, node_of(api, info, op.signature->name), info);
}

}  // namespace rmsnorm_deploy
