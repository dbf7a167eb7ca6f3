// A custom op of this project: a row of a table says what it is, and everything that onnxruntime asks follows from
// that.
#ifndef RMSNORM_DEPLOY_ORT_CUSTOM_OP_H_
#define RMSNORM_DEPLOY_ORT_CUSTOM_OP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "abi.h"
#include "tensors.h"

namespace rmsnorm_deploy {

// What an input or output is to the norm. kNone ends a list of them.
enum class Role {
  kNone,
  kX,
  kResidual,
  kGate,
  kScale,
  kBias,
  kY,
  kSum,
  kMean,
  kInverseRms,
  kQuantised,
  kQuantisedScale,
  kZeroPoint
};

struct Operand {
  Role role;
  ort::Characteristic characteristic = ort::kRequired;
};

// Element types: of x, residual and sum; of scale and bias; of y; of the gate, where there is one; of what
// QuantizeLinear makes of y, and its zero point; of its scale. Mean and inverse rms are float32.
struct Types {
  std::int32_t x;
  std::int32_t scale;
  std::int32_t y;
  std::int32_t gate = 0;
  std::int32_t quantised = 0;
  std::int32_t quantised_scale = 0;
};
constexpr Types all_of(std::int32_t type) { return {type, type, type, type}; }

// The same with a quantised output.
constexpr Types quantised(Types types, std::int32_t to, std::int32_t by) {
  types.quantised = to;
  types.quantised_scale = by;
  return types;
}

// One node of a session. Nothing in it changes after its creation, so that a session can run on several threads.
struct Kernel : Node {
  explicit Kernel(Node node) : Node(std::move(node)) {}
  virtual ~Kernel() = default;
  virtual void compute(ort::KernelContext* context) const = 0;
};

struct Op;
constexpr std::size_t kMostOperands = 6;  // with the one that ends the list

// One operator.
struct Signature {
  const char* name;
  Operand inputs[kMostOperands];
  Operand outputs[kMostOperands];
  const Types* types;  // those with which it is registered
  std::size_t type_count;
  // Which outputs may lie where which inputs were, where x and y have one type; see in_place.
  std::size_t (*may_inplace)(int** inputs, int** outputs);
  std::unique_ptr<Kernel> (*make)(const Op& op, const ort::Api* api, const ort::KernelInfo* info);
  int since = 1;       // version of the domain
  bool on_gpu = true;  // whether there is a kernel for GPUs; without one, onnxruntime uses the CPU's
};

// The position of a role in a list of operands, or -1.
constexpr int position_of(const Operand* operands, Role role) {
  for (int i = 0; operands[i].role != Role::kNone; ++i) {
    if (operands[i].role == role) return i;
  }
  return -1;
}

// Input i may lie where output kOutputs[i] does, for the first inputs: rows are read before they are written.
template <int... kOutputs>
std::size_t in_place(int** inputs, int** outputs) {
  static int from[] = {0, 1};
  static int to[] = {kOutputs...};
  static_assert(sizeof...(kOutputs) <= sizeof from / sizeof from[0], "more pairs than inputs");
  *inputs = from;
  *outputs = to;
  return sizeof...(kOutputs);
}

// An execution provider of onnxruntime.
struct Provider {
  const char* name;  // null is the CPU
  bool on_gpu;       // its tensors are on an NVIDIA GPU
};

// An operator with one combination of types, for one provider.
struct Op : ort::CustomOp {
  Op(const Signature& signature_, const Types& types_, const Provider& provider_) noexcept;

  const Signature* signature;
  Types types;
  Provider provider;
};

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_CUSTOM_OP_H_
