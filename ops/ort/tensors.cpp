#include "tensors.h"

#include <algorithm>
#include <cstring>

#include "../contract/check.h"
#include "../cpu/convert.h"
#include "errors.h"
#include "runtime.h"

namespace rmsnorm_deploy {

using ort::Api;
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

[[noreturn]] void too_many_dimensions(const Node& node, std::size_t rank) {
  throw Error(ort::kInvalidArgument, node.owner + ": a tensor has " + std::to_string(rank) + " dimensions; at most " +
                                         std::to_string(RMS_NORM_MAX_RANK) + " are supported");
}

// What a small norm takes is mostly this: the older way makes and destroys an object.
Shape shape_of(const Node& node, const Value* value) {
  if (const Api* api = reference_api()) {
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
  Status* status = ort::call<ort::GetDimensionsCount>(node.api, info, &shape.rank);
  const bool fits = !status && shape.rank <= RMS_NORM_MAX_RANK;
  if (fits) {
    status = ort::call<ort::GetDimensions>(node.api, info, &shape.dims[0], shape.rank);
  }
  ort::call<ort::ReleaseTensorTypeAndShapeInfo>(node.api, info);
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
  Status* status = ort::call<ort::KernelInfo_GetNodeName>(api, info, nullptr, &size);
  std::string name(size, '\0');
  if (!status && size) status = ort::call<ort::KernelInfo_GetNodeName>(api, info, &name[0], &size);
  if (status) {  // a message without the name is better than none
    ort::call<ort::ReleaseStatus>(api, status);
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

const void* residual_input(const Node& node, const KernelContext* context, int index, const Shape& x) {
  const Input residual = input_at(node, context, static_cast<std::size_t>(index));
  if (!(residual.shape == x)) {
    throw Error(ort::kInvalidArgument,
                node.owner + ": residual of shape " + residual.shape.text() + " must have the shape of X, " + x.text());
  }
  return residual.data;
}

void* output_at(const Node& node, KernelContext* context, std::size_t index, const Shape& shape) {
  Value* value = nullptr;
  check(ort::call<ort::KernelContext_GetOutput>(node.api, context, index, &shape.dims[0], shape.rank, &value));
  return value ? data_of(node, value) : nullptr;
}

namespace {

// Null where the input is no constant.
const Value* constant_at(const Node& node, const KernelInfo* info, std::size_t index) {
  int is_constant = 0;
  const Value* value = nullptr;
  check(ort::call<ort::KernelInfoGetConstantInput_tensor>(node.api, info, index, &is_constant, &value));
  return is_constant ? value : nullptr;
}

}  // namespace

bool constant_value(const Node& node, const KernelInfo* info, std::size_t index, std::size_t bytes, void* to) {
  const Value* const value = constant_at(node, info, index);
  if (!value || shape_of(node, value).count() != 1) return false;
  std::memcpy(to, data_of(node, value), bytes);
  return true;
}

Constant constant_input(const Node& node, const KernelInfo* info, std::size_t index, std::int32_t from,
                        std::int32_t round_type, std::int32_t to) {
  constexpr std::int64_t kMostCopied = 1 << 16;  // a larger one is copied only where it has to be converted anyway
  Constant constant;
  const Value* const value = constant_at(node, info, index);
  if (!value) return constant;
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
    stride = product(stride, dim);
  }
  return fits;
}

void broadcast(const Node& node, const char* what, const Shape& shape, const Shape& x, std::int64_t* strides) {
  if (!broadcast(shape, x, strides)) {
    throw Error(ort::kInvalidArgument, node.owner + ": " + what + " of shape " + shape.text() +
                                           " does not broadcast into X of shape " + x.text());
  }
}

}  // namespace rmsnorm_deploy
