// Runs a fused model in onnxruntime from C++, with the custom-op library that makes its norms fast.
//
//     run_model LIBONNXRUNTIME LIBRMSNORM_DEPLOY MODEL ROWS COLUMNS
//
// The model has one float32 input "X" of shape [ROWS, COLUMNS] and a float32 output "Y" of the same shape. X is filled
// with a fixed pattern; Y is printed, one value on a line, with all its digits.
//
// A program that has onnxruntime's own headers needs three lines of this: create session options, call
// RegisterCustomOpsLibrary_V2(options, path) on them, create the session.
#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ort/abi.h"

namespace ort = rmsnorm_deploy::ort;

namespace {

const ort::Api* api = nullptr;

[[noreturn]] void fail(const char* what, const char* why) {
  std::fprintf(stderr, "run_model: %s: %s\n", what, why);
  std::exit(1);
}

// A path as onnxruntime takes it: of wide characters on Windows.
std::basic_string<ort::PathChar> path_of(const char* argument) {
#if defined(_WIN32)
  std::wstring wide(static_cast<std::size_t>(MultiByteToWideChar(CP_ACP, 0, argument, -1, nullptr, 0)), L'\0');
  MultiByteToWideChar(CP_ACP, 0, argument, -1, &wide[0], static_cast<int>(wide.size()));
  wide.resize(wide.size() - 1);  // the zero at the end
  return wide;
#else
  return argument;
#endif
}

// onnxruntime's first function, from its library.
const ort::ApiBase* runtime_of(const char* path) {
  using Base = const ort::ApiBase* (*)();
#if defined(_WIN32)
  const HMODULE runtime = LoadLibraryExW(path_of(path).c_str(), nullptr, LOAD_WITH_ALTERED_SEARCH_PATH);
  if (!runtime) fail("cannot open onnxruntime", path);
  const auto base_of = reinterpret_cast<Base>(reinterpret_cast<void*>(GetProcAddress(runtime, "OrtGetApiBase")));
#else
  void* const runtime = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!runtime) fail("cannot open onnxruntime", dlerror());
  const auto base_of = reinterpret_cast<Base>(dlsym(runtime, "OrtGetApiBase"));
#endif
  if (!base_of) fail("not an onnxruntime library", path);
  return base_of();
}

void check(const char* what, ort::Status* status) {
  if (!status) return;
  fail(what, ort::call<ort::GetErrorMessage>(api, status));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: run_model LIBONNXRUNTIME LIBRMSNORM_DEPLOY MODEL ROWS COLUMNS\n");
    return 2;
  }
  const char* const runtime_path = argv[1];
  const char* const library_path = argv[2];
  const char* const model_path = argv[3];
  const std::int64_t shape[] = {std::atoll(argv[4]), std::atoll(argv[5])};

  const ort::ApiBase* const base = runtime_of(runtime_path);
  api = base->get_api(ort::kApiVersion);
  if (!api) fail("this onnxruntime is too old", base->version_string());

  constexpr int kWarnings = 2;  // least severity that is logged
  const char* const log_name = "run_model";
  ort::Env* env = nullptr;
  check("environment", ort::call<ort::CreateEnv>(api, kWarnings, log_name, &env));

  ort::SessionOptions* options = nullptr;
  check("options", ort::call<ort::CreateSessionOptions>(api, &options));
  check("custom-op library", ort::call<ort::RegisterCustomOpsLibrary_V2>(api, options, path_of(library_path).c_str()));

  ort::Session* session = nullptr;
  check("session", ort::call<ort::CreateSession>(api, env, path_of(model_path).c_str(), options, &session));

  std::vector<float> x(static_cast<std::size_t>(shape[0] * shape[1]));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = (static_cast<float>(i * 37 % 101) - 50.0f) / 25.0f;
  }
  constexpr int kArena = 1;    // the kind of allocator the memory information names
  constexpr int kDefault = 0;  // the kind of memory
  constexpr int kFloat = 1;    // the element type
  ort::MemoryInfo* memory = nullptr;
  check("memory", ort::call<ort::CreateCpuMemoryInfo>(api, kArena, kDefault, &memory));
  ort::Value* input = nullptr;
  check("input", ort::call<ort::CreateTensorWithDataAsOrtValue>(api, memory, x.data(), x.size() * sizeof(float),
                                                                &shape[0], 2, kFloat, &input));

  const char* const input_names[] = {"X"};
  const char* const output_names[] = {"Y"};
  const ort::Value* const inputs[] = {input};
  ort::Value* outputs[] = {nullptr};
  check("run",
        ort::call<ort::Run>(api, session, nullptr, &input_names[0], &inputs[0], 1, &output_names[0], 1, &outputs[0]));

  void* y = nullptr;
  check("output", ort::call<ort::GetTensorMutableData>(api, outputs[0], &y));
  for (std::size_t i = 0; i < x.size(); ++i) std::printf("%.9g\n", static_cast<double>(static_cast<float*>(y)[i]));

  ort::call<ort::ReleaseValue>(api, outputs[0]);
  ort::call<ort::ReleaseValue>(api, input);
  ort::call<ort::ReleaseMemoryInfo>(api, memory);
  ort::call<ort::ReleaseSession>(api, session);
  ort::call<ort::ReleaseSessionOptions>(api, options);
  ort::call<ort::ReleaseEnv>(api, env);
  return 0;
}
