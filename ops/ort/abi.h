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
struct Value;
struct MemoryInfo;
struct TensorInfo;  // element type and shape
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

// Positions in the table. The names are the official ones, for the test that compares them.
enum Slot : std::size_t {
  CreateStatus = 0,
  GetErrorMessage = 2,
  CreateEnv = 3,
  CreateSession = 7,
  Run = 9,
  CreateSessionOptions = 10,
  SetIntraOpNumThreads = 24,
  CreateCustomOpDomain = 26,
  CustomOpDomain_Add = 27,
  AddCustomOpDomain = 28,
  CreateTensorWithDataAsOrtValue = 49,
  GetTensorMutableData = 51,
  GetTensorElementType = 60,
  GetDimensionsCount = 61,
  GetDimensions = 62,
  GetSymbolicDimensions = 63,
  GetTensorShapeElementCount = 64,
  GetTensorTypeAndShape = 65,
  CreateCpuMemoryInfo = 69,
  KernelInfoGetAttribute_float = 85,
  KernelInfoGetAttribute_int64 = 86,
  KernelContext_GetInput = 90,
  KernelContext_GetOutput = 91,
  ReleaseEnv = 92,
  ReleaseStatus = 93,
  ReleaseMemoryInfo = 94,
  ReleaseSession = 95,
  ReleaseValue = 96,
  ReleaseTensorTypeAndShapeInfo = 99,
  ReleaseSessionOptions = 100,
  AddSessionConfigEntry = 130,
  KernelInfoGetAttributeArray_int64 = 163,
  KernelContext_GetGPUComputeStream = 193,
  RegisterCustomOpsLibrary_V2 = 228,
  KernelInfo_GetInputCount = 230,
  HasSessionConfigEntry = 237,
  KernelInfo_GetNodeName = 244,
  KernelInfoGetConstantInput_tensor = 249,
  ShapeInferContext_GetInputTypeShape = 268,
  ShapeInferContext_SetOutputTypeShape = 270,
  KernelContext_ParallelFor = 274,
  GetTensorElementTypeAndShapeDataReference = 414,  // from kReferenceVersion on
};

// Call the function at a position: call<CreateStatus, Status*>(api, code, text). The arguments must have exactly the
// types that the function takes; nothing can check that here.
template <Slot kSlot, typename Result = Status*, typename... Arguments>
inline Result call(const Api* api, Arguments... arguments) {
  return reinterpret_cast<Result (*)(Arguments...)>(api->slots[kSlot])(arguments...);
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
