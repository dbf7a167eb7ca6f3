// Random and hostile nodes for the binding to onnxruntime of either library, each compared with the formula in float64.
// This file plays onnxruntime: registration, kernels, shape inference and runs, with tensors of exactly their size.
//
//   bindings LIBRARY SEED FIRST COUNT THREADS     0 where every node is right; an odd seed plays onnxruntime 1.24, an
//   even one 1.20
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "floats.h"
#include "include/rms_norm.h"
#include "ort/abi.h"

namespace rmsnorm_deploy {
namespace ort {

struct Status {
  int code;
  std::string text;
};
struct Value {
  std::vector<std::int64_t> shape;
  int type;
  char* data = nullptr;
  void* block = nullptr;
  ~Value() { std::free(block); }
};
struct TensorInfo {
  std::vector<std::int64_t> shape;
  int type;
};
struct CustomOpDomain {
  std::string name;
  std::vector<const CustomOp*> ops;
};
struct SessionOptions {
  std::vector<const CustomOpDomain*> domains;
  std::map<std::string, std::string> entries;
};
struct Attribute {
  enum { kFloat, kInteger, kFloats, kIntegers, kText } kind;
  float number = 0;
  std::int64_t integer = 0;
  std::vector<float> numbers = {};
  std::vector<std::int64_t> integers = {};
};
struct KernelInfo {
  std::map<std::string, Attribute> attributes;
  std::map<std::size_t, const Value*> constants;
  std::size_t inputs;
};
struct KernelContext {
  const CustomOp* op;
  std::vector<const Value*> inputs;
  std::vector<std::unique_ptr<Value>> outputs;
  std::vector<bool> wanted;
  std::vector<int> on;  // the input whose memory an output takes, or -1
  bool threads;
};
struct ShapeContext {
  mutable std::vector<TensorInfo> inputs;
  mutable std::map<std::size_t, TensorInfo> outputs;
};

}  // namespace ort
}  // namespace rmsnorm_deploy

using namespace rmsnorm_deploy::ort;

namespace {

constexpr std::int64_t kTooMany = 1 << 23;
std::atomic<long> statuses{0};

Status* create_status(int code, const char* text) {
  ++statuses;
  return new Status{code, text};
}
void release_status(Status* status) {
  if (status) --statuses;
  delete status;
}
Status* missing() { return create_status(kFail, "there is no such attribute"); }

// The number of elements; -1 for a shape that no tensor has.
std::int64_t count_of(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(count, dim, &count)) return -1;
  }
  return count;
}

void allocate(Value& value, std::size_t shift) {
  const std::size_t item = static_cast<std::size_t>(type_of(value.type).bytes);
  const std::size_t bytes = static_cast<std::size_t>(count_of(value.shape)) * item;
  value.block = std::malloc(bytes + shift * item + (bytes + shift == 0));
  value.data = static_cast<char*>(value.block) + shift * item;
}

Status* create_domain(const char* name, CustomOpDomain** domain) {
  *domain = new CustomOpDomain{name, {}};
  return nullptr;
}
Status* add_op(CustomOpDomain* domain, const CustomOp* op) {
  domain->ops.push_back(op);
  return nullptr;
}
Status* add_domain(SessionOptions* options, const CustomOpDomain* domain) {
  options->domains.push_back(domain);
  return nullptr;
}
Status* has_entry(const SessionOptions* options, const char* key, int* has) {
  *has = options->entries.count(key) != 0;
  return nullptr;
}
Status* get_entry(const SessionOptions* options, const char* key, char* value, std::size_t* size) {
  const auto found = options->entries.find(key);
  if (found == options->entries.end()) return missing();
  const std::size_t wanted = found->second.size() + 1;
  const std::size_t room = *size;
  *size = wanted;
  if (!value) return nullptr;
  if (room < wanted) return create_status(kInvalidArgument, "too little room");
  std::memcpy(value, found->second.c_str(), wanted);
  return nullptr;
}
Status* add_entry(SessionOptions* options, const char* key, const char* value) {
  options->entries[key] = value;
  return nullptr;
}
Status* node_name(const KernelInfo*, char* name, std::size_t* size) {
  static const char kName[] = "node";
  *size = sizeof kName;
  if (name) std::memcpy(name, kName, sizeof kName);
  return nullptr;
}
const Attribute* attribute(const KernelInfo* info, const char* name, int kind) {
  const auto found = info->attributes.find(name);
  return found == info->attributes.end() || found->second.kind != kind ? nullptr : &found->second;
}
Status* float_attribute(const KernelInfo* info, const char* name, float* value) {
  const Attribute* const a = attribute(info, name, Attribute::kFloat);
  if (!a) return missing();
  *value = a->number;
  return nullptr;
}
Status* integer_attribute(const KernelInfo* info, const char* name, std::int64_t* value) {
  const Attribute* const a = attribute(info, name, Attribute::kInteger);
  if (!a) return missing();
  *value = a->integer;
  return nullptr;
}
Status* text_attribute(const KernelInfo* info, const char* name, char* text, std::size_t* size) {
  if (!attribute(info, name, Attribute::kText)) return missing();
  *size = 2;
  if (text) std::memcpy(text, "x", 2);
  return nullptr;
}
Status* floats_attribute(const KernelInfo* info, const char* name, float* values, std::size_t* count) {
  const Attribute* const a = attribute(info, name, Attribute::kFloats);
  if (!a) return missing();
  *count = a->numbers.size();
  if (values) std::copy(a->numbers.begin(), a->numbers.end(), values);
  return nullptr;
}
Status* integers_attribute(const KernelInfo* info, const char* name, std::int64_t* values, std::size_t* count) {
  const Attribute* const a = attribute(info, name, Attribute::kIntegers);
  if (!a) return missing();
  *count = a->integers.size();
  if (values) std::copy(a->integers.begin(), a->integers.end(), values);
  return nullptr;
}
Status* input_count(const KernelInfo* info, std::size_t* count) {
  *count = info->inputs;
  return nullptr;
}
Status* constant_input(const KernelInfo* info, std::size_t index, int* is_constant, const Value** value) {
  const auto found = info->constants.find(index);
  *is_constant = found != info->constants.end();
  *value = *is_constant ? found->second : nullptr;
  return nullptr;
}
Status* input(const KernelContext* context, std::size_t index, const Value** value) {
  *value = index < context->inputs.size() ? context->inputs[index] : nullptr;
  return nullptr;
}
Status* output(KernelContext* context, std::size_t index, const std::int64_t* dims, std::size_t rank, Value** value) {
  *value = nullptr;
  if (index >= context->wanted.size() || !context->wanted[index]) return nullptr;
  std::unique_ptr<Value> made(new Value);
  made->shape.assign(dims, dims + rank);
  made->type = context->op->get_output_type(context->op, index);
  const std::int64_t count = count_of(made->shape);
  if (count < 0 || count > kTooMany) return create_status(kFail, "an output is too large");
  const int on = context->on[index];
  if (on >= 0) {
    made->data = context->inputs[static_cast<std::size_t>(on)]->data;
  } else {
    allocate(*made, index % 3);
  }
  *value = made.get();
  context->outputs[index] = std::move(made);
  return nullptr;
}
Status* type_and_shape(const Value* value, TensorInfo** info) {
  *info = new TensorInfo{value->shape, value->type};
  return nullptr;
}
Status* shape_by_reference(const Value* value, int* type, const std::int64_t** dims, std::size_t* rank) {
  *type = value->type;
  *dims = value->shape.data();
  *rank = value->shape.size();
  return nullptr;
}
Status* rank_of(const TensorInfo* info, std::size_t* rank) {
  *rank = info->shape.size();
  return nullptr;
}
Status* dimensions(const TensorInfo* info, std::int64_t* dims, std::size_t rank) {
  std::copy_n(info->shape.begin(), rank, dims);
  return nullptr;
}
Status* symbols(const TensorInfo* info, const char** names, std::size_t rank) {
  for (std::size_t i = 0; i < rank; ++i) names[i] = info->shape[i] == -1 ? "" : info->shape[i] == -2 ? nullptr : "n";
  return nullptr;
}
void release_info(TensorInfo* info) { delete info; }
Status* data_of(Value* value, void** data) {
  *data = value->data;
  return nullptr;
}
Status* parallel_for(const KernelContext* context, void (*work)(void*, std::size_t), std::size_t count, std::size_t,
                     void* data) {
  const std::size_t step = context->threads ? 2 : 1;
  const auto part = [=](std::size_t from) {
    for (std::size_t i = from; i < count; i += step) work(data, i);
  };
  std::thread other;
  if (step == 2) other = std::thread(part, 1);
  part(0);
  if (other.joinable()) other.join();
  return nullptr;
}
Status* known_shape(const ShapeContext* context, std::size_t index, TensorInfo** info) {
  if (index >= context->inputs.size()) return create_status(kFail, "there is no such input");
  *info = &context->inputs[index];
  return nullptr;
}
Status* element_type(const TensorInfo* info, int* type) {
  *type = info->type;
  return nullptr;
}
Status* set_type(TensorInfo* info, int type) {
  info->type = type;
  return nullptr;
}
Status* inferred_shape(const ShapeContext* context, std::size_t index, const TensorInfo* info) {
  context->outputs[index] = *info;
  return nullptr;
}

void* table[420];
const char* version_text = "1.20.0";
const Api* get_api(std::uint32_t) { return reinterpret_cast<const Api*>(table); }
const char* version() { return version_text; }

template <Slot kSlot>
void set(typename Function<kSlot>::Type function) {
  table[kSlot] = reinterpret_cast<void*>(function);
}
void fill_table() {
  set<CreateStatus>(create_status);
  set<ReleaseStatus>(release_status);
  set<CreateCustomOpDomain>(create_domain);
  set<CustomOpDomain_Add>(add_op);
  table[AddCustomOpDomain] = reinterpret_cast<void*>(add_domain);
  set<HasSessionConfigEntry>(has_entry);
  set<GetSessionConfigEntry>(get_entry);
  set<AddSessionConfigEntry>(add_entry);
  set<KernelInfo_GetNodeName>(node_name);
  set<KernelInfoGetAttribute_float>(float_attribute);
  set<KernelInfoGetAttribute_int64>(integer_attribute);
  set<KernelInfoGetAttribute_string>(text_attribute);
  set<KernelInfoGetAttributeArray_float>(floats_attribute);
  set<KernelInfoGetAttributeArray_int64>(integers_attribute);
  set<KernelInfo_GetInputCount>(input_count);
  set<KernelInfoGetConstantInput_tensor>(constant_input);
  set<KernelContext_GetInput>(input);
  set<KernelContext_GetOutput>(output);
  set<GetTensorTypeAndShape>(type_and_shape);
  set<GetTensorElementTypeAndShapeDataReference>(shape_by_reference);
  set<GetDimensionsCount>(rank_of);
  set<GetDimensions>(dimensions);
  set<GetSymbolicDimensions>(symbols);
  set<ReleaseTensorTypeAndShapeInfo>(release_info);
  set<GetTensorMutableData>(data_of);
  set<KernelContext_ParallelFor>(parallel_for);
  set<ShapeInferContext_GetInputTypeShape>(known_shape);
  set<GetTensorElementType>(element_type);
  set<SetTensorElementType>(set_type);
  set<ShapeInferContext_SetOutputTypeShape>(inferred_shape);
}

// ---- a node ---------------------------------------------------------------------------------------------------------

using Register = Status* (*)(SessionOptions*, const ApiBase*);
const Api* kernel_api = nullptr;  // as a library that stands before the real one may replace it
std::vector<const CustomOp*> all_ops;
std::atomic<long> compared{0}, refused{0}, taken{0};

std::unique_ptr<Value> tensor(Random& r, std::vector<std::int64_t> shape, int type, double around) {
  std::unique_ptr<Value> value(new Value);
  value->shape = std::move(shape);
  value->type = type;
  allocate(*value, chance(r, 0.5) ? 0 : below(r, 16));
  const std::int64_t count = count_of(value->shape);
  for (std::int64_t i = 0; i < count; ++i)
    store(value->data, i, type, around + 4 * (static_cast<double>(r() >> 11) * 0x1p-53 - 0.5));
  return value;
}

Attribute of(float value) {
  Attribute a{Attribute::kFloat};
  a.number = value;
  return a;
}
Attribute of(std::int64_t value) {
  Attribute a{Attribute::kInteger};
  a.integer = value;
  return a;
}
Attribute of(std::vector<std::int64_t> values) {
  Attribute a{Attribute::kIntegers};
  a.integers = std::move(values);
  return a;
}

// What a status says, which is then gone; a fault where it says nothing.
bool spoke(Status* status) {
  const bool said = status->code != 0 && !status->text.empty();
  release_status(status);
  return said;
}

// Shapes that a session may state, for the inference of shapes.
std::string infer(Random& r, const CustomOp* op) {
  if (!op->infer_shape) return "";
  ShapeContext context;
  const std::size_t inputs = chance(r, 0.1) ? below(r, 5) : op->get_input_count(op);
  for (std::size_t i = 0; i < inputs; ++i) {
    TensorInfo info{std::vector<std::int64_t>(below(r, 18)), any_of(r, {0, 1, 10, 11, 16, 99})};
    for (std::int64_t& dim : info.shape) dim = any_of<std::int64_t>(r, {-1, -2, -3, 0, 1, 8, INT64_MAX, INT64_MIN});
    context.inputs.push_back(info);
  }
  const std::vector<std::int64_t> shape = inputs ? context.inputs[0].shape : std::vector<std::int64_t>();
  if (Status* const status = op->infer_shape(op, &context)) {
    if (!spoke(status)) return "shape inference refuses without a text";
    return "";
  }
  for (const auto& output : context.outputs) {
    if (output.second.shape != shape) return "another shape is inferred";
  }
  return "";
}

std::string one(std::uint64_t seed, long n) {
  Random r(seed * 1000003 + static_cast<std::uint64_t>(n));
  const CustomOp* const op = all_ops[below(r, all_ops.size())];
  const std::string wrong = infer(r, op);
  if (!wrong.empty()) return wrong;
  const std::string name = op->get_name(op);
  const bool skip = name == "SkipSimplifiedLayerNormalization";
  const bool add = skip || name == "AddRMSNorm";
  const bool ours = name == "RMSNorm" || name == "AddRMSNorm" || name == "GeneralRMSNorm";
  const bool general = name == "GeneralRMSNorm";
  const int x_type = op->get_input_type(op, 0);
  const std::size_t scale_at = add ? 2 : 1;
  const int scale_type = op->get_input_type(op, scale_at);
  const int hostile = chance(r, 0.5) ? 1 + static_cast<int>(below(r, 11)) : 0;
  bool must_refuse = false;

  std::size_t rank = skip ? 2 + below(r, 2) : chance(r, 0.05) ? 16 : 1 + below(r, 4);
  if (hostile == 4) {
    rank = skip ? any_of<std::size_t>(r, {0, 1, 4, 16, 17}) : chance(r, 0.5) ? 0 : 17;
    must_refuse = true;
  }
  std::vector<std::int64_t> shape(rank);
  static const std::int64_t kSizes[] = {1, 2, 3, 7, 8, 15, 16, 17, 33, 64, 65, 127, 129, 300};
  for (std::size_t i = 0; i < rank; ++i)
    shape[i] = rank > 4        ? 1 + static_cast<std::int64_t>(below(r, 2)) / (i > 6 ? 2 : 1)
               : i + 1 == rank ? any_of(r, kSizes)
                               : 1 + static_cast<std::int64_t>(below(r, 5));
  if (rank >= 2 && rank <= 4 && chance(r, 0.02)) shape[rank - 2] = 700;  // enough for more than one thread
  if (rank && chance(r, 0.03)) shape[below(r, rank)] = 0;
  if (hostile == 5 && rank) {  // huge and empty
    for (std::int64_t& dim : shape) dim = any_of<std::int64_t>(r, {0, 1, 4, 1LL << 31, 1LL << 62, INT64_MAX});
    shape[below(r, rank)] = 0;
    if (count_of(shape) != 0) return "";
  }
  const std::int64_t signed_rank = static_cast<std::int64_t>(rank);
  std::int64_t axis = skip || !rank || chance(r, 0.6) ? signed_rank - 1 : static_cast<std::int64_t>(below(r, rank));
  KernelInfo info;
  float epsilon = any_of(r, {1e-6f, 1e-5f, 1e-3f, 0.5f});
  if (hostile == 1) {
    epsilon = any_of(r, {NAN, INFINITY, -INFINITY, -1.0f, -1e-45f});
    must_refuse = true;
  }
  info.attributes["epsilon"] = of(epsilon);
  if (hostile == 2) {
    info.attributes["epsilon"] = chance(r, 0.5) ? of(std::int64_t{3}) : Attribute{Attribute::kText};
    must_refuse = true;
  }
  if (ours) {
    std::vector<std::int64_t> axes;
    for (std::int64_t i = axis; i < signed_rank; ++i) axes.push_back(i);
    if (chance(r, 0.5))
      for (std::int64_t& each : axes) each -= signed_rank;
    info.attributes["axes"] = of(axes);
  } else if (!skip) {
    info.attributes["axis"] = of(chance(r, 0.5) ? axis : axis - signed_rank);
  }
  if (hostile == 3 && !skip) {  // axes outside, or no run of dimensions
    const std::int64_t bad = any_of<std::int64_t>(r, {signed_rank, -signed_rank - 1, INT64_MAX, INT64_MIN, 99});
    if (!ours) info.attributes["axis"] = of(bad);
    if (ours) {
      static const std::vector<std::int64_t> kBad[] = {
          {}, {0, 2}, {-1, 0}, {1, 1}, {INT64_MAX, INT64_MIN}, {INT64_MIN, INT64_MIN + 1}};
      const std::size_t which = below(r, 7);
      info.attributes["axes"] = of(which == 6 ? std::vector<std::int64_t>{bad} : kBad[which]);
    }
    must_refuse = true;
  }
  if (hostile == 6) {
    info.attributes["stash_type"] = of(any_of<std::int64_t>(r, {0, 2, -1, 10, 16, 99, INT64_MAX, INT64_MIN}));
    must_refuse |= ours;
  }
  if (hostile == 7) {
    info.attributes["version"] = of(any_of<std::int64_t>(r, {0, 2, -1, INT64_MAX, INT64_MIN}));
    must_refuse |= ours;
  }
  if (hostile == 8) {
    info.attributes["partial_size"] =
        of(std::vector<std::int64_t>(1 + below(r, 2), any_of<std::int64_t>(r, {0, -1, INT64_MIN})));
    must_refuse |= ours;
  }

  std::vector<std::int64_t> row(shape.begin() + (rank ? axis : 0), shape.end());
  if (!skip && rank && chance(r, 0.2)) row = {shape[rank - 1]};
  if (hostile == 5 && chance(r, 0.5) && !skip) row = shape;
  if (hostile == 9 && rank) {
    row.assign(1, shape[rank - 1] ? shape[rank - 1] + 1 : 2);
    must_refuse |= skip || ours || axis == signed_rank - 1;
  }
  if (count_of(row) < 0 || count_of(row) > kTooMany) row.assign(1, 1);
  if (must_refuse && hostile == 4 && row.size() > 4) row.assign(1, 1);
  const auto scale = tensor(r, row, scale_type, 1);
  std::unique_ptr<Value> x = tensor(r, shape, x_type, 0), residual, bias;
  KernelContext context{op, {x.get()}, {}, {}, {}, chance(r, 0.2)};
  if (add) {
    std::vector<std::int64_t> other = shape;
    if (skip && rank == 3 && chance(r, 0.3)) {
      if (chance(r, 0.5)) {
        other.erase(other.begin());
      } else {
        other[0] = 1;
      }
    }
    if (hostile == 10 && rank && hostile != 4 && count_of(shape) > 0) {
      ++other[other.size() - 1];
      must_refuse = true;
    }
    if (count_of(other) < 0 || count_of(other) > kTooMany) return "";
    residual = tensor(r, other, x_type, 0);
    context.inputs.push_back(residual.get());
  }
  context.inputs.push_back(scale.get());
  if (general || (skip && chance(r, 0.5))) {
    bias = tensor(r, row, scale_type, 0);
    context.inputs.push_back(bias.get());
  } else if (skip && chance(r, 0.5)) {
    context.inputs.push_back(nullptr);  // named ""
  }
  info.inputs = context.inputs.size();
  if (chance(r, 0.3)) info.constants[scale_at] = scale.get();
  if (bias && chance(r, 0.3)) info.constants[scale_at + 1] = bias.get();
  const std::size_t outputs = op->get_output_count(op);
  for (std::size_t i = 0; i < outputs; ++i) {
    context.wanted.push_back(op->get_output_characteristic(op, i) == kRequired || chance(r, 0.5));
    context.on.push_back(-1);
  }
  context.outputs.resize(outputs);
  std::vector<double> values;  // before anything is written
  const std::int64_t count = count_of(shape);
  const std::int64_t others = residual ? count_of(residual->shape) : 0;
  const bool judged = !must_refuse && count > 0;
  if (judged) {
    for (std::int64_t i = 0; i < count; ++i) {
      double v = load(x->data, i, x_type);
      if (residual) {
        v += load(residual->data, i % others, x_type);
        if (skip) v = rounded(v, RMS_NORM_FLOAT32);  // as the operator adds, one after the other
        if (skip && bias) v = rounded(v + load(bias->data, i % count_of(row), scale_type), RMS_NORM_FLOAT32);
        if (!skip) v = rounded(x_type == RMS_NORM_FLOAT64 ? v : rounded(v, RMS_NORM_FLOAT32), x_type);
      }
      values.push_back(v);
    }
  }
  if (op->get_output_type(op, 0) == x_type && chance(r, 0.4)) {
    int *from = nullptr, *to = nullptr;
    const std::size_t pairs = op->may_inplace(&from, &to);
    const std::size_t pair = pairs ? below(r, pairs) : 0;
    const bool fits = pairs && (from[pair] == 0 || residual->shape == shape);
    if (fits) context.on[static_cast<std::size_t>(to[pair])] = from[pair];
    if (pairs) op->release_inplace(from, to);
  }

  void* kernel = nullptr;
  Status* status = op->create_kernel_status(op, kernel_api, &info, &kernel);
  if (!status) {
    status = op->compute_status(kernel, &context);
    op->destroy_kernel(kernel);
  } else if (kernel) {
    return "a refused node leaves a kernel";
  }
  if (status) {
    const std::string text = status->text;
    if (!spoke(status)) return "refused without a text";
    ++refused;
    return must_refuse || hostile ? "" : "refused: " + name + ": " + text;
  }
  if (must_refuse && (count != 0 || hostile < 9))
    return name + ": a node that is wrong (" + std::to_string(hostile) + ") was taken";
  ++taken;
  if (!judged || hostile == 9) return "";
  ++compared;
  std::int64_t size = 1;
  for (std::size_t i = static_cast<std::size_t>(axis); i < rank; ++i) size *= shape[i];
  const Value& y = *context.outputs[0];
  if (y.shape != shape) return "another shape";
  const std::int64_t weights = count_of(row);
  for (std::int64_t first = 0; first < count; first += size) {
    long double squares = 0;
    double most = 0;
    for (std::int64_t i = 0; i < size; ++i) squares += static_cast<long double>(values[first + i]) * values[first + i];
    const double rms = std::sqrt(static_cast<double>(squares / size) + static_cast<double>(epsilon));
    std::vector<double> wanted;
    for (std::int64_t i = 0; i < size; ++i) {
      const double plain = values[first + i] / rms * load(scale->data, i % weights, scale_type);
      const double added = general ? load(bias->data, i % weights, scale_type) : 0;
      wanted.push_back(plain + added);
      most = std::max({most, std::fabs(plain), std::fabs(added), std::fabs(plain + added)});
    }
    const double unit = std::max({spacing(most, type_of(x_type)), spacing(most, type_of(y.type)),
                                  x_type == RMS_NORM_FLOAT64 && !ours ? 0 : spacing(most, type_of(RMS_NORM_FLOAT32))});
    for (std::int64_t i = 0; i < size; ++i) {
      const double got = load(y.data, first + i, y.type);
      if (!(std::fabs(got - wanted[i]) <= 8 * unit)) {
        char text[200];
        std::snprintf(text, sizeof text, "%s of %d and %d: y[%lld] is %.9g instead of %.9g, %.3g units off",
                      name.c_str(), x_type, scale_type, static_cast<long long>(first + i), got, wanted[i],
                      std::fabs(got - wanted[i]) / unit);
        return text;
      }
    }
  }
  return "";
}

// Options with odd entries, registered once or more; only the text "0" leaves a domain out.
std::string register_once(Register register_ops, Random& r) {
  const ApiBase base = {get_api, version};
  SessionOptions options;
  std::size_t off = 0;
  for (const char* key : {"rmsnorm_deploy.override.com.microsoft", "rmsnorm_deploy.override.ai.onnx"}) {
    if (chance(r, 0.5)) continue;
    options.entries[key] = any_of<std::string>(r, {"0", "1", "", "00", "0 ", "no", std::string(100000, '0')});
    off += options.entries[key] == "0";
  }
  for (std::size_t times = 1 + below(r, 3); times; --times) {
    if (Status* const status = register_ops(&options, &base)) return spoke(status) ? "registration is refused" : "";
  }
  static std::atomic<std::size_t> all{0};
  if (!off) all = options.domains.size();
  if (all == 2 && options.domains.size() != 2 - off) return "another number of domains";
  if (all == 1 && options.domains.size() != 1) return "registered twice";
  return "";
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 6) return 2;
  void* const handle = dlopen(arguments[1], RTLD_NOW);
  if (!handle) return std::fprintf(stderr, "%s\n", dlerror()), 2;
  const auto register_ops = reinterpret_cast<Register>(dlsym(handle, "RegisterCustomOps"));
  const std::uint64_t seed = std::strtoull(arguments[2], nullptr, 10);
  const long first = std::atol(arguments[3]), last = first + std::atol(arguments[4]);
  const int threads = std::atoi(arguments[5]);
  fill_table();
  kernel_api = get_api(18);
  if (const void* const replaced = dlsym(handle, "replaced_api")) kernel_api = static_cast<const Api*>(replaced);
  std::atomic<int> faults{0};
  const auto tell = [&](long n, const std::string& wrong) {
    if (wrong.empty()) return;
    std::fprintf(stderr, "node %ld: %s\n", n, wrong.c_str());
    ++faults;
  };
  const ApiBase base = {get_api, version};
  for (const char* old : {"1.19.2", "0.9", "", "x", "1"}) {
    version_text = old;
    SessionOptions options;
    Status* const status = register_ops(&options, &base);
    if (!status || !spoke(status) || !options.domains.empty()) tell(-1, std::string("taken: version ") + old);
  }
  version_text = seed % 2 ? "1.24.1" : "1.20.0";
  const auto at_once = [&](const auto& work) {
    std::vector<std::thread> running;
    for (int t = 1; t < threads; ++t) running.emplace_back(work, t);
    work(0);
    for (std::thread& t : running) t.join();
  };
  std::vector<SessionOptions> options(static_cast<std::size_t>(threads));
  at_once([&](int t) {
    Status* const status = register_ops(&options[static_cast<std::size_t>(t)], &base);
    if (status && spoke(status)) tell(-1, "the ops are not registered");
  });
  for (const SessionOptions& each : options) {
    if (each.domains != options[0].domains || each.domains.empty()) tell(-1, "threads get other domains");
  }
  for (const CustomOpDomain* const domain : options[0].domains) {
    for (const CustomOp* const op : domain->ops) {
      const std::string name = op->get_name(op);
      // Those of the CPU. Norms with a gate have inputs of their own, and calls.cpp drives their kernels;
      // those that quantise have tensors that are not made here.
      if (op->get_provider(op) || name == "GatedRMSNorm" || name.find("Quantize") != std::string::npos) continue;
      all_ops.push_back(op);
    }
  }
  at_once([&](int t) {
    for (long n = first + t; n < last; n += threads) {
      Random r(seed * 7919 + static_cast<std::uint64_t>(n));
      if (n % 20 == 0) tell(n, register_once(register_ops, r));
      tell(n, one(seed, n));
    }
  });
  if (statuses) tell(last, "statuses are left behind");
  std::printf("%zu ops: %ld nodes taken, %ld compared, %ld refused, %d faults\n", all_ops.size(), taken.load(),
              compared.load(), refused.load(), faults.load());
  return faults ? 1 : 0;
}
