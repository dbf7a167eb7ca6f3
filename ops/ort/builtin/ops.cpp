// onnxruntime's own operators as custom ops. Registering them replaces the built-in ones, schemas included, so each has
// its complete signature: every type, optional input and output that the built-in kernels for the CPU take.
//
// What they compute is what the built-in ones do. All arithmetic is in float32 (float64 for float64); what is of 16
// bits is rounded once, at the end. That includes the sum of SkipSimplifiedLayerNormalization: the norm is that of the
// float32 sum, and only the output is rounded. Norming the rounded sum, as Hugging Face's models do and as our own
// AddRMSNorm does, would be one conversion less, but up to a unit in the last place further off both the built-in
// kernel and float64.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "../../cpu/convert.h"
#include "../../cpu/scalar.h"
#include "../binding.h"
#include "../library.h"

namespace rmsnorm_deploy {
namespace {

using ort::Api;
using ort::CustomOp;
using ort::KernelContext;
using ort::KernelInfo;
using ort::Status;

enum class Kind { kSimplified, kRms, kSkip };

// A custom op and what tells it from the others.
struct Op : CustomOp {
  Kind kind = Kind::kSimplified;
  std::int32_t x_type = 0;
  std::int32_t scale_type = 0;  // of scale and of the first output
};

const Op& derived(const CustomOp* op) { return *static_cast<const Op*>(op); }

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kSkip:
      return "SkipSimplifiedLayerNormalization";
    case Kind::kRms:
      return "RMSNormalization";
    default:
      return "SimplifiedLayerNormalization";
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Kernels

// One node. Nothing in it changes after its creation, so that a session can run on several threads at once.
struct Kernel : Node {
  Kind kind = Kind::kSimplified;
  std::int32_t x_type = 0;
  std::int32_t scale_type = 0;
  std::int64_t axis = -1;  // first normalised dimension
  float epsilon = 0;
  Constant scale;
  Constant bias;  // of SkipSimplifiedLayerNormalization

  std::int32_t arithmetic() const { return x_type == RMS_NORM_FLOAT64 ? RMS_NORM_FLOAT64 : RMS_NORM_FLOAT32; }
};

// Whether a reading succeeded. An attribute that is absent has its default.
bool read(const Kernel& kernel, Status* status) {
  if (!status) return true;
  ort::call<ort::ReleaseStatus, void>(kernel.api, status);
  return false;
}

bool read_float(const Kernel& kernel, const KernelInfo* info, const char* name, float* value) {
  return read(kernel, ort::call<ort::KernelInfoGetAttribute_float>(kernel.api, info, name, value));
}

bool read_int(const Kernel& kernel, const KernelInfo* info, const char* name, std::int64_t* value) {
  return read(kernel, ort::call<ort::KernelInfoGetAttribute_int64>(kernel.api, info, name, value));
}

void refuse_type(const Kernel& kernel, const char* name, const char* wanted) {
  throw Error(ort::kInvalidGraph, kernel.owner + ": the attribute " + name + " must be " + wanted);
}

std::unique_ptr<Kernel> make_kernel(const Op& op, const Api* api, const KernelInfo* info) {
  std::unique_ptr<Kernel> kernel(new Kernel);
  static_cast<Node&>(*kernel) = node_of(api, info, name_of(op.kind));
  kernel->kind = op.kind;
  kernel->x_type = op.x_type;
  kernel->scale_type = op.scale_type;

  std::int64_t integer = 0;
  float number = 0;
  if (!read_float(*kernel, info, "epsilon", &kernel->epsilon)) {
    if (read_int(*kernel, info, "epsilon", &integer)) refuse_type(*kernel, "epsilon", "a float");
    kernel->epsilon = op.kind == Kind::kSkip ? 1e-12f : 1e-5f;
  }
  if (!(kernel->epsilon >= 0) || std::isinf(kernel->epsilon)) {
    throw Error(ort::kInvalidGraph,
                kernel->owner + ": epsilon must be finite and not negative, not " + std::to_string(kernel->epsilon));
  }
  if (op.kind != Kind::kSkip && !read_int(*kernel, info, "axis", &kernel->axis)) {
    if (read_float(*kernel, info, "axis", &number)) refuse_type(*kernel, "axis", "an integer");
    kernel->axis = -1;
  }

  const std::int32_t to = kernel->arithmetic();
  const std::size_t scale_index = op.kind == Kind::kSkip ? 2 : 1;
  kernel->scale = constant_input(*kernel, info, scale_index, op.scale_type, to, to);
  std::size_t inputs = 0;
  check(ort::call<ort::KernelInfo_GetInputCount>(api, info, &inputs));
  if (inputs > 3) kernel->bias = constant_input(*kernel, info, 3, op.scale_type, to, to);
  return kernel;
}

// ---------------------------------------------------------------------------------------------------------------------
// Running

// A row of float32 weights, converted where it has to be. `data` is null where there is none.
struct Floats {
  const float* data = nullptr;
  std::unique_ptr<unsigned char[]> owned;
};

Floats floats_of(const Constant& constant, const Input& input, std::int32_t type) {
  Floats floats;
  if (constant.data) {
    floats.data = reinterpret_cast<const float*>(constant.data.get());
  } else if (input.data && type == RMS_NORM_FLOAT32) {
    floats.data = static_cast<const float*>(input.data);
  } else if (input.data) {
    const std::int64_t count = std::max<std::int64_t>(input.shape.count(), 1);
    floats.owned.reset(new unsigned char[static_cast<std::size_t>(count) * sizeof(float)]);
    convert(input.data, type, input.shape.count(), RMS_NORM_FLOAT32, RMS_NORM_FLOAT32, floats.owned.get());
    floats.data = reinterpret_cast<const float*>(floats.owned.get());
  }
  return floats;
}

void* advance(void* base, std::int32_t type, std::int64_t count) {
  return base ? static_cast<unsigned char*>(base) + element_size(type) * count : nullptr;
}
const void* advance(const void* base, std::int32_t type, std::int64_t count) {
  return static_cast<const unsigned char*>(base) + element_size(type) * count;
}

void widen_floats(const void* from, std::int32_t type, std::int64_t count, float* to) {
  convert(from, type, count, RMS_NORM_FLOAT32, RMS_NORM_FLOAT32, to);
}

// The parameters of a plain norm over the dimensions of x from `axis` on; x, y and scale are left open.
rms_norm_params plain_params(std::int32_t type, const Shape& x, std::int64_t axis, float epsilon) {
  rms_norm_params params = {};
  params.version = RMS_NORM_PARAMS_VERSION;
  params.x_type = type;
  params.round_type = type == RMS_NORM_FLOAT64 ? RMS_NORM_FLOAT64 : RMS_NORM_FLOAT32;
  params.scale_type = params.round_type;
  params.stash_type = params.round_type;
  params.rank = static_cast<std::int32_t>(x.rank);
  params.axis_begin = static_cast<std::int32_t>(axis);
  params.axis_count = params.rank - params.axis_begin;
  params.partial_size = std::numeric_limits<std::int64_t>::max();
  params.epsilon = epsilon;
  std::copy(x.dims, x.dims + x.rank, params.shape);
  return params;
}

// 1 / rms of `rows` rows.
template <typename T>
void inverse_rms(const T* x, std::int64_t rows, std::int64_t size, double epsilon, float* result) {
  for (std::int64_t row = 0; row < rows; ++row) {
    double total = 0;
    for (std::int64_t i = 0; i < size; ++i) {
      const double value = widen(x[row * size + i]);
      total += value * value;
    }
    result[row] = static_cast<float>(1.0 / std::sqrt(total / static_cast<double>(size) + epsilon));
  }
}

void inverse_rms(const void* x, std::int32_t type, std::int64_t rows, std::int64_t size, double epsilon,
                 float* result) {
  switch (type) {
    case RMS_NORM_FLOAT32:
      return inverse_rms(static_cast<const float*>(x), rows, size, epsilon, result);
    case RMS_NORM_FLOAT16:
      return inverse_rms(static_cast<const Half*>(x), rows, size, epsilon, result);
    case RMS_NORM_BFLOAT16:
      return inverse_rms(static_cast<const Bfloat*>(x), rows, size, epsilon, result);
    default:
      return inverse_rms(static_cast<const double*>(x), rows, size, epsilon, result);
  }
}

// Rows that are widened to float32, perhaps added up, normed there, and rounded to the type of the output, a few rows
// at a time so that the float32 values stay in the cache. All rows share one scale.
struct FloatRows final : Work {
  const void* x = nullptr;
  std::int32_t x_type = 0;
  const void* skip = nullptr;  // or null; of x_type
  std::int64_t skip_rows = 0;  // after so many rows it starts anew
  const float* bias = nullptr;
  const float* scale = nullptr;
  void* y = nullptr;
  std::int32_t y_type = 0;
  void* sum = nullptr;  // or null; of x_type
  float* inverse = nullptr;
  std::int64_t size = 0;
  float epsilon = 0;
  mutable std::atomic<int> code{RMS_NORM_OK};  // of what went wrong

  void run(std::int64_t begin, std::int64_t end) const noexcept override {
    constexpr std::int64_t kTogether = 4096;
    const std::int64_t most = std::max<std::int64_t>(1, kTogether / size);
    std::unique_ptr<float[]> scratch;
    if (y_type != RMS_NORM_FLOAT32) {
      scratch.reset(new (std::nothrow) float[static_cast<std::size_t>(most * size)]);
      if (!scratch) {
        code = RMS_NORM_OUT_OF_MEMORY;
        return;
      }
    }
    for (std::int64_t row = begin; row < end; row += most) {
      const std::int64_t rows = std::min(most, end - row);
      float* const normed = scratch ? scratch.get() : static_cast<float*>(advance(y, y_type, row * size));
      const float* from = normed;
      if (skip) {
        float* const added =
            sum && x_type == RMS_NORM_FLOAT32 ? static_cast<float*>(advance(sum, x_type, row * size)) : normed;
        for (std::int64_t i = 0; i < rows; ++i) add(row + i, added + i * size);
        from = added;
        if (sum && x_type != RMS_NORM_FLOAT32) {
          narrow_floats(added, rows * size, x_type, advance(sum, x_type, row * size));
        }
        if (inverse) inverse_rms(added, rows, size, static_cast<double>(epsilon), inverse + row);
      } else if (x_type == RMS_NORM_FLOAT32) {
        from = static_cast<const float*>(advance(x, x_type, row * size));
      } else {
        widen_floats(advance(x, x_type, row * size), x_type, rows * size, normed);
      }
      norm(from, rows, normed);
      if (scratch) narrow_floats(normed, rows * size, y_type, advance(y, y_type, row * size));
    }
  }

 private:
  // One row of (x + skip) + bias.
  void add(std::int64_t row, float* result) const noexcept {
    constexpr std::int64_t kPiece = 256;
    float widened[2][kPiece];
    const std::int64_t skip_row = row % skip_rows;
    for (std::int64_t done = 0; done < size; done += kPiece) {
      const std::int64_t count = std::min(kPiece, size - done);
      const void* a = advance(x, x_type, row * size + done);
      const void* b = advance(skip, x_type, skip_row * size + done);
      if (x_type != RMS_NORM_FLOAT32) {
        widen_floats(a, x_type, count, widened[0]);
        widen_floats(b, x_type, count, widened[1]);
        a = widened[0];
        b = widened[1];
      }
      const float* const left = static_cast<const float*>(a);
      const float* const right = static_cast<const float*>(b);
      float* const to = result + done;  // may be where x or skip is
      if (bias) {
        for (std::int64_t i = 0; i < count; ++i) to[i] = (left[i] + right[i]) + bias[done + i];
      } else {
        for (std::int64_t i = 0; i < count; ++i) to[i] = left[i] + right[i];
      }
    }
  }

  void norm(const float* from, std::int64_t rows, float* to) const noexcept {
    Shape shape;
    shape.rank = 2;
    shape.dims[0] = rows;
    shape.dims[1] = size;
    rms_norm_params params = plain_params(RMS_NORM_FLOAT32, shape, 1, epsilon);
    params.x = from;
    params.y = to;
    params.scale = scale;
    params.scale_strides[1] = 1;
    Plan plan;
    if (const int failure = plan.prepare(params, true)) {
      code = failure;
    } else {
      plan.run(0, plan.units());
    }
  }
};

void run_rows(const Kernel& kernel, KernelContext* context, const FloatRows& rows, std::int64_t count) {
  run_parallel(kernel, context, rows, count, rows.size);
  if (const int code = rows.code) throw Error(ort::kFail, kernel.owner + ": " + rmsnorm_deploy_error_text(code));
}

// Strides of scale along x. Since 1.24 onnxruntime takes every scale that broadcasts into x. Before, it took every one
// with as many values as are normalised, whatever its shape; such a runtime gets that, and then what broadcasts.
void scale_strides(const Kernel& kernel, const Shape& scale, const Shape& x, std::int64_t axis, std::int64_t* strides) {
  if (runtime_minor() < 24) {
    Shape normalised;
    normalised.rank = x.rank - static_cast<std::size_t>(axis);
    std::copy(x.dims + axis, x.dims + x.rank, normalised.dims);
    if (scale.count() == normalised.count()) {
      broadcast(normalised, x, strides);
      return;
    }
  }
  broadcast(kernel, "scale", scale, x, strides);
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

void compute_norm(const Kernel& kernel, KernelContext* context) {
  const Input x = input_at(kernel, context, 0);
  const std::int64_t rank = static_cast<std::int64_t>(x.shape.rank);
  const std::int64_t axis = kernel.axis < 0 ? kernel.axis + rank : kernel.axis;
  if (axis < 0 || axis >= rank) {
    throw Error(ort::kInvalidArgument,
                kernel.owner + ": axis " + std::to_string(kernel.axis) + " is outside X of shape " + x.shape.text());
  }
  rms_norm_params params = plain_params(kernel.x_type, x.shape, axis, kernel.epsilon);
  const bool constant = kernel.scale.data != nullptr;
  Input scale;
  if (!constant) scale = input_at(kernel, context, 1);
  scale_strides(kernel, constant ? kernel.scale.shape : scale.shape, x.shape, axis, params.scale_strides);

  Shape one_a_row = x.shape;
  std::fill(one_a_row.dims + axis, one_a_row.dims + rank, 1);
  void* const y = output_at(kernel, context, 0, x.shape);
  float* const inverse =
      kernel.kind == Kind::kSimplified ? static_cast<float*>(output_at(kernel, context, 1, one_a_row)) : nullptr;
  const std::int64_t count = x.shape.count();
  const std::int64_t rows = one_a_row.count();
  if (count == 0) {
    if (inverse) std::fill_n(inverse, rows, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const std::int64_t size = count / rows;
  // Before anything is written: y may be where x is.
  if (inverse) inverse_rms(x.data, kernel.x_type, rows, size, static_cast<double>(kernel.epsilon), inverse);

  if (kernel.x_type == kernel.scale_type) {
    params.x = x.data;
    params.y = y;
    params.scale = constant ? kernel.scale.data.get() : scale.data;
    if (!constant) params.scale_type = kernel.scale_type;
    run_norm(kernel, context, params, x.shape, constant);
    return;
  }
  const Floats floats = floats_of(kernel.scale, scale, kernel.scale_type);
  if (shared_by_rows(x.shape, static_cast<std::size_t>(axis), params.scale_strides)) {
    FloatRows work;
    work.x = x.data;
    work.x_type = kernel.x_type;
    work.scale = floats.data;
    work.y = y;
    work.y_type = kernel.scale_type;
    work.size = size;
    work.epsilon = kernel.epsilon;
    run_rows(kernel, context, work, rows);
    return;
  }
  // Rare: the whole tensor at once, in float32.
  std::unique_ptr<float[]> scratch;
  float* normed = static_cast<float*>(y);
  if (kernel.scale_type != RMS_NORM_FLOAT32) {
    scratch.reset(new float[static_cast<std::size_t>(count)]);
    normed = scratch.get();
  }
  params.x = x.data;
  if (kernel.x_type != RMS_NORM_FLOAT32) {
    widen_floats(x.data, kernel.x_type, count, normed);
    params.x = normed;
  }
  params.x_type = RMS_NORM_FLOAT32;
  params.scale = floats.data;
  params.y = normed;
  run_norm(kernel, context, params, x.shape, true);
  if (scratch) narrow_floats(normed, count, kernel.scale_type, y);
}

void expect_row(const Kernel& kernel, const char* what, const Shape& shape, std::int64_t size) {
  if (shape.rank != 1 || shape.dims[0] != size) {
    throw Error(ort::kInvalidArgument, kernel.owner + ": " + what + " of shape " + shape.text() +
                                           " must have the shape [" + std::to_string(size) + "]");
  }
}

void compute_skip(const Kernel& kernel, KernelContext* context) {
  const Input x = input_at(kernel, context, 0);
  const Input skip = input_at(kernel, context, 1);
  const std::size_t rank = x.shape.rank;
  if (rank != 2 && rank != 3) {
    throw Error(ort::kInvalidArgument,
                kernel.owner + ": X must have 2 or 3 dimensions, not the shape " + x.shape.text());
  }
  // The built-in kernel reads skip over and over, for as many rows as X has.
  const std::size_t skip_rank = skip.shape.rank;
  if (skip_rank < 2 || skip_rank > rank ||
      !std::equal(x.shape.dims + rank - 2, x.shape.dims + rank,
                  skip.shape.dims + (skip_rank < 2 ? 0 : skip_rank - 2))) {
    throw Error(ort::kInvalidArgument, kernel.owner + ": skip of shape " + skip.shape.text() +
                                           " must have the shape of X, " + x.shape.text() +
                                           ", or its last two dimensions");
  }
  const std::int64_t size = x.shape.dims[rank - 1];
  const Input scale = input_at(kernel, context, 2);
  expect_row(kernel, "gamma", scale.shape, size);
  const Input bias = input_at(kernel, context, 3);
  if (bias.data) expect_row(kernel, "bias", bias.shape, size);

  Shape one_a_row = x.shape;
  one_a_row.dims[rank - 1] = 1;
  void* const y = output_at(kernel, context, 0, x.shape);
  float* const mean = static_cast<float*>(output_at(kernel, context, 1, one_a_row));
  float* const inverse = static_cast<float*>(output_at(kernel, context, 2, one_a_row));
  void* const sum = output_at(kernel, context, 3, x.shape);
  const std::int64_t count = x.shape.count();
  const std::int64_t rows = one_a_row.count();
  if (mean) std::fill_n(mean, rows, 0.0f);  // as the built-in kernel does: this norm has no mean
  if (count == 0) {
    if (inverse) std::fill_n(inverse, rows, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  if (skip.shape.count() == 0) {
    throw Error(ort::kInvalidArgument, kernel.owner + ": skip of shape " + skip.shape.text() + " is empty");
  }
  const Floats gamma = floats_of(kernel.scale, scale, kernel.scale_type);
  const Floats added = floats_of(kernel.bias, bias, kernel.scale_type);

  if (kernel.x_type == RMS_NORM_FLOAT32 && sum && !added.data && !inverse && skip.shape == x.shape) {
    rms_norm_params params =
        plain_params(RMS_NORM_FLOAT32, x.shape, static_cast<std::int64_t>(rank - 1), kernel.epsilon);
    params.x = x.data;
    params.residual = skip.data;
    params.scale = gamma.data;
    params.scale_strides[rank - 1] = 1;
    params.y = y;
    params.sum = sum;
    run_norm(kernel, context, params, x.shape, true);
    return;
  }
  FloatRows work;
  work.x = x.data;
  work.x_type = kernel.x_type;
  work.skip = skip.data;
  work.skip_rows = skip.shape.count() / size;
  work.bias = added.data;
  work.scale = gamma.data;
  work.y = y;
  work.y_type = kernel.x_type;
  work.sum = sum;
  work.inverse = inverse;
  work.size = size;
  work.epsilon = kernel.epsilon;
  run_rows(kernel, context, work, rows);
}

// ---------------------------------------------------------------------------------------------------------------------
// What onnxruntime calls

const char* get_name(const CustomOp* op) { return name_of(derived(op).kind); }

std::size_t get_input_count(const CustomOp* op) { return derived(op).kind == Kind::kSkip ? 4 : 2; }
int get_input_type(const CustomOp* op, std::size_t index) {
  return index == 0 ? derived(op).x_type : derived(op).scale_type;
}
int get_input_characteristic(const CustomOp*, std::size_t index) { return index < 3 ? ort::kRequired : ort::kOptional; }

// Y, and the inverse rms; for Skip Y, mean, inverse rms, and the sum.
std::size_t get_output_count(const CustomOp* op) {
  switch (derived(op).kind) {
    case Kind::kSkip:
      return 4;
    case Kind::kRms:
      return 1;
    default:
      return 2;
  }
}
int get_output_type(const CustomOp* op, std::size_t index) {
  return index == 0 || index == 3 ? derived(op).scale_type : static_cast<int>(RMS_NORM_FLOAT32);
}
int get_output_characteristic(const CustomOp*, std::size_t index) { return index ? ort::kOptional : ort::kRequired; }

Status* create_kernel(const CustomOp* op, const Api* api, const KernelInfo* info, void** result) {
  return guarded(api, [&] { *result = make_kernel(derived(op), api, info).release(); });
}

Status* compute_status(void* data, KernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(data);
  return guarded(kernel.api,
                 [&] { kernel.kind == Kind::kSkip ? compute_skip(kernel, context) : compute_norm(kernel, context); });
}

void destroy_kernel(void* data) { delete static_cast<Kernel*>(data); }

Status* infer_shape(const CustomOp*, ort::ShapeContext* context) {
  const Api* api = inference_api();
  return guarded(api, [&] { infer_same_shape(api, context, 1); });
}

int since_23(const CustomOp*) { return 23; }

// Y may lie where X was, and the sum where skip was: rows are read before they are written.
int inplace_inputs[] = {0, 1};
int inplace_outputs[] = {0, 3};

std::size_t first_inplace(int** inputs, int** outputs) {
  *inputs = inplace_inputs;
  *outputs = inplace_outputs;
  return 1;
}
std::size_t both_inplace(int** inputs, int** outputs) {
  *inputs = inplace_inputs;
  *outputs = inplace_outputs;
  return 2;
}

struct Signature {
  Kind kind;
  std::int32_t x_type;
  std::int32_t scale_type;
};

// Those of the domain "" come first.
constexpr Signature kSignatures[] = {
    {Kind::kSimplified, RMS_NORM_FLOAT32, RMS_NORM_FLOAT32},   {Kind::kSimplified, RMS_NORM_FLOAT32, RMS_NORM_FLOAT16},
    {Kind::kSimplified, RMS_NORM_FLOAT16, RMS_NORM_FLOAT32},   {Kind::kSimplified, RMS_NORM_FLOAT16, RMS_NORM_FLOAT16},
    {Kind::kSimplified, RMS_NORM_BFLOAT16, RMS_NORM_BFLOAT16}, {Kind::kSimplified, RMS_NORM_FLOAT64, RMS_NORM_FLOAT64},
    {Kind::kRms, RMS_NORM_FLOAT32, RMS_NORM_FLOAT32},          {Kind::kRms, RMS_NORM_FLOAT16, RMS_NORM_FLOAT16},
    {Kind::kRms, RMS_NORM_BFLOAT16, RMS_NORM_BFLOAT16},        {Kind::kRms, RMS_NORM_FLOAT64, RMS_NORM_FLOAT64},
    {Kind::kSkip, RMS_NORM_FLOAT32, RMS_NORM_FLOAT32},         {Kind::kSkip, RMS_NORM_FLOAT16, RMS_NORM_FLOAT16},
    {Kind::kSkip, RMS_NORM_BFLOAT16, RMS_NORM_BFLOAT16},
};
constexpr std::size_t kSignatureCount = sizeof kSignatures / sizeof kSignatures[0];
constexpr std::size_t kStandardCount = 10;
static_assert(kSignatures[kStandardCount - 1].kind != Kind::kSkip && kSignatures[kStandardCount].kind == Kind::kSkip,
              "the domains are told apart by position");

struct AllOps {
  Op ops[kSignatureCount];

  AllOps() noexcept {
    std::size_t next = 0;
    for (const Signature& signature : kSignatures) {
      Op& op = ops[next++];
      static_cast<CustomOp&>(op) = usual_op();
      op.get_name = get_name;
      op.get_input_type = get_input_type;
      op.get_input_count = get_input_count;
      op.get_input_characteristic = get_input_characteristic;
      op.get_output_type = get_output_type;
      op.get_output_count = get_output_count;
      op.get_output_characteristic = get_output_characteristic;
      op.destroy_kernel = destroy_kernel;
      op.create_kernel_status = create_kernel;
      op.compute_status = compute_status;
      // Before 1.24, shape inference of a custom op ends the process where an optional input is named "".
      if (signature.kind != Kind::kSkip || runtime_minor() >= 24) op.infer_shape = infer_shape;
      if (signature.kind == Kind::kRms) op.start_version = since_23;
      if (signature.kind == Kind::kSkip) {
        op.may_inplace = both_inplace;
      } else if (signature.x_type == signature.scale_type) {
        op.may_inplace = first_inplace;
      }
      op.kind = signature.kind;
      op.x_type = signature.x_type;
      op.scale_type = signature.scale_type;
    }
  }
};

const CustomOp* op_at(std::size_t index) {
  static const AllOps all;
  return &all.ops[index];
}
const CustomOp* skip_op_at(std::size_t index) { return op_at(kStandardCount + index); }

constexpr LibraryDomain kDomains[] = {
    {"", kStandardCount, op_at},
    {"com.microsoft", kSignatureCount - kStandardCount, skip_op_at},
};

}  // namespace

std::size_t domain_count() noexcept { return 2; }
const LibraryDomain& domain_at(std::size_t index) noexcept { return kDomains[index]; }

}  // namespace rmsnorm_deploy
