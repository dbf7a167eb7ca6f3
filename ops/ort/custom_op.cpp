#include "custom_op.h"

#include <limits>
#include <vector>

#include "errors.h"
#include "runtime.h"

namespace rmsnorm_deploy {

using ort::Api;
using ort::CustomOp;
using ort::KernelContext;
using ort::KernelInfo;
using ort::Status;

namespace {

const Op& derived(const CustomOp* op) { return *static_cast<const Op*>(op); }
const Signature& signature_of(const CustomOp* op) { return *derived(op).signature; }

std::size_t length(const Operand* operands) {
  std::size_t count = 0;
  while (operands[count].role != Role::kNone) ++count;
  return count;
}

int type_of(const Op& op, Role role) {
  switch (role) {
    case Role::kX:
    case Role::kResidual:
    case Role::kSum:
      return op.types.x;
    case Role::kScale:
    case Role::kBias:
      return op.types.scale;
    case Role::kGate:
      return op.types.gate;
    case Role::kY:
      return op.types.y;
    case Role::kQuantised:
    case Role::kZeroPoint:
      return op.types.quantised;
    case Role::kQuantisedScale:
      return op.types.quantised_scale;
    default:
      return RMS_NORM_FLOAT32;
  }
}

const char* get_name(const CustomOp* op) { return signature_of(op).name; }
const char* get_provider(const CustomOp* op) { return derived(op).provider.name; }
std::size_t get_input_count(const CustomOp* op) { return length(signature_of(op).inputs); }
std::size_t get_output_count(const CustomOp* op) { return length(signature_of(op).outputs); }
int get_input_type(const CustomOp* op, std::size_t i) { return type_of(derived(op), signature_of(op).inputs[i].role); }
int get_output_type(const CustomOp* op, std::size_t i) {
  return type_of(derived(op), signature_of(op).outputs[i].role);
}
int get_input_characteristic(const CustomOp* op, std::size_t i) { return signature_of(op).inputs[i].characteristic; }
int get_output_characteristic(const CustomOp* op, std::size_t i) { return signature_of(op).outputs[i].characteristic; }
int get_input_memory(const CustomOp*, std::size_t) { return 0; }  // wherever the provider keeps its tensors
int variadic_none(const CustomOp*) { return 0; }
int start_version(const CustomOp* op) { return signature_of(op).since; }
int end_version(const CustomOp*) { return std::numeric_limits<int>::max(); }
std::size_t nothing_shared(int**, int**) { return 0; }
void nothing_to_release(int*, int*) {}

Status* create_kernel(const CustomOp* op, const Api* api, const KernelInfo* info, void** result) {
  return guarded(api, [&] { *result = signature_of(op).make(derived(op), api, info).release(); });
}

Status* compute(void* data, KernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(data);
  return guarded(kernel.api, [&] { kernel.compute(context); });
}

void destroy_kernel(void* data) { delete static_cast<Kernel*>(data); }

// The input with whose element type an output comes, in every row of the operator's types: X or the scale.
std::size_t type_source(const Signature& signature, Role output) {
  if (output != Role::kY) return 0;
  for (std::size_t i = 0; i < signature.type_count; ++i) {
    if (signature.types[i].y != signature.types[i].x) {
      return static_cast<std::size_t>(position_of(signature.inputs, Role::kScale));
    }
  }
  return 0;
}

int input_type(const Api* api, ort::ShapeContext* context, std::size_t index) {
  ort::TensorInfo* info = nullptr;  // stays the context's
  check(ort::call<ort::ShapeInferContext_GetInputTypeShape>(api, context, index, &info));
  int type = 0;
  check(ort::call<ort::GetTensorElementType>(api, info, &type));
  return type;
}

// Every output of X's shape that a node must have gets that shape, as far as that is known. Without this onnxruntime
// would also never reuse an input's memory. With the shape goes an element type, and `op` is not always the one that
// will run: onnxruntime asks the first of an operator's ops for all of them.
void infer_shapes(const Op& op, const Api* api, ort::ShapeContext* context) {
  ort::TensorInfo* info = nullptr;  // stays the context's
  check(ort::call<ort::ShapeInferContext_GetInputTypeShape>(api, context, 0, &info));
  std::size_t rank = 0;
  check(ort::call<ort::GetDimensionsCount>(api, info, &rank));
  if (rank == 0) return;  // how onnxruntime shows a shape that it does not know
  std::vector<std::int64_t> dims(rank);
  std::vector<const char*> names(rank);
  check(ort::call<ort::GetDimensions>(api, info, dims.data(), rank));
  check(ort::call<ort::GetSymbolicDimensions>(api, info, names.data(), rank));
  for (std::size_t i = 0; i < rank; ++i) {
    // A dimension with neither size nor name would be handed on as the size -1.
    if (dims[i] < 0 && (!names[i] || !*names[i])) return;
  }
  const int x_type = input_type(api, context, 0);
  const Operand* const outputs = op.signature->outputs;
  for (std::size_t i = 0; i < length(outputs); ++i) {
    const Role role = outputs[i].role;
    const bool is_one = role == Role::kQuantisedScale || role == Role::kZeroPoint;
    if (is_one || outputs[i].characteristic != ort::kRequired) continue;
    int type = op.types.quantised;
    if (role != Role::kQuantised) {
      const std::size_t source = type_source(*op.signature, role);
      type = source == 0 ? x_type : input_type(api, context, source);
    } else if (const int zero = position_of(op.signature->inputs, Role::kZeroPoint); zero >= 0) {
      type = input_type(api, context, static_cast<std::size_t>(zero));
    }
    check(ort::call<ort::SetTensorElementType>(api, info, type));  // the context is this call's alone
    check(ort::call<ort::ShapeInferContext_SetOutputTypeShape>(api, context, i, info));
  }
}

Status* infer_shapes_status(const CustomOp* op, ort::ShapeContext* context) {
  const Api* const api = runtime_api();
  return guarded(api, [&] { infer_shapes(derived(op), api, context); });
}

bool all_required(const Operand* operands) {
  for (; operands->role != Role::kNone; ++operands) {
    if (operands->characteristic != ort::kRequired) return false;
  }
  return true;
}

// A null member is one that onnxruntime does not call: it prefers the forms that return a status.
CustomOp with_functions() {
  CustomOp op = {};
  op.version = ort::kApiVersion;
  op.get_name = get_name;
  op.get_provider = get_provider;
  op.get_input_type = get_input_type;
  op.get_input_count = get_input_count;
  op.get_output_type = get_output_type;
  op.get_output_count = get_output_count;
  op.destroy_kernel = destroy_kernel;
  op.get_input_characteristic = get_input_characteristic;
  op.get_output_characteristic = get_output_characteristic;
  op.get_input_memory = get_input_memory;
  op.variadic_input_min = variadic_none;
  op.variadic_input_same = variadic_none;
  op.variadic_output_min = variadic_none;
  op.variadic_output_same = variadic_none;
  op.create_kernel_status = create_kernel;
  op.compute_status = compute;
  op.start_version = start_version;
  op.end_version = end_version;
  op.may_inplace = nothing_shared;
  op.release_inplace = nothing_to_release;
  op.alias = nothing_shared;
  op.release_alias = nothing_to_release;
  return op;
}

}  // namespace

Op::Op(const Signature& signature_, const Types& types_, const Provider& provider_) noexcept
    : CustomOp(with_functions()), signature(&signature_), types(types_), provider(provider_) {
  // Before 1.24, shape inference of a custom op ends the process where an optional input is named "".
  if (all_required(signature->inputs) || runtime_minor() >= 24) infer_shape = infer_shapes_status;
  if (types.x == types.y) may_inplace = signature->may_inplace;
}

}  // namespace rmsnorm_deploy
