#include "binding.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

namespace rmsnorm_deploy {

using ort::Api;
using ort::CustomOp;
using ort::KernelContext;
using ort::KernelInfo;
using ort::Status;
using ort::Value;

std::string text_of(const std::int64_t* values, std::size_t count) {
  std::string text = "[";
  for (std::size_t i = 0; i < count; ++i) text += (i ? "," : "") + std::to_string(values[i]);
  return text + "]";
}

namespace {

std::atomic<const Api*> remembered_api{nullptr};
std::atomic<const Api*> remembered_references{nullptr};  // null where the runtime is older than kReferenceVersion
std::atomic<int> remembered_minor{0};

[[noreturn]] void too_many_dimensions(const Node& node, std::size_t rank) {
  throw Error(ort::kInvalidArgument, node.owner + ": a tensor has " + std::to_string(rank) + " dimensions; at most " +
                                         std::to_string(RMS_NORM_MAX_RANK) + " are supported");
}

// What a small norm takes is mostly this: the older way makes and destroys an object.
Shape shape_of(const Node& node, const Value* value) {
  if (const Api* api = remembered_references.load(std::memory_order_acquire)) {
    Shape shape;
    int type = 0;
    const std::int64_t* dims = nullptr;
    check(ort::call<ort::GetTensorElementTypeAndShapeDataReference>(api, value, &type, &dims, &shape.rank));
    if (shape.rank > RMS_NORM_MAX_RANK) too_many_dimensions(node, shape.rank);
    for (std::size_t i = 0; i < shape.rank; ++i) shape.dims[i] = dims[i];
    return shape;
  }
  ort::TensorInfo* info = nullptr;
  check(ort::call<ort::GetTensorTypeAndShape>(node.api, value, &info));
  Shape shape;
  Status* status = ort::call<ort::GetDimensionsCount>(node.api, static_cast<const ort::TensorInfo*>(info), &shape.rank);
  const bool fits = !status && shape.rank <= RMS_NORM_MAX_RANK;
  if (fits) {
    status =
        ort::call<ort::GetDimensions>(node.api, static_cast<const ort::TensorInfo*>(info), &shape.dims[0], shape.rank);
  }
  ort::call<ort::ReleaseTensorTypeAndShapeInfo, void>(node.api, info);
  check(status);
  if (!fits) too_many_dimensions(node, shape.rank);
  return shape;
}

void* data_of(const Node& node, const Value* value) {
  void* data = nullptr;
  check(ort::call<ort::GetTensorMutableData>(node.api, const_cast<Value*>(value), &data));
  return data;
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

}  // namespace

Node node_of(const Api* api, const KernelInfo* info, const char* op) {
  const std::string name = node_name(api, info);
  return {api, op + (name.empty() ? "" : " '" + name + "'")};
}

bool Shape::operator==(const Shape& other) const {
  return rank == other.rank && std::equal(dims, dims + rank, other.dims);
}

Input input_at(const Node& node, const KernelContext* context, std::size_t index) {
  Input input;
  check(ort::call<ort::KernelContext_GetInput>(node.api, context, index, &input.value));
  if (!input.value) return input;
  input.shape = shape_of(node, input.value);
  input.data = data_of(node, input.value);
  return input;
}

void* output_at(const Node& node, KernelContext* context, std::size_t index, const Shape& shape) {
  Value* value = nullptr;
  check(ort::call<ort::KernelContext_GetOutput>(node.api, context, index, &shape.dims[0], shape.rank, &value));
  return value ? data_of(node, value) : nullptr;
}

Constant constant_input(const Node& node, const KernelInfo* info, std::size_t index, std::int32_t from,
                        std::int32_t round_type, std::int32_t to) {
  constexpr std::int64_t kMostCopied = 1 << 16;  // a larger one is copied only where it has to be converted anyway
  Constant constant;
  int is_constant = 0;
  const Value* value = nullptr;
  check(ort::call<ort::KernelInfoGetConstantInput_tensor>(node.api, info, index, &is_constant, &value));
  if (!is_constant || !value) return constant;
  const bool as_it_is = from == to && (round_type == to || round_type == RMS_NORM_FLOAT64);
  constant.shape = shape_of(node, value);
  const std::int64_t count = constant.shape.count();
  if (as_it_is && count > kMostCopied) return constant;
  constant.data.reset(new unsigned char[static_cast<std::size_t>(std::max<std::int64_t>(count, 1) * element_size(to))]);
  convert(data_of(node, value), from, count, round_type, to, constant.data.get());
  return constant;
}

bool broadcast(const Shape& shape, const Shape& x, std::int64_t* strides) {
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
  return fits;
}

void broadcast(const Node& node, const char* what, const Shape& shape, const Shape& x, std::int64_t* strides) {
  if (!broadcast(shape, x, strides)) {
    throw Error(ort::kInvalidArgument, node.owner + ": " + what + " of shape " + shape.text() +
                                           " does not broadcast into X of shape " + x.text());
  }
}

namespace {

// Work divided into blocks of units for onnxruntime's threads.
struct Blocks {
  const Work* work;
  std::int64_t units;
  std::int64_t count;
};

void run_block(void* data, std::size_t index) {
  const Blocks& blocks = *static_cast<const Blocks*>(data);
  const std::int64_t each = blocks.units / blocks.count;
  const std::int64_t longer = blocks.units % blocks.count;  // this many blocks have one unit more
  const std::int64_t i = static_cast<std::int64_t>(index);
  const std::int64_t begin = i * each + std::min(i, longer);
  blocks.work->run(begin, begin + each + (i < longer ? 1 : 0));
}

struct PlanWork final : Work {
  Plan plan;
  void run(std::int64_t begin, std::int64_t end) const noexcept override { plan.run(begin, end); }
};

}  // namespace

void run_parallel(const Node& node, KernelContext* context, const Work& work, std::int64_t units,
                  std::int64_t unit_work) {
  // Handing work to another thread costs three or four microseconds where that thread has gone to sleep, and it often
  // has. A norm takes about 70 ps a value whatever its type (10 GB/s of 16-bit values and 20 of floats are both that),
  // so below twice that cost more threads are a bet. The number of threads is not known here: the number of blocks only
  // has an upper bound.
  constexpr std::int64_t kLeastWork = 96 * 1024;
  constexpr std::int64_t kBlockWork = 16 * 1024;
  constexpr std::int64_t kMostBlocks = 64;
  const std::int64_t work_all = units * unit_work;
  const std::int64_t blocks = work_all < kLeastWork ? 1 : std::min({units, work_all / kBlockWork, kMostBlocks});
  if (blocks <= 1) {
    work.run(0, units);
    return;
  }
  Blocks divided = {&work, units, blocks};
  check(ort::call<ort::KernelContext_ParallelFor>(node.api, static_cast<const KernelContext*>(context), &run_block,
                                                  static_cast<std::size_t>(blocks), static_cast<std::size_t>(0),
                                                  static_cast<void*>(&divided)));
}

void run_norm(const Node& node, KernelContext* context, const rms_norm_params& params, const Shape& x,
              bool already_rounded) {
  PlanWork work;
  if (const int code = work.plan.prepare(params, already_rounded)) {
    throw Error(ort::kInvalidArgument,
                node.owner + ": " + rmsnorm_deploy_error_text(code) + " (X has shape " + x.text() + ")");
  }
  run_parallel(node, context, work, work.plan.units(), work.plan.unit_work());
}

namespace {

const char* get_provider(const CustomOp*) { return nullptr; }
int required(const CustomOp*, std::size_t) { return ort::kRequired; }
int get_input_memory(const CustomOp*, std::size_t) { return 0; }  // wherever the provider keeps its tensors
int variadic_none(const CustomOp*) { return 0; }
int first_version(const CustomOp*) { return 1; }
int last_version(const CustomOp*) { return std::numeric_limits<int>::max(); }
std::size_t nothing_shared(int**, int**) { return 0; }
void nothing_to_release(int*, int*) {}

}  // namespace

CustomOp usual_op() noexcept {
  CustomOp op = {};  // onnxruntime prefers the forms that return a status, so the others stay null
  op.version = ort::kApiVersion;
  op.get_provider = get_provider;
  op.get_input_characteristic = required;
  op.get_output_characteristic = required;
  op.get_input_memory = get_input_memory;
  op.variadic_input_min = variadic_none;
  op.variadic_input_same = variadic_none;
  op.variadic_output_min = variadic_none;
  op.variadic_output_same = variadic_none;
  op.start_version = first_version;
  op.end_version = last_version;
  op.may_inplace = nothing_shared;
  op.release_inplace = nothing_to_release;
  op.alias = nothing_shared;
  op.release_alias = nothing_to_release;
  return op;
}

void set_runtime(const Api* api, const Api* references, int minor) noexcept {
  remembered_references.store(references, std::memory_order_release);
  remembered_minor.store(minor, std::memory_order_release);
  remembered_api.store(api, std::memory_order_release);
}
const Api* inference_api() noexcept { return remembered_api.load(std::memory_order_acquire); }
int runtime_minor() noexcept { return remembered_minor.load(std::memory_order_acquire); }

void infer_same_shape(const Api* api, ort::ShapeContext* context, std::size_t count) {
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
  for (std::size_t i = 0; i < count; ++i) {
    check(ort::call<ort::ShapeInferContext_SetOutputTypeShape>(api, static_cast<const ort::ShapeContext*>(context), i,
                                                               known));
  }
}

}  // namespace rmsnorm_deploy
