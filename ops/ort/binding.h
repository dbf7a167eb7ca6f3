// What every custom op of this project needs from onnxruntime: errors, tensors, constants, threads, shape inference.
#ifndef RMSNORM_DEPLOY_ORT_BINDING_H_
#define RMSNORM_DEPLOY_ORT_BINDING_H_

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "../contract/check.h"
#include "../cpu/convert.h"
#include "../cpu/plan.h"
#include "abi.h"

namespace rmsnorm_deploy {

// ---------------------------------------------------------------------------------------------------------------------
// Errors: thrown inside, handed over as a status at the edge

struct Error : std::exception {
  Error(int code_, std::string text_) : code(code_), text(std::move(text_)) {}
  int code;
  std::string text;
};

// A status that onnxruntime made and that goes back to it as it is.
struct Passed {
  ort::Status* status;
};

inline void check(ort::Status* status) {
  if (status) throw Passed{status};
}

// Run `body` and turn whatever it throws into a status: no exception may reach onnxruntime.
template <typename Body>
ort::Status* guarded(const ort::Api* api, Body body) noexcept {
  using ort::Status;
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

std::string text_of(const std::int64_t* values, std::size_t count);

// ---------------------------------------------------------------------------------------------------------------------
// Nodes and tensors

// A node of a model, as messages call it.
struct Node {
  const ort::Api* api = nullptr;
  std::string owner;  // operator and name
};

Node node_of(const ort::Api* api, const ort::KernelInfo* info, const char* op);

struct Shape {
  std::int64_t dims[RMS_NORM_MAX_RANK];  // the first `rank` are set
  std::size_t rank = 0;

  std::int64_t count() const {
    std::int64_t result = 1;
    for (std::size_t i = 0; i < rank; ++i) result *= dims[i];
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

// Where to write an output; null where an optional one is absent.
void* output_at(const Node& node, ort::KernelContext* context, std::size_t index, const Shape& shape);

// A scale or bias that is a constant of the model: kept in the arithmetic type, so that a run neither converts it nor
// asks onnxruntime about it.
struct Constant {
  std::unique_ptr<unsigned char[]> data;  // empty where the input is no constant, or is used as it comes
  Shape shape;
};

// The input with an index, of type `from`, rounded to `round_type` and widened to `to`.
Constant constant_input(const Node& node, const ort::KernelInfo* info, std::size_t index, std::int32_t from,
                        std::int32_t round_type, std::int32_t to);

// Strides, in elements, with which `shape` is read along the dimensions of x: 0 where it is broadcast. False where it
// does not broadcast into x, or would enlarge it.
bool broadcast(const Shape& shape, const Shape& x, std::int64_t* strides);

// The same, or an error about `what`.
void broadcast(const Node& node, const char* what, const Shape& shape, const Shape& x, std::int64_t* strides);

// ---------------------------------------------------------------------------------------------------------------------
// Work

// Ranges of units of work that can run at the same time.
struct Work {
  virtual ~Work() = default;
  virtual void run(std::int64_t begin, std::int64_t end) const noexcept = 0;
};

// Run all units on onnxruntime's threads, or on this one where they are too small to be worth handing over. `unit_work`
// is in values of a float32 or 16-bit norm.
void run_parallel(const Node& node, ort::KernelContext* context, const Work& work, std::int64_t units,
                  std::int64_t unit_work);

// Prepare `params` and run it. `already_rounded` as in Plan.
void run_norm(const Node& node, ort::KernelContext* context, const rms_norm_params& params, const Shape& x,
              bool already_rounded);

// ---------------------------------------------------------------------------------------------------------------------
// Ops

// An op with everything that is the same for all: on the CPU, all inputs wherever the provider keeps them, none
// variadic, all required, nothing shared between inputs and outputs, from version 1 on.
ort::CustomOp usual_op() noexcept;

// Remember the interface of the runtime that registers the ops, which shape inference is not handed, and the minor
// number of its version; that is known before the first op is made. `references`: its interface of kReferenceVersion,
// or null.
void set_runtime(const ort::Api* api, const ort::Api* references, int minor) noexcept;
const ort::Api* inference_api() noexcept;
int runtime_minor() noexcept;

// Let the first `count` outputs have the shape of the first input, as far as that is known. The node must have that
// many outputs: onnxruntime does not check.
void infer_same_shape(const ort::Api* api, ort::ShapeContext* context, std::size_t count);

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_BINDING_H_
