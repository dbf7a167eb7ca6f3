#include "quantised.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "../../contract/check.h"
#include "../../cpu/plan.h"
#include "../../cpu/quantise.h"
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
  }

  void compute(KernelContext* context) const override;

 private:
  int y_scale_at_;
  int zero_at_;
  int quantised_at_;
  std::int32_t quotient_type_ = RMS_NORM_FLOAT32;
};

void GivenScale::compute(KernelContext* context) const {
  rms_norm_params params;
  const Shape x = set_norm(context, params);
  const Input y_scale = input_at(*this, context, static_cast<std::size_t>(y_scale_at_));
  const Input zero = input_at(*this, context, static_cast<std::size_t>(zero_at_));
  if (y_scale.shape.count() != 1 || zero.shape.count() != 1) {
    throw Error(ort::kInvalidArgument, owner + ": y_scale of shape " + y_scale.shape.text() +
                                           " and y_zero_point of shape " + zero.shape.text() +
                                           " must have one value each");
  }
  params.quantised = output_at(*this, context, static_cast<std::size_t>(quantised_at_), x);
  params.quantised_type = types_.quantised;
  params.quantised_scale = y_scale.data;
  params.quantised_scale_type = types_.quantised_scale;
  params.zero_point = types_.quantised == RMS_NORM_FLOAT8E4M3FN ? nullptr : zero.data;
  params.quotient_type = quotient_type_;
  if (x.count() == 0) return;
  if (on_gpu_) return launch(*this, context, params, nullptr, x);
  run_norm(*this, context, params, x, scale_.data != nullptr);
}

// -- by a scale of its own range --------------------------------------------------------------------------------------

// Blocks of rows, normed into y; a block is in the first-level cache when its range is taken.
struct NormWork final : Work {
  Plan plan;
  const float* y;
  std::int64_t rows;
  std::int64_t size;
  std::int64_t block;  // rows in one
  float* least;        // one for each block, as `most`
  float* most;
  void run(std::int64_t begin, std::int64_t end) const noexcept override {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i * block;
      const std::int64_t last = std::min(rows, first + block);
      plan.run(first, last);
      least[i] = std::numeric_limits<float>::infinity();
      most[i] = -std::numeric_limits<float>::infinity();
      extremes(y + first * size, (last - first) * size, &least[i], &most[i]);
    }
  }
};

// Rows of y in 8 bits.
struct QuantiseWork final : Work {
  const float* y;
  unsigned char* to;
  std::int64_t size;
  float scale;
  std::int32_t zero_point;
  void run(std::int64_t begin, std::int64_t end) const noexcept override {
    quantise(y + begin * size, RMS_NORM_FLOAT32, (end - begin) * size, scale, zero_point, RMS_NORM_FLOAT32,
             RMS_NORM_UINT8, to + begin * size);
  }
};

// Room for y, which the thread keeps: a large block of memory that is new each time costs more than the norm.
constexpr std::int64_t kMostKept = 1 << 20;
float* room_of_thread(std::int64_t count) {
  thread_local std::unique_ptr<float[]> room;
  thread_local std::int64_t length = 0;
  if (count > length) {
    room.reset(new float[static_cast<std::size_t>(count)]);
    length = count;
  }
  return room.get();
}

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

  int quantised_at_;
  int y_scale_at_;
  int zero_at_;
};

// What DynamicQuantizeLinear makes of the ends of the range, in onnxruntime's order of operations.
void scale_of(float least, float most, float* scale, std::uint8_t* zero_point) {
  least = std::min(least, 0.0f);
  most = std::max(most, 0.0f);
  *scale = most == least ? 1.0f : (most - least) / 255.0f;
  const float zero = std::max(0.0f, std::min(255.0f, 0.0f - least / *scale));
  *zero_point = static_cast<std::uint8_t>(std::nearbyint(zero));
}

constexpr std::int64_t kBlockValues = 4096;
constexpr std::int64_t kFewBlocks = 64;

void OwnScale::compute(KernelContext* context) const {
  rms_norm_params params;
  const Shape x = set_norm(context, params);
  auto* const to = static_cast<unsigned char*>(output_at(*this, context, static_cast<std::size_t>(quantised_at_), x));
  auto* const y_scale = one<float>(context, y_scale_at_);
  auto* const zero = one<std::uint8_t>(context, zero_at_);
  const std::int64_t total = x.count();
  float least = std::numeric_limits<float>::infinity();
  float most = -least;
  if (total == 0) {
    scale_of(least, most, y_scale, zero);
    return;
  }
  std::int64_t rows = 1;
  for (std::int32_t i = 0; i < params.axis_begin; ++i) rows *= params.shape[i];
  // A y that nobody reads is kept as long as most of it stays in the caches between the two passes. A longer one would
  // be written to memory and read again: 8 bytes a value, where norming twice reads x once more, 4 bytes.
  if (!params.y && total <= kMostKept) params.y = room_of_thread(total);
  const bool keeps = params.y != nullptr;
  const std::int64_t size = total / rows;
  const std::int64_t block = keeps ? std::max<std::int64_t>(1, kBlockValues / size) : 1;
  const std::int64_t blocks = (rows + block - 1) / block;
  float few[2 * kFewBlocks];
  std::unique_ptr<float[]> many;
  if (blocks > kFewBlocks) many.reset(new float[2 * static_cast<std::size_t>(blocks)]);
  float* const ends = many ? many.get() : few;
  if (keeps) {
    NormWork work;
    if (const int code = work.plan.prepare(params, scale_.data != nullptr)) {
      throw Error(ort::kInvalidArgument,
                  owner + ": " + rmsnorm_deploy_error_text(code) + " (X has shape " + x.text() + ")");
    }
    work.y = static_cast<const float*>(params.y);
    work.rows = rows;
    work.size = size;
    work.block = block;
    work.least = ends;
    work.most = ends + blocks;
    run_parallel(*this, context, work, blocks, block * size);
  } else {
    params.least = ends;
    params.most = ends + blocks;
    run_norm(*this, context, params, x, scale_.data != nullptr);
  }
  for (std::int64_t i = 0; i < blocks; ++i) {
    least = std::min(least, ends[i]);
    most = std::max(most, ends[blocks + i]);
  }
  scale_of(least, most, y_scale, zero);
  if (keeps) {
    QuantiseWork work;
    work.y = static_cast<const float*>(params.y);
    work.to = to;
    work.size = size;
    work.scale = *y_scale;
    work.zero_point = *zero;
    run_parallel(*this, context, work, rows, size);
    return;
  }
  if (params.sum) params.x = params.sum;
  params.residual = nullptr;
  params.sum = nullptr;
  params.least = nullptr;
  params.most = nullptr;
  params.quantised = to;
  params.quantised_type = RMS_NORM_UINT8;
  params.quantised_scale = y_scale;
  params.quantised_scale_type = RMS_NORM_FLOAT32;
  params.zero_point = zero;
  run_norm(*this, context, params, x, scale_.data != nullptr);
}

}  // namespace

std::unique_ptr<Kernel> make_quantised(const Op& op, const Api* api, const KernelInfo* info) {
  return std::make_unique<GivenScale>(op, node_of(api, info, op.signature->name), info);
}

std::unique_ptr<Kernel> make_dynamically_quantised(const Op& op, const Api* api, const KernelInfo* info) {
  return std::make_unique<OwnScale>(op, node_of(api, info, op.signature->name), info);
}

}  // namespace rmsnorm_deploy
