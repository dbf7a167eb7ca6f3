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
#include "norm_kernel.h"
#include "params.h"

namespace rmsnorm_deploy {
namespace {

using ort::Api;
using ort::KernelContext;
using ort::KernelInfo;

// What both kinds have in common: the norm, of float32 arithmetic over the last axes.
class Quantised : public NormKernel {
 public:
  Quantised(const Op& op, Node node, const KernelInfo* info)
      : NormKernel(op, std::move(node), info), quantised_at_(position_of(op.signature->outputs, Role::kQuantised)) {
    if (attributes_.stash_type != RMS_NORM_FLOAT32) {
      throw Error(ort::kInvalidGraph, owner + ": stash_type must be 1 (float)");
    }
    if (!on_gpu_) {
      scale_ = constant_input(*this, info, static_cast<std::size_t>(scale_at_), types_.scale, attributes_.round_type,
                              RMS_NORM_FLOAT32);
      const auto* const values = reinterpret_cast<const float*>(scale_.data.get());
      moderate_ = values && all_moderate(values, scale_.shape.count());
    }
  }

 protected:
  // Where scale and zero point of the quantised values are: both are read when those are written.
  virtual void set_quantised_scale(KernelContext* context, Tensors& tensors) const = 0;
  virtual void set_quantised_types(rms_norm_params& params) const = 0;

 private:
  void describe(const KernelContext* context, const Shape& x, rms_norm_params& params) const override;
  void set_outputs(KernelContext* context, const Shape& x, Tensors& tensors) const override;

  int quantised_at_;
};

void Quantised::describe(const KernelContext* context, const Shape& x, rms_norm_params& params) const {
  set_attributes(*this, attributes_, types_, x, params);
  if (params.axis_begin + params.axis_count != params.rank) {
    throw Error(ort::kInvalidArgument, owner + ": axes " + text_of(attributes_.axes.data(), attributes_.axes.size()) +
                                           " are not the last ones of X of shape " + x.text());
  }
  params.bias = nullptr;
  set_quantised_types(params);
  if (scale_.data) {
    params.scale_type = RMS_NORM_FLOAT32;
    params.scale = scale_.data.get();
    broadcast(*this, "scale", scale_.shape, x, params.scale_strides);
  } else {
    const Input scale = input_at(*this, context, static_cast<std::size_t>(scale_at_));
    params.scale = scale.data;
    broadcast(*this, "scale", scale.shape, x, params.scale_strides);
  }
}

void Quantised::set_outputs(KernelContext* context, const Shape& x, Tensors& tensors) const {
  NormKernel::set_outputs(context, x, tensors);
  tensors.quantised = output_at(*this, context, static_cast<std::size_t>(quantised_at_), x);
  set_quantised_scale(context, tensors);
}

// -- by a given scale -------------------------------------------------------------------------------------------------

class GivenScale final : public Quantised {
 public:
  GivenScale(const Op& op, Node node, const KernelInfo* info)
      : Quantised(op, std::move(node), info),
        y_scale_at_(position_of(op.signature->inputs, Role::kQuantisedScale)),
        zero_at_(position_of(op.signature->inputs, Role::kZeroPoint)) {
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

 private:
  void set_quantised_scale(KernelContext* context, Tensors& tensors) const override;
  void set_quantised_types(rms_norm_params& params) const override;

  int y_scale_at_;
  int zero_at_;
  std::int32_t quotient_type_ = RMS_NORM_FLOAT32;
  // A constant scale and zero point, so that a run need not ask onnxruntime about them.
  bool has_constants_ = false;
  alignas(4) unsigned char y_scale_[4] = {};
  unsigned char zero_ = 0;
};

void GivenScale::set_quantised_scale(KernelContext* context, Tensors& tensors) const {
  tensors.quantised_scale = y_scale_;
  tensors.zero_point = &zero_;
  if (!has_constants_) {
    const Input y_scale = input_at(*this, context, static_cast<std::size_t>(y_scale_at_));
    const Input zero = input_at(*this, context, static_cast<std::size_t>(zero_at_));
    if (y_scale.shape.count() != 1 || zero.shape.count() != 1) {
      throw Error(ort::kInvalidArgument, owner + ": y_scale of shape " + y_scale.shape.text() +
                                             " and y_zero_point of shape " + zero.shape.text() +
                                             " must have one value each");
    }
    tensors.quantised_scale = y_scale.data;
    tensors.zero_point = zero.data;
  }
  if (types_.quantised == RMS_NORM_FLOAT8E4M3FN) tensors.zero_point = nullptr;
}

void GivenScale::set_quantised_types(rms_norm_params& params) const {
  params.quantised_type = types_.quantised;
  params.quantised_scale_type = types_.quantised_scale;
  params.quotient_type = quotient_type_;
}

// -- by a scale of its own range --------------------------------------------------------------------------------------

// What is kept of each row until the range of all is known.
class Kept {
 public:
  Kept(std::int64_t rows, std::int64_t pieces) {
    float* values = few_;
    bool* flags = few_flags_;
    const std::int64_t count = 2 * rows + 3 * pieces;
    if (count > kFew) {
      many_.reset(new float[static_cast<std::size_t>(count)]);
      many_flags_.reset(new bool[static_cast<std::size_t>(rows)]);
      values = many_.get();
      flags = many_flags_.get();
    }
    factors = {values, values + rows, flags};
    values += 2 * rows;
    ends = {values, values + pieces, values + 2 * pieces};
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  RowFactors factors;
  PieceEnds ends;

 private:
  static constexpr std::int64_t kFew = 256;
  float few_[kFew];
  bool few_flags_[kFew / 5];  // a row has a piece or more
  std::unique_ptr<float[]> many_;
  std::unique_ptr<bool[]> many_flags_;
};

// The norm, up to the range of y.
struct RangesWork final : Work {
  const Plan& plan;
  const Tensors& tensors;
  const Kept& kept;
  RangesWork(const Plan& plan, const Tensors& tensors, const Kept& kept) : plan(plan), tensors(tensors), kept(kept) {}
  void run(std::int64_t begin, std::int64_t end) const noexcept override {
    plan.run_ranges(tensors, begin, end, kept.factors, kept.ends);
  }
};

// The rest of it, by the scale that followed from the range.
struct BytesWork final : Work {
  const Plan& plan;
  const Tensors& tensors;
  const RowFactors& factors;
  BytesWork(const Plan& plan, const Tensors& tensors, const RowFactors& factors)
      : plan(plan), tensors(tensors), factors(factors) {}
  void run(std::int64_t begin, std::int64_t end) const noexcept override {
    plan.run_outputs(tensors, begin, end, factors);
  }
};

// The ends of a range that holds zero.
struct Range {
  float least = 0.0f;
  float most = 0.0f;
};

class OwnScale final : public Quantised {
 public:
  OwnScale(const Op& op, Node node, const KernelInfo* info)
      : Quantised(op, std::move(node), info),
        y_scale_at_(position_of(op.signature->outputs, Role::kQuantisedScale)),
        zero_at_(position_of(op.signature->outputs, Role::kZeroPoint)) {}

 private:
  void set_quantised_scale(KernelContext* context, Tensors& tensors) const override;
  void set_quantised_types(rms_norm_params& params) const override;
  void run_empty(const Tensors& tensors) const override { set_scale({}, tensors); }
  void run(KernelContext* context, const Known::Norm& norm, const Tensors& tensors) const override;

  // The range of y, where the plan has no ranges. It writes `sum`, and leaves the rest to a second norm.
  Range range_of(KernelContext* context, rms_norm_params params, const Shape& x, std::int64_t rows) const;

  // What DynamicQuantizeLinear makes of a range, in onnxruntime's order of operations.
  static void set_scale(const Range& range, const Tensors& tensors) {
    const float scale = range.most == range.least ? 1.0f : (range.most - range.least) / 255.0f;
    const float zero = std::max(0.0f, std::min(255.0f, 0.0f - range.least / scale));
    // Both are this node's outputs.
    *static_cast<float*>(const_cast<void*>(tensors.quantised_scale)) = scale;
    *static_cast<std::uint8_t*>(const_cast<void*>(tensors.zero_point)) =
        static_cast<std::uint8_t>(std::nearbyint(zero));
  }

  int y_scale_at_;
  int zero_at_;
};

void OwnScale::set_quantised_scale(KernelContext* context, Tensors& tensors) const {
  Shape none;
  tensors.quantised_scale = output_at(*this, context, static_cast<std::size_t>(y_scale_at_), none);
  tensors.zero_point = output_at(*this, context, static_cast<std::size_t>(zero_at_), none);
}

void OwnScale::set_quantised_types(rms_norm_params& params) const {
  params.quantised_type = RMS_NORM_UINT8;
  params.quantised_scale_type = RMS_NORM_FLOAT32;
}

Range OwnScale::range_of(KernelContext* context, rms_norm_params params, const Shape& x, std::int64_t rows) const {
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

void OwnScale::run(KernelContext* context, const Known::Norm& norm, const Tensors& tensors) const {
  const Plan& plan = norm.plan;
  if (!plan.has_ranges()) {
    rms_norm_params params = norm.params;
    tensors.put(params);
    set_scale(range_of(context, params, norm.x, plan.units()), tensors);
    if (params.sum) params.x = params.sum;
    params.residual = nullptr;
    params.sum = nullptr;
    return run_norm(*this, context, params, norm.x, scale_.data != nullptr);
  }
  const Kept kept(plan.units(), plan.units() * plan.pieces());
  run_parallel(*this, context, RangesWork(plan, tensors, kept), plan.units(), plan.unit_work());
  Range range;
  plan.widen_range(tensors, kept.factors, kept.ends, &range.least, &range.most);
  set_scale(range, tensors);
  run_parallel(*this, context, BytesWork(plan, tensors, kept.factors), plan.units(), plan.unit_work());
}

}  // namespace

std::unique_ptr<Kernel> make_quantised(const Op& op, const Api* api, const KernelInfo* info) {
  return std::make_unique<GivenScale>(op, node_of(api, info, op.signature->name), info);
}

std::unique_ptr<Kernel> make_dynamically_quantised(const Op& op, const Api* api, const KernelInfo* info) {
  return std::make_unique<OwnScale>(op, node_of(api, info, op.signature->name), info);
}

}  // namespace rmsnorm_deploy
