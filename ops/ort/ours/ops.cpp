// The operators of this project's own domain: one custom op for each combination of operator, types and provider.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "../../include/rms_norm_cuda.h"
#include "../binding.h"
#include "../library.h"
#include "providers.h"

namespace rmsnorm_deploy {
namespace {

using ort::Api;
using ort::CustomOp;
using ort::KernelContext;
using ort::KernelInfo;
using ort::Status;

enum class Kind { kRmsNorm, kAddRmsNorm, kGeneralRmsNorm };

// A custom op and what tells it from the others.
struct Op : CustomOp {
  Kind kind = Kind::kRmsNorm;
  std::int32_t x_type = 0;
  std::int32_t scale_type = 0;  // of scale and bias
  Provider provider = {nullptr, false};
};

const Op& derived(const CustomOp* op) { return *static_cast<const Op*>(op); }

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kAddRmsNorm:
      return "AddRMSNorm";
    case Kind::kGeneralRmsNorm:
      return "GeneralRMSNorm";
    default:
      return "RMSNorm";
  }
}

// Position of scale among the inputs. Bias, where there is one, comes behind it; residual before it.
std::size_t scale_index(Kind kind) { return kind == Kind::kAddRmsNorm ? 2 : 1; }

// ---------------------------------------------------------------------------------------------------------------------
// Kernels

// One node. Nothing in it changes after its creation, so that a session can run on several threads at once.
struct Kernel : Node {
  Kind kind = Kind::kRmsNorm;
  bool on_gpu = false;
  std::int32_t x_type = 0;
  std::int32_t scale_type = 0;
  std::vector<std::int64_t> axes;
  std::int64_t partial_size = std::numeric_limits<std::int64_t>::max();
  std::int32_t stash_type = 0;
  std::int32_t round_type = 0;
  float epsilon = 0;
  float epsilon_outside = 0;
  float rms_floor = 0;
  Constant scale;
  Constant bias;
  bool neutral_bias = false;  // the bias changes nothing, so that no kernel sees it

  // Element type of the arithmetic, which is also that of converted constants.
  std::int32_t arithmetic() const {
    return stash_type == RMS_NORM_FLOAT64 || x_type == RMS_NORM_FLOAT64 ? RMS_NORM_FLOAT64 : RMS_NORM_FLOAT32;
  }
};

// Pass judgement on the reading of an attribute; onnxruntime's own message does not always name it.
void check_attribute(const Kernel& kernel, const char* name, Status* status) {
  if (!status) return;
  ort::call<ort::ReleaseStatus, void>(kernel.api, status);
  throw Error(ort::kInvalidGraph,
              kernel.owner + ": the attribute " + name + " is missing, or of another type; every attribute is needed");
}

float float_attribute(const Kernel& kernel, const KernelInfo* info, const char* name) {
  float value = 0;
  check_attribute(kernel, name, ort::call<ort::KernelInfoGetAttribute_float>(kernel.api, info, name, &value));
  if (!(value >= 0) || std::isinf(value)) {
    throw Error(ort::kInvalidGraph,
                kernel.owner + ": " + name + " must be finite and not negative, not " + std::to_string(value));
  }
  return value;
}

std::int32_t type_attribute(const Kernel& kernel, const KernelInfo* info, const char* name) {
  std::int64_t value = 0;
  check_attribute(kernel, name, ort::call<ort::KernelInfoGetAttribute_int64>(kernel.api, info, name, &value));
  const std::int32_t type = value >= 0 && value <= RMS_NORM_BFLOAT16 ? static_cast<std::int32_t>(value) : 0;
  return element_size(type) ? type : 0;
}

std::vector<std::int64_t> ints_attribute(const Kernel& kernel, const KernelInfo* info, const char* name) {
  // Asked for with no room, onnxruntime says how many there are.
  std::size_t count = 0;
  check_attribute(kernel, name,
                  ort::call<ort::KernelInfoGetAttributeArray_int64>(kernel.api, info, name,
                                                                    static_cast<std::int64_t*>(nullptr), &count));
  std::vector<std::int64_t> values(count);
  if (count) {
    check_attribute(kernel, name,
                    ort::call<ort::KernelInfoGetAttributeArray_int64>(kernel.api, info, name, values.data(), &count));
  }
  return values;
}

Constant constant_of(const Kernel& kernel, const KernelInfo* info, std::size_t index) {
  return constant_input(kernel, info, index, kernel.scale_type, kernel.round_type, kernel.arithmetic());
}

// Whether a bias is the neutral one, -0.0 throughout: adding that changes no value, not even a zero's sign.
bool adds_nothing(const Constant& bias, std::int32_t type) {
  const auto all_neutral = [&bias](const auto* values) {
    return std::all_of(values, values + bias.shape.count(), [](auto v) { return v == 0 && std::signbit(v); });
  };
  if (!bias.data) return false;
  return type == RMS_NORM_FLOAT64 ? all_neutral(reinterpret_cast<const double*>(bias.data.get()))
                                  : all_neutral(reinterpret_cast<const float*>(bias.data.get()));
}

std::unique_ptr<Kernel> make_kernel(const Op& op, const Api* api, const KernelInfo* info) {
  std::unique_ptr<Kernel> kernel(new Kernel);
  static_cast<Node&>(*kernel) = node_of(api, info, name_of(op.kind));
  kernel->kind = op.kind;
  kernel->on_gpu = op.provider.on_gpu;
  kernel->x_type = op.x_type;
  kernel->scale_type = op.scale_type;

  kernel->axes = ints_attribute(*kernel, info, "axes");
  std::vector<std::int64_t> sorted = kernel->axes;
  std::sort(sorted.begin(), sorted.end());
  bool adjacent = !sorted.empty() && (sorted.front() >= 0 || sorted.back() < 0);
  for (std::size_t i = 1; i < sorted.size(); ++i)
    adjacent = adjacent && sorted[i] > sorted[i - 1] && sorted[i] - 1 == sorted[i - 1];
  if (!adjacent) {
    throw Error(ort::kInvalidGraph, kernel->owner +
                                        ": axes must be one contiguous run of dimensions, all of one sign, not " +
                                        text_of(kernel->axes.data(), kernel->axes.size()));
  }
  kernel->axes = sorted;

  kernel->epsilon = float_attribute(*kernel, info, "epsilon");
  kernel->stash_type = type_attribute(*kernel, info, "stash_type");
  if (kernel->stash_type != RMS_NORM_FLOAT32 && kernel->stash_type != RMS_NORM_FLOAT64) {
    throw Error(ort::kInvalidGraph, kernel->owner + ": stash_type must be 1 (float) or 11 (double)");
  }
  kernel->round_type = type_attribute(*kernel, info, "scale_type");
  if (kernel->x_type == RMS_NORM_FLOAT32 && element_size(kernel->round_type) == 2 &&
      kernel->round_type == type_attribute(*kernel, info, "output_type")) {
    // The model's node is of 16 bits, and onnxruntime has turned it into a float32 one: it does that to a node whose
    // neighbours have no 16-bit kernels on the CPU, and drops the roundings between them. The node follows.
    kernel->round_type = RMS_NORM_FLOAT32;
  }
  const bool known = kernel->round_type == kernel->x_type || kernel->round_type == RMS_NORM_FLOAT32 ||
                     (kernel->round_type == RMS_NORM_FLOAT64 && kernel->arithmetic() == RMS_NORM_FLOAT64);
  if (!known) {
    throw Error(ort::kInvalidGraph,
                kernel->owner + ": scale_type must be the type of X, float, or double with stash_type double");
  }
  if (op.kind == Kind::kGeneralRmsNorm) {
    kernel->epsilon_outside = float_attribute(*kernel, info, "epsilon_outside");
    kernel->rms_floor = float_attribute(*kernel, info, "rms_floor");
    const std::vector<std::int64_t> sizes = ints_attribute(*kernel, info, "partial_size");
    bool same = sizes.size() == kernel->axes.size();
    for (const std::int64_t size : sizes) same = same && size == sizes[0] && size >= 1;
    if (!same) {
      throw Error(ort::kInvalidGraph, kernel->owner +
                                          ": partial_size must hold one integer for each axis, all the same and at "
                                          "least 1, not " +
                                          text_of(sizes.data(), sizes.size()));
    }
    kernel->partial_size = sizes[0];
  }
  if (kernel->on_gpu) return kernel;  // constants are in its memory, and its kernels take them as they are
  kernel->scale = constant_of(*kernel, info, scale_index(op.kind));
  if (op.kind == Kind::kGeneralRmsNorm) {
    kernel->bias = constant_of(*kernel, info, 2);
    kernel->neutral_bias = adds_nothing(kernel->bias, kernel->arithmetic());
    if (!kernel->bias.data) kernel->scale.data.reset();  // the plan takes one type for both
    if (!kernel->scale.data && !kernel->neutral_bias) kernel->bias.data.reset();
  }
  return kernel;
}

// Launch on the stream that onnxruntime orders this node's neighbours on, and return at once: no waiting, no memory, so
// that the launch can be captured in a CUDA graph.
void run_on_gpu(const Kernel& kernel, const KernelContext* context, const rms_norm_params& params, const Shape& x) {
  void* stream = nullptr;
  check(ort::call<ort::KernelContext_GetGPUComputeStream>(kernel.api, context, &stream));
  if (const int code = rmsnorm_deploy_cuda_run(&params, stream)) {
    throw Error(code >= RMS_NORM_CUDA_ERROR ? ort::kFail : ort::kInvalidArgument,
                kernel.owner + ": " + rmsnorm_deploy_cuda_error_text(code) + " (X has shape " + x.text() + ")");
  }
}

void compute(const Kernel& kernel, KernelContext* context) {
  const Input x = input_at(kernel, context, 0);
  rms_norm_params params;  // its long arrays are set as far as they are used
  params.version = RMS_NORM_PARAMS_VERSION;
  params.x_type = kernel.x_type;
  params.scale_type = kernel.scale_type;
  params.round_type = kernel.round_type;
  params.stash_type = kernel.stash_type;
  params.rank = static_cast<std::int32_t>(x.shape.rank);
  params.residual = nullptr;
  params.bias = nullptr;
  params.sum = nullptr;
  params.partial_size = kernel.partial_size;
  params.epsilon = kernel.epsilon;
  params.epsilon_outside = kernel.epsilon_outside;
  params.rms_floor = kernel.rms_floor;
  std::copy(x.shape.dims, x.shape.dims + x.shape.rank, params.shape);

  const std::int64_t first = kernel.axes[0] < 0 ? kernel.axes[0] + params.rank : kernel.axes[0];
  const std::int64_t axes = static_cast<std::int64_t>(kernel.axes.size());
  if (first < 0 || first > params.rank - axes) {
    throw Error(ort::kInvalidArgument, kernel.owner + ": axes " + text_of(kernel.axes.data(), kernel.axes.size()) +
                                           " are outside X of shape " + x.shape.text());
  }
  params.axis_begin = static_cast<std::int32_t>(first);
  params.axis_count = static_cast<std::int32_t>(axes);

  if (kernel.kind == Kind::kAddRmsNorm) {
    const Input residual = input_at(kernel, context, 1);
    if (!(residual.shape == x.shape)) {
      throw Error(ort::kInvalidArgument, kernel.owner + ": residual of shape " + residual.shape.text() +
                                             " must have the shape of X, " + x.shape.text());
    }
    params.residual = residual.data;
  }
  const bool constant = kernel.scale.data != nullptr;
  if (constant) {
    params.scale_type = kernel.arithmetic();
    params.scale = kernel.scale.data.get();
    params.bias = kernel.bias.data.get();
    broadcast(kernel, "scale", kernel.scale.shape, x.shape, params.scale_strides);
    if (params.bias) broadcast(kernel, "bias", kernel.bias.shape, x.shape, params.bias_strides);
    if (kernel.neutral_bias) params.bias = nullptr;
  } else {
    const Input scale = input_at(kernel, context, scale_index(kernel.kind));
    params.scale = scale.data;
    broadcast(kernel, "scale", scale.shape, x.shape, params.scale_strides);
    if (kernel.neutral_bias) {
      broadcast(kernel, "bias", kernel.bias.shape, x.shape, params.bias_strides);  // only its shape can be wrong
    } else if (kernel.kind == Kind::kGeneralRmsNorm) {
      const Input bias = input_at(kernel, context, 2);
      params.bias = bias.data;
      broadcast(kernel, "bias", bias.shape, x.shape, params.bias_strides);
    }
  }

  params.x = x.data;
  params.y = output_at(kernel, context, 0, x.shape);
  if (kernel.kind == Kind::kAddRmsNorm) params.sum = output_at(kernel, context, 1, x.shape);
  if (x.shape.count() == 0) return;
  if (kernel.on_gpu) {
    run_on_gpu(kernel, context, params, x.shape);
  } else {
    run_norm(kernel, context, params, x.shape, constant);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// What onnxruntime calls

const char* get_name(const CustomOp* op) { return name_of(derived(op).kind); }
const char* get_provider(const CustomOp* op) { return derived(op).provider.name; }

std::size_t get_input_count(const CustomOp* op) { return derived(op).kind == Kind::kRmsNorm ? 2 : 3; }
std::size_t get_output_count(const CustomOp* op) { return derived(op).kind == Kind::kAddRmsNorm ? 2 : 1; }
int get_input_type(const CustomOp* op, std::size_t index) {
  return index >= scale_index(derived(op).kind) ? derived(op).scale_type : derived(op).x_type;
}
int get_output_type(const CustomOp* op, std::size_t) { return derived(op).x_type; }

Status* create_kernel(const CustomOp* op, const Api* api, const KernelInfo* info, void** result) {
  return guarded(api, [&] { *result = make_kernel(derived(op), api, info).release(); });
}

Status* compute_status(void* data, KernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(data);
  return guarded(kernel.api, [&] { compute(kernel, context); });
}

void destroy_kernel(void* data) { delete static_cast<Kernel*>(data); }

// Every output has X's shape. Without this onnxruntime would also never reuse an input's memory.
Status* infer_shape(const CustomOp* op, ort::ShapeContext* context) {
  const Api* api = inference_api();
  return guarded(api, [&] { infer_same_shape(api, context, get_output_count(op)); });
}

// Y may lie where X was, and the sum where the residual was: rows are read before they are written.
int inplace_inputs[] = {0, 1};
int inplace_outputs[] = {0, 1};

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

constexpr std::int32_t kTypes[][2] = {
    {RMS_NORM_FLOAT32, RMS_NORM_FLOAT32}, {RMS_NORM_FLOAT16, RMS_NORM_FLOAT16}, {RMS_NORM_BFLOAT16, RMS_NORM_BFLOAT16},
    {RMS_NORM_FLOAT64, RMS_NORM_FLOAT64}, {RMS_NORM_FLOAT16, RMS_NORM_FLOAT32}, {RMS_NORM_BFLOAT16, RMS_NORM_FLOAT32},
    {RMS_NORM_FLOAT64, RMS_NORM_FLOAT32},
};
constexpr std::size_t kTypeCount = sizeof kTypes / sizeof kTypes[0];
constexpr Kind kKinds[] = {Kind::kRmsNorm, Kind::kAddRmsNorm, Kind::kGeneralRmsNorm};
constexpr std::size_t kKindCount = sizeof kKinds / sizeof kKinds[0];

struct AllOps {
  Op ops[kMostProviders * kKindCount * kTypeCount];

  AllOps() noexcept {
    std::size_t next = 0;
    for (std::size_t p = 0; p < provider_count(); ++p) {
      for (const Kind kind : kKinds) {
        for (const auto& types : kTypes) {
          Op& op = ops[next++];
          static_cast<CustomOp&>(op) = usual_op();
          op.get_name = get_name;
          op.get_provider = get_provider;
          op.get_input_type = get_input_type;
          op.get_input_count = get_input_count;
          op.get_output_type = get_output_type;
          op.get_output_count = get_output_count;
          op.destroy_kernel = destroy_kernel;
          op.create_kernel_status = create_kernel;
          op.compute_status = compute_status;
          op.infer_shape = infer_shape;
          op.may_inplace = kind == Kind::kAddRmsNorm ? both_inplace : first_inplace;
          op.kind = kind;
          op.x_type = types[0];
          op.scale_type = types[1];
          op.provider = provider_at(p);
        }
      }
    }
  }
};

const CustomOp* op_at(std::size_t index) {
  static const AllOps all;
  return &all.ops[index];
}

}  // namespace

std::size_t domain_count() noexcept { return 1; }
const LibraryDomain& domain_at(std::size_t) noexcept {
  static const LibraryDomain domain = {"rmsnorm_deploy", provider_count() * kKindCount * kTypeCount, op_at};
  return domain;
}

}  // namespace rmsnorm_deploy
