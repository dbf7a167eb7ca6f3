// What a node is called, its inputs, outputs and constants, and how one shape lies along another.
#ifndef RMSNORM_DEPLOY_ORT_TENSORS_H_
#define RMSNORM_DEPLOY_ORT_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "../include/rms_norm.h"
#include "abi.h"

namespace rmsnorm_deploy {

std::string text_of(const std::int64_t* values, std::size_t count);

// A node of a model, as messages call it.
struct Node {
  const ort::Api* api = nullptr;
  std::string owner;  // operator and name
};

Node node_of(const ort::Api* api, const ort::KernelInfo* info, const char* op);

// A product of dimensions. Part of an empty tensor's shape, such as [0,2^62,4], may have more than any number holds; it
// wraps, since such a product counts nothing.
inline std::int64_t product(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

struct Shape {
  std::int64_t dims[RMS_NORM_MAX_RANK];  // the first `rank` are set
  std::size_t rank = 0;

  std::int64_t count() const {
    std::int64_t result = 1;
    for (std::size_t i = 0; i < rank; ++i) result = product(result, dims[i]);
    return result;
  }
  bool operator==(const Shape& other) const;
  std::string text() const { return text_of(dims, rank); }
};

struct Input {
  const ort::Value* value = nullptr;
  Shape shape;
  const void* data = nullptr;  // null where an optional input is absent
};

Input input_at(const Node& node, const ort::KernelContext* context, std::size_t index);

// Where a residual of X's shape is; an error where it has another.
const void* residual_input(const Node& node, const ort::KernelContext* context, int index, const Shape& x);

// Where to write an output; null where an optional one is absent.
void* output_at(const Node& node, ort::KernelContext* context, std::size_t index, const Shape& shape);

// A scale or bias that is a constant of the model: kept in the arithmetic type, so that a run neither converts it nor
// asks onnxruntime about it.
struct Constant {
  std::unique_ptr<unsigned char[]> data;  // empty where the input is not a constant, or is used as it comes
  Shape shape;
};

// The input with an index, of type `from`, rounded to `round_type` and widened to `to`.
Constant constant_input(const Node& node, const ort::KernelInfo* info, std::size_t index, std::int32_t from,
                        std::int32_t round_type, std::int32_t to);

// Whether the input with an index is a constant of one value, of so many bytes, which goes to `to`.
bool constant_value(const Node& node, const ort::KernelInfo* info, std::size_t index, std::size_t bytes, void* to);

// Strides, in elements, with which `shape` is read along the dimensions of x: 0 where it is broadcast. False where it
// does not broadcast into x, or would enlarge it.
bool broadcast(const Shape& shape, const Shape& x, std::int64_t* strides);

// The same, or an error about `what`.
void broadcast(const Node& node, const char* what, const Shape& shape, const Shape& x, std::int64_t* strides);

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_TENSORS_H_
