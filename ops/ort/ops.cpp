#include "ops.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "../cpu/plan.h"

namespace rmsnorm_deploy {
namespace {

using ort::Api;
using ort::CustomOp;
using ort::KernelContext;
using ort::KernelInfo;
using ort::Status;
using ort::Value;

enum class Kind { kRmsNorm, kAddRmsNorm, kGeneralRmsNorm };

// A custom op and what tells it from the others.
struct Op : CustomOp {
  Kind kind = Kind::kRmsNorm;
  std::int32_t x_type = 0;
  std::int32_t scale_type = 0;  // of scale and bias
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
// Errors: thrown inside, handed over as a status at the edge

struct Error : std::exception {
  Error(int code_, std::string text_) : code(code_), text(std::move(text_)) {}
  int code;
  std::string text;
};

// A status that onnxruntime made and that goes back to it as it is.
struct Passed {
  Status* status;
};

void check(Status* status) {
  if (status) throw Passed{status};
}

// Run `body` and turn whatever it throws into a status: no exception may reach onnxruntime.
template <typename Body>
Status* guarded(const Api* api, Body body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const Passed& passed) {
    return passed.status;
  } catch (const Error& error) {
    return ort::call<ort::CreateStatus>(api, error.code, error.text.c_str());
  } catch (const std::bad_alloc&) {
    return ort::call<ort::CreateStatus, Status*, int, const char*>(api, ort::kFail, "rmsnorm_deploy: out of memory");
  } catch (...) {
    return ort::call<ort::CreateStatus, Status*, int, const char*>(api, ort::kFail, "rmsnorm_deploy: internal error");
  }
}

std::string text_of(const std::int64_t* values, std::size_t count) {
  std::string text = "[";
  for (std::size_t i = 0; i < count; ++i) text += (i ? "," : "") + std::to_string(values[i]);
  return text + "]";
}

// ---------------------------------------------------------------------------------------------------------------------
// Tensors

struct Shape {
  std::int64_t dims[RMS_NORM_MAX_RANK];  // the first `rank` are set
  std::size_t rank = 0;

  std::int64_t count() const {
    std::int64_t result = 1;
    for (std::size_t i = 0; i < rank; ++i) result *= dims[i];
    return result;
  }
  std::string text() const { return text_of(dims, rank); }
};

Shape shape_of(const Api* api, const Value* value, const std::string& owner) {
  ort::TensorInfo* info = nullptr;
  check(ort::call<ort::GetTensorTypeAndShape>(api, value, &info));
  Shape shape;
  Status* status = ort::call<ort::GetDimensionsCount>(api, static_cast<const ort::TensorInfo*>(info), &shape.rank);
  const bool fits = !status && shape.rank <= RMS_NORM_MAX_RANK;
  if (fits) {
    status = ort::call<ort::GetDimensions>(api, static_cast<const ort::TensorInfo*>(info), &shape.dims[0], shape.rank);
  }
  ort::call<ort::ReleaseTensorTypeAndShapeInfo, void>(api, info);
  check(status);
  if (!fits) {
    throw Error(ort::kInvalidArgument, owner + ": a tensor has " + std::to_string(shape.rank) +
                                           " dimensions; at most " + std::to_string(RMS_NORM_MAX_RANK) +
                                           " are supported");
  }
  return shape;
}

void* data_of(const Api* api, const Value* value) {
  void* data = nullptr;
  check(ort::call<ort::GetTensorMutableData>(api, const_cast<Value*>(value), &data));
  return data;
}

// ---------------------------------------------------------------------------------------------------------------------
// Kernels

// A scale or bias that is a constant of the model: kept in the arithmetic type, so that a run neither converts it nor
// asks onnxruntime about it.
struct Constant {
  std::unique_ptr<unsigned char[]> data;  // empty where the input is no constant, or is used as it comes
  Shape shape;
};

// One node. Nothing in it changes after its creation, so that a session can run on several threads at once.
struct Kernel {
  const Api* api = nullptr;
  Kind kind = Kind::kRmsNorm;
  std::int32_t x_type = 0;
  std::int32_t scale_type = 0;
  std::string owner;  // operator and node, for messages
  std::vector<std::int64_t> axes;
  std::int64_t partial_size = std::numeric_limits<std::int64_t>::max();
  std::int32_t stash_type = 0;
  std::int32_t round_type = 0;
  float epsilon = 0;
  float epsilon_outside = 0;
  float rms_floor = 0;
  Constant scale;
  Constant bias;

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
  return element_size(static_cast<std::int32_t>(value)) ? static_cast<std::int32_t>(value) : 0;
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

std::string node_name(const Api* api, const KernelInfo* info) {
  std::size_t size = 0;
  Status* status = ort::call<ort::KernelInfo_GetNodeName>(api, info, static_cast<char*>(nullptr), &size);
  std::string name(size, '\0');
  if (!status && size) status = ort::call<ort::KernelInfo_GetNodeName>(api, info, &name[0], &size);
  if (status) {  // a message without the name is better than none
    ort::call<ort::ReleaseStatus, void>(api, status);
    return "";
  }
  return std::string(name.c_str());
}

Constant constant_input(const Kernel& kernel, const KernelInfo* info, std::size_t index) {
  constexpr std::int64_t kMostCopied = 1 << 16;  // a larger one is copied only where it has to be converted anyway
  Constant constant;
  int is_constant = 0;
  const Value* value = nullptr;
  check(ort::call<ort::KernelInfoGetConstantInput_tensor>(kernel.api, info, index, &is_constant, &value));
  if (!is_constant || !value) return constant;
  const std::int32_t to = kernel.arithmetic();
  const bool as_it_is = kernel.scale_type == to && (kernel.round_type == to || kernel.round_type == RMS_NORM_FLOAT64);
  constant.shape = shape_of(kernel.api, value, kernel.owner);
  const std::int64_t count = constant.shape.count();
  if (as_it_is && count > kMostCopied) return constant;
  constant.data.reset(new unsigned char[static_cast<std::size_t>(std::max<std::int64_t>(count, 1) * element_size(to))]);
  convert(data_of(kernel.api, value), kernel.scale_type, count, kernel.round_type, to, constant.data.get());
  return constant;
}

std::unique_ptr<Kernel> make_kernel(const Op& op, const Api* api, const KernelInfo* info) {
  std::unique_ptr<Kernel> kernel(new Kernel);
  kernel->api = api;
  kernel->kind = op.kind;
  kernel->x_type = op.x_type;
  kernel->scale_type = op.scale_type;
  const std::string node = node_name(api, info);
  kernel->owner = std::string(name_of(op.kind)) + (node.empty() ? "" : " '" + node + "'");

  kernel->axes = ints_attribute(*kernel, info, "axes");
  std::vector<std::int64_t> sorted = kernel->axes;
  std::sort(sorted.begin(), sorted.end());
  bool adjacent = !sorted.empty() && (sorted.front() >= 0 || sorted.back() < 0);
  for (std::size_t i = 1; i < sorted.size(); ++i) adjacent = adjacent && sorted[i] == sorted[i - 1] + 1;
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
  kernel->scale = constant_input(*kernel, info, scale_index(op.kind));
  if (op.kind == Kind::kGeneralRmsNorm && kernel->scale.data) {
    kernel->bias = constant_input(*kernel, info, 2);
    if (!kernel->bias.data) kernel->scale.data.reset();  // the plan takes one type for both
  }
  return kernel;
}

// Strides, in elements, with which `shape` is read along the dimensions of x: 0 where it is broadcast.
void broadcast(const Kernel& kernel, const char* what, const Shape& shape, const Shape& x, std::int64_t* strides) {
  bool fits = shape.rank <= x.rank;
  std::fill(strides, strides + x.rank, 0);
  std::int64_t stride = 1;
  for (std::size_t back = 1; fits && back <= shape.rank; ++back) {
    const std::int64_t dim = shape.dims[shape.rank - back];
    const std::int64_t wanted = x.dims[x.rank - back];
    fits = dim == wanted || dim == 1;
    strides[x.rank - back] = dim == 1 ? 0 : stride;
    stride *= dim;
  }
  if (!fits) {
    throw Error(ort::kInvalidArgument, kernel.owner + ": " + what + " of shape " + shape.text() +
                                           " does not broadcast into X of shape " + x.text());
  }
}

struct Input {
  const Value* value = nullptr;
  Shape shape;
  const void* data = nullptr;
};

Input input_at(const Kernel& kernel, const KernelContext* context, std::size_t index) {
  Input input;
  check(ort::call<ort::KernelContext_GetInput>(kernel.api, context, index, &input.value));
  input.shape = shape_of(kernel.api, input.value, kernel.owner);
  input.data = data_of(kernel.api, input.value);
  return input;
}

void* output_at(const Kernel& kernel, KernelContext* context, std::size_t index, const Shape& shape) {
  Value* value = nullptr;
  check(ort::call<ort::KernelContext_GetOutput>(kernel.api, context, index, &shape.dims[0], shape.rank, &value));
  return data_of(kernel.api, value);
}

// A plan divided into blocks of units for onnxruntime's threads.
struct Blocks {
  const Plan* plan;
  std::int64_t count;
};

void run_block(void* data, std::size_t index) {
  const Blocks& blocks = *static_cast<const Blocks*>(data);
  const std::int64_t units = blocks.plan->units();
  const std::int64_t each = units / blocks.count;
  const std::int64_t longer = units % blocks.count;  // this many blocks have one unit more
  const std::int64_t i = static_cast<std::int64_t>(index);
  const std::int64_t begin = i * each + std::min(i, longer);
  blocks.plan->run(begin, begin + each + (i < longer ? 1 : 0));
}

void compute(const Kernel& kernel, KernelContext* context) {
  // Handing a block to another thread costs microseconds; this much data is worth that. The number of threads is not
  // known here, so the number of blocks only has an upper bound.
  constexpr std::int64_t kBlockBytes = 32 * 1024;
  constexpr std::int64_t kMostBlocks = 64;

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
  if (first < 0 || first + axes > params.rank) {
    throw Error(ort::kInvalidArgument, kernel.owner + ": axes " + text_of(kernel.axes.data(), kernel.axes.size()) +
                                           " are outside X of shape " + x.shape.text());
  }
  params.axis_begin = static_cast<std::int32_t>(first);
  params.axis_count = static_cast<std::int32_t>(axes);

  if (kernel.kind == Kind::kAddRmsNorm) {
    const Input residual = input_at(kernel, context, 1);
    if (residual.shape.rank != x.shape.rank ||
        !std::equal(x.shape.dims, x.shape.dims + x.shape.rank, residual.shape.dims)) {
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
  } else {
    const Input scale = input_at(kernel, context, scale_index(kernel.kind));
    params.scale = scale.data;
    broadcast(kernel, "scale", scale.shape, x.shape, params.scale_strides);
    if (kernel.kind == Kind::kGeneralRmsNorm) {
      const Input bias = input_at(kernel, context, 2);
      params.bias = bias.data;
      broadcast(kernel, "bias", bias.shape, x.shape, params.bias_strides);
    }
  }

  params.x = x.data;
  params.y = output_at(kernel, context, 0, x.shape);
  if (kernel.kind == Kind::kAddRmsNorm) params.sum = output_at(kernel, context, 1, x.shape);
  if (x.shape.count() == 0) return;

  Plan plan;
  if (const int code = plan.prepare(params, constant)) {
    throw Error(ort::kInvalidArgument,
                kernel.owner + ": " + rmsnorm_deploy_error_text(code) + " (X has shape " + x.shape.text() + ")");
  }
  const std::int64_t bytes = plan.units() * plan.unit_bytes();
  const std::int64_t blocks = std::min({plan.units(), bytes / kBlockBytes, kMostBlocks});
  if (blocks <= 1) {
    plan.run(0, plan.units());
    return;
  }
  Blocks work = {&plan, blocks};
  check(ort::call<ort::KernelContext_ParallelFor>(kernel.api, static_cast<const KernelContext*>(context), &run_block,
                                                  static_cast<std::size_t>(blocks), static_cast<std::size_t>(0),
                                                  static_cast<void*>(&work)));
}

// ---------------------------------------------------------------------------------------------------------------------
// What onnxruntime calls

const char* get_name(const CustomOp* op) { return name_of(derived(op).kind); }
const char* get_provider(const CustomOp*) { return nullptr; }

std::size_t get_input_count(const CustomOp* op) { return derived(op).kind == Kind::kRmsNorm ? 2 : 3; }
std::size_t get_output_count(const CustomOp* op) { return derived(op).kind == Kind::kAddRmsNorm ? 2 : 1; }
int get_input_type(const CustomOp* op, std::size_t index) {
  return index >= scale_index(derived(op).kind) ? derived(op).scale_type : derived(op).x_type;
}
int get_output_type(const CustomOp* op, std::size_t) { return derived(op).x_type; }
int get_characteristic(const CustomOp*, std::size_t) { return ort::kRequired; }
int get_input_memory(const CustomOp*, std::size_t) { return 0; }  // wherever the provider keeps its tensors
int variadic_none(const CustomOp*) { return 0; }
int start_version(const CustomOp*) { return 1; }
int end_version(const CustomOp*) { return std::numeric_limits<int>::max(); }

Status* create_kernel(const CustomOp* op, const Api* api, const KernelInfo* info, void** result) {
  return guarded(api, [&] { *result = make_kernel(derived(op), api, info).release(); });
}

Status* compute_status(void* data, KernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(data);
  return guarded(kernel.api, [&] { compute(kernel, context); });
}

void destroy_kernel(void* data) { delete static_cast<Kernel*>(data); }

std::atomic<const Api*> inference_api{nullptr};

// Every output has X's shape. Without this onnxruntime would also never reuse an input's memory.
Status* infer_shape(const CustomOp* op, ort::ShapeContext* context) {
  const Api* api = inference_api.load(std::memory_order_acquire);
  return guarded(api, [&] {
    ort::TensorInfo* info = nullptr;  // stays the context's
    check(ort::call<ort::ShapeInferContext_GetInputTypeShape>(api, static_cast<const ort::ShapeContext*>(context),
                                                              static_cast<std::size_t>(0), &info));
    const ort::TensorInfo* known = info;
    std::size_t rank = 0;
    check(ort::call<ort::GetDimensionsCount>(api, known, &rank));
    if (rank == 0) return;  // how onnxruntime shows a shape that it does not know
    std::vector<std::int64_t> dims(rank);
    std::vector<const char*> names(rank);
    check(ort::call<ort::GetDimensions>(api, known, dims.data(), rank));
    check(ort::call<ort::GetSymbolicDimensions>(api, known, names.data(), rank));
    for (std::size_t i = 0; i < rank; ++i) {
      // A dimension with neither size nor name would be handed on as the size -1.
      if (dims[i] < 0 && (!names[i] || !*names[i])) return;
    }
    for (std::size_t i = 0; i < get_output_count(op); ++i) {
      check(ort::call<ort::ShapeInferContext_SetOutputTypeShape>(api, static_cast<const ort::ShapeContext*>(context), i,
                                                                 known));
    }
  });
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
std::size_t no_alias(int**, int**) { return 0; }
void nothing_to_release(int*, int*) {}

constexpr std::int32_t kTypes[][2] = {
    {RMS_NORM_FLOAT32, RMS_NORM_FLOAT32}, {RMS_NORM_FLOAT16, RMS_NORM_FLOAT16}, {RMS_NORM_BFLOAT16, RMS_NORM_BFLOAT16},
    {RMS_NORM_FLOAT64, RMS_NORM_FLOAT64}, {RMS_NORM_FLOAT16, RMS_NORM_FLOAT32}, {RMS_NORM_BFLOAT16, RMS_NORM_FLOAT32},
    {RMS_NORM_FLOAT64, RMS_NORM_FLOAT32},
};
constexpr std::size_t kTypeCount = sizeof kTypes / sizeof kTypes[0];
constexpr Kind kKinds[] = {Kind::kRmsNorm, Kind::kAddRmsNorm, Kind::kGeneralRmsNorm};
constexpr std::size_t kKindCount = sizeof kKinds / sizeof kKinds[0];

struct AllOps {
  Op ops[kKindCount * kTypeCount];

  AllOps() noexcept {
    std::size_t next = 0;
    for (const Kind kind : kKinds) {
      for (const auto& types : kTypes) {
        Op& op = ops[next++];
        op.version = ort::kApiVersion;
        op.create_kernel = nullptr;  // onnxruntime prefers the forms that return a status
        op.compute = nullptr;
        op.get_name = get_name;
        op.get_provider = get_provider;
        op.get_input_type = get_input_type;
        op.get_input_count = get_input_count;
        op.get_output_type = get_output_type;
        op.get_output_count = get_output_count;
        op.destroy_kernel = destroy_kernel;
        op.get_input_characteristic = get_characteristic;
        op.get_output_characteristic = get_characteristic;
        op.get_input_memory = get_input_memory;
        op.variadic_input_min = variadic_none;
        op.variadic_input_same = variadic_none;
        op.variadic_output_min = variadic_none;
        op.variadic_output_same = variadic_none;
        op.create_kernel_status = create_kernel;
        op.compute_status = compute_status;
        op.infer_shape = infer_shape;
        op.start_version = start_version;
        op.end_version = end_version;
        op.may_inplace = kind == Kind::kAddRmsNorm ? both_inplace : first_inplace;
        op.release_inplace = nothing_to_release;
        op.alias = no_alias;
        op.release_alias = nothing_to_release;
        op.kind = kind;
        op.x_type = types[0];
        op.scale_type = types[1];
      }
    }
  }
};

const AllOps& all_ops() noexcept {
  static const AllOps ops;
  return ops;
}

}  // namespace

std::size_t op_count() noexcept { return kKindCount * kTypeCount; }

const CustomOp* op_at(std::size_t index) noexcept { return &all_ops().ops[index]; }

void set_api(const Api* api) noexcept { inference_api.store(api, std::memory_order_release); }

}  // namespace rmsnorm_deploy
