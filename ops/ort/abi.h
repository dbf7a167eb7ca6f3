// The part of onnxruntime's C interface that this project uses, declared here in its own words, since the Python wheels
// carry no headers. The interface only ever grows at its end, so positions and layouts below hold for every release
// from 1.20 on; a test compares each of them with an official header where one is installed.
#ifndef RMSNORM_DEPLOY_ORT_ABI_H_
#define RMSNORM_DEPLOY_ORT_ABI_H_

#include <cstddef>
#include <cstdint>

namespace rmsnorm_deploy {
namespace ort {

// Handles that only onnxruntime looks into.
struct Status;  // null is success
struct Env;
struct Session;
struct SessionOptions;
struct RunOptions;
struct Value;
struct MemoryInfo;
struct TensorInfo;  // element type and shape
struct CustomOp;    // below
struct CustomOpDomain;
struct KernelInfo;
struct KernelContext;
struct ShapeContext;

// The interface version whose functions and op fields are used: the first that has all of them, and the one that makes
// onnxruntime reuse an input's memory for an output. Releases before 1.20 are not tested, so they are refused.
constexpr std::uint32_t kApiVersion = 18;
constexpr int kOldestMinor = 20;

// The interface version that can show a shape without copying it, which is used where the runtime has it.
constexpr std::uint32_t kReferenceVersion = 24;

// Status codes.
enum StatusCode : int { kFail = 1, kInvalidArgument = 2, kNotImplemented = 9, kInvalidGraph = 10 };

// A character of a path: what the system's own file functions take.
#if defined(_WIN32)
using PathChar = wchar_t;
#else
using PathChar = char;
#endif

// Whether an input or output may be left out.
enum Characteristic : int { kRequired = 0, kOptional = 1 };

// The table of functions, by position.
struct Api {
  void* slots[1];
};

// What a process offers first.
struct ApiBase {
  const Api* (*get_api)(std::uint32_t version);
  const char* (*version_string)();
};

// The functions in use: the official name, the position in the table, the result and the arguments.
#define RMSNORM_DEPLOY_ORT_FUNCTIONS(F)                                                                                \
  F(CreateStatus, 0, Status*, int code, const char* text)                                                              \
  F(GetErrorMessage, 2, const char*, const Status* status)                                                             \
  F(CreateEnv, 3, Status*, int severity, const char* name, Env** env)                                                  \
  F(CreateSession, 7, Status*, const Env* env, const PathChar* path, const SessionOptions* options, Session** session) \
  F(Run, 9, Status*, Session* session, const RunOptions* options, const char* const* input_names,                      \
    const Value* const* inputs, std::size_t input_count, const char* const* output_names, std::size_t output_count,    \
    Value** outputs)                                                                                                   \
  F(CreateSessionOptions, 10, Status*, SessionOptions** options)                                                       \
  F(CreateCustomOpDomain, 26, Status*, const char* name, CustomOpDomain** domain)                                      \
  F(CustomOpDomain_Add, 27, Status*, CustomOpDomain* domain, const CustomOp* op)                                       \
  F(AddCustomOpDomain, 28, Status*, SessionOptions* options, CustomOpDomain* domain)                                   \
  F(CreateTensorWithDataAsOrtValue, 49, Status*, const MemoryInfo* memory, void* data, std::size_t bytes,              \
    const std::int64_t* dims, std::size_t rank, int type, Value** value)                                               \
  F(GetTensorMutableData, 51, Status*, Value* value, void** data)                                                      \
  F(SetTensorElementType, 58, Status*, TensorInfo* info, int type)                                                     \
  F(GetTensorElementType, 60, Status*, const TensorInfo* info, int* type)                                              \
  F(GetDimensionsCount, 61, Status*, const TensorInfo* info, std::size_t* rank)                                        \
  F(GetDimensions, 62, Status*, const TensorInfo* info, std::int64_t* dims, std::size_t rank)                          \
  F(GetSymbolicDimensions, 63, Status*, const TensorInfo* info, const char** names, std::size_t rank)                  \
  F(GetTensorTypeAndShape, 65, Status*, const Value* value, TensorInfo** info)                                         \
  F(CreateCpuMemoryInfo, 69, Status*, int allocator, int kind, MemoryInfo** memory)                                    \
  F(KernelInfoGetAttribute_float, 85, Status*, const KernelInfo* info, const char* name, float* value)                 \
  F(KernelInfoGetAttribute_int64, 86, Status*, const KernelInfo* info, const char* name, std::int64_t* value)          \
  F(KernelInfoGetAttribute_string, 87, Status*, const KernelInfo* info, const char* name, char* text,                  \
    std::size_t* size)                                                                                                 \
  F(KernelContext_GetInput, 90, Status*, const KernelContext* context, std::size_t index, const Value** value)         \
  F(KernelContext_GetOutput, 91, Status*, KernelContext* context, std::size_t index, const std::int64_t* dims,         \
    std::size_t rank, Value** value)                                                                                   \
  F(ReleaseEnv, 92, void, Env* env)                                                                                    \
  F(ReleaseStatus, 93, void, Status* status)                                                                           \
  F(ReleaseMemoryInfo, 94, void, MemoryInfo* memory)                                                                   \
  F(ReleaseSession, 95, void, Session* session)                                                                        \
  F(ReleaseValue, 96, void, Value* value)                                                                              \
  F(ReleaseTensorTypeAndShapeInfo, 99, void, TensorInfo* info)                                                         \
  F(ReleaseSessionOptions, 100, void, SessionOptions* options)                                                         \
  F(AddSessionConfigEntry, 130, Status*, SessionOptions* options, const char* key, const char* value)                  \
  F(KernelInfoGetAttributeArray_float, 162, Status*, const KernelInfo* info, const char* name, float* values,          \
    std::size_t* count)                                                                                                \
  F(KernelInfoGetAttributeArray_int64, 163, Status*, const KernelInfo* info, const char* name, std::int64_t* values,   \
    std::size_t* count)                                                                                                \
  F(KernelContext_GetGPUComputeStream, 193, Status*, const KernelContext* context, void** stream)                      \
  F(RegisterCustomOpsLibrary_V2, 228, Status*, SessionOptions* options, const PathChar* path)                          \
  F(KernelInfo_GetInputCount, 230, Status*, const KernelInfo* info, std::size_t* count)                                \
  F(HasSessionConfigEntry, 237, Status*, const SessionOptions* options, const char* key, int* has)                     \
  F(GetSessionConfigEntry, 238, Status*, const SessionOptions* options, const char* key, char* value,                  \
    std::size_t* size)                                                                                                 \
  F(KernelInfo_GetNodeName, 244, Status*, const KernelInfo* info, char* name, std::size_t* size)                       \
  F(KernelInfoGetConstantInput_tensor, 249, Status*, const KernelInfo* info, std::size_t index, int* is_constant,      \
    const Value** value)                                                                                               \
  F(ShapeInferContext_GetInputTypeShape, 268, Status*, const ShapeContext* context, std::size_t index,                 \
    TensorInfo** info)                                                                                                 \
  F(ShapeInferContext_SetOutputTypeShape, 270, Status*, const ShapeContext* context, std::size_t index,                \
    const TensorInfo* info)                                                                                            \
  F(KernelContext_ParallelFor, 274, Status*, const KernelContext* context, void (*run)(void* data, std::size_t index), \
    std::size_t total, std::size_t batches, void* data)                                                                \
  F(GetTensorElementTypeAndShapeDataReference, 414, Status*, const Value* value, int* type, const std::int64_t** dims, \
    std::size_t* rank)

#define RMSNORM_DEPLOY_ORT_SLOT(name, position, ...) name = position,
enum Slot : std::size_t { RMSNORM_DEPLOY_ORT_FUNCTIONS(RMSNORM_DEPLOY_ORT_SLOT) };
#undef RMSNORM_DEPLOY_ORT_SLOT

template <Slot kSlot>
struct Function;
#define RMSNORM_DEPLOY_ORT_TYPE(name, position, result, ...) \
  template <>                                                \
  struct Function<name> {                                    \
    using Type = result (*)(__VA_ARGS__);                    \
  };
RMSNORM_DEPLOY_ORT_FUNCTIONS(RMSNORM_DEPLOY_ORT_TYPE)
#undef RMSNORM_DEPLOY_ORT_TYPE

// Call a function: call<CreateStatus>(api, code, text). `GetTensorElementTypeAndShapeDataReference` needs the table of
// kReferenceVersion.
template <Slot kSlot, typename... Arguments>
inline auto call(const Api* api, Arguments... arguments) {
  return reinterpret_cast<typename Function<kSlot>::Type>(api->slots[kSlot])(arguments...);
}

// A custom op as onnxruntime sees it: a version, then functions. What a null means is said where null is used.
struct CustomOp {
  std::uint32_t version;
  void* (*create_kernel)(const CustomOp*, const Api*, const KernelInfo*);
  const char* (*get_name)(const CustomOp*);
  const char* (*get_provider)(const CustomOp*);  // null: the CPU
  int (*get_input_type)(const CustomOp*, std::size_t);
  std::size_t (*get_input_count)(const CustomOp*);
  int (*get_output_type)(const CustomOp*, std::size_t);
  std::size_t (*get_output_count)(const CustomOp*);
  void (*compute)(void*, KernelContext*);
  void (*destroy_kernel)(void*);
  int (*get_input_characteristic)(const CustomOp*, std::size_t);
  int (*get_output_characteristic)(const CustomOp*, std::size_t);
  int (*get_input_memory)(const CustomOp*, std::size_t);
  int (*variadic_input_min)(const CustomOp*);
  int (*variadic_input_same)(const CustomOp*);
  int (*variadic_output_min)(const CustomOp*);
  int (*variadic_output_same)(const CustomOp*);
  Status* (*create_kernel_status)(const CustomOp*, const Api*, const KernelInfo*, void**);
  Status* (*compute_status)(void*, KernelContext*);
  Status* (*infer_shape)(const CustomOp*, ShapeContext*);
  int (*start_version)(const CustomOp*);
  int (*end_version)(const CustomOp*);
  std::size_t (*may_inplace)(int** inputs, int** outputs);  // pairs; the arrays are handed back to the next one
  void (*release_inplace)(int* inputs, int* outputs);
  std::size_t (*alias)(int** inputs, int** outputs);
  void (*release_alias)(int* inputs, int* outputs);
};

}  // namespace ort
}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_ABI_H_
