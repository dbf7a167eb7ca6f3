// Calls a compiled norm on a machine without TVM: LIBRARY FUNCTION BITS ROWS SIZE; X and scale from stdin, Y to stdout.
#include <dlfcn.h>
#include <tvm/ffi/c_api.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kTasks = 3;

struct Group {
  void* unused;
  int32_t tasks;
};

// What TVM's thread pool does, one task after the other.
int launch(int (*task)(int, Group*, void*), void* data, int) {
  Group group{nullptr, kTasks};
  for (int i = 0; i < kTasks; ++i) {
    if (const int failed = task(i, &group, data)) return failed;
  }
  return 0;
}

[[noreturn]] void stop(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

TVMFFIAny argument(DLTensor* tensor) {
  TVMFFIAny value{};
  value.type_index = kTVMFFIDLTensorPtr;
  value.v_ptr = tensor;
  return value;
}

}  // namespace

extern "C" void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  for (int32_t i = 0; i < count; ++i) std::fputs(parts[i], stderr);
  stop(kind);
}

int main(int count, char** arguments) {
  if (count != 6) stop("needs LIBRARY FUNCTION BITS ROWS SIZE");
  void* library = dlopen(arguments[1], RTLD_LAZY);
  if (library == nullptr) stop(dlerror());
  auto function = reinterpret_cast<int (*)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*)>(dlsym(library, arguments[2]));
  void* launcher = dlsym(library, "__TVMBackendParallelLaunch");
  if (function == nullptr || launcher == nullptr) stop("the library has no such kernel");
  *static_cast<decltype(&launch)*>(launcher) = launch;

  const auto bits = static_cast<uint8_t>(std::atoi(arguments[3]));
  int64_t shape[] = {std::atoll(arguments[4]), std::atoll(arguments[5])};
  const size_t bytes = static_cast<size_t>(shape[0] * shape[1]) * bits / 8,
               row = static_cast<size_t>(shape[1]) * bits / 8;
  void* memory[3];
  for (void*& block : memory) {
    block = std::aligned_alloc(64, (bytes + row + 63) / 64 * 64);
    if (block == nullptr) stop("there is no memory");
  }
  if (std::fread(memory[0], 1, bytes, stdin) != bytes || std::fread(memory[1], 1, row, stdin) != row) stop("no input");
  const DLDevice cpu{kDLCPU, 0};
  const DLDataType dtype{kDLFloat, bits, 1};
  int64_t strides[] = {shape[1], 1}, one[] = {1};
  DLTensor x{memory[0], cpu, 2, dtype, shape, strides, 0}, y{memory[2], cpu, 2, dtype, shape, strides, 0};
  DLTensor scale{memory[1], cpu, 1, dtype, &shape[1], one, 0};
  const TVMFFIAny given[] = {argument(&x), argument(&scale), argument(&y)};
  TVMFFIAny result{};
  if (function(nullptr, given, 3, &result) != 0) stop("the kernel failed");
  return std::fwrite(memory[2], 1, bytes, stdout) == bytes ? 0 : 1;
}
