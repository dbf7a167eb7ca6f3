// Stands in for the CUDA driver library where there is no GPU, as far as benchmarks/gpu uses it: one device whose
// memory is the host's. The emulated kernels run when they are launched, also while a launch is being captured;
// replaying a graph does nothing but take a little time. For tests only.
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>

namespace {

using Clock = std::chrono::steady_clock;

struct Event {
  Clock::time_point time;
};
struct Graph {
  int replays;
};

constexpr int kInvalidValue = 1;
constexpr std::size_t kTotal = std::size_t{1} << 30;

std::map<std::uintptr_t, std::size_t> memory;  // of the device
bool capturing = false;

// Whether [address, address + size) is one piece of the device's memory.
bool inside(std::uint64_t address, std::size_t size) {
  auto next = memory.upper_bound(address);
  if (next == memory.begin()) return false;
  --next;
  return address + size <= next->first + next->second;
}

void* pointer(std::uint64_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

extern "C" {

int cuInit(unsigned) { return std::getenv("FAKE_CUDA_NO_DEVICE") ? 100 : 0; }
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}
int cuDeviceGet(int* device, int index) {
  *device = 0;
  return index == 0 ? 0 : kInvalidValue;
}
int cuDeviceGetName(char* text, int size, int) {
  std::strncpy(text, "emulated GPU", static_cast<std::size_t>(size));
  return 0;
}
int cuDeviceGetAttribute(int* value, int which, int) {
  *value = which == 16 ? 4 : which == 38 ? 64 * 1024 : which == 75 ? 9 : 0;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = &memory;
  return 0;
}
int cuCtxSetCurrent(void*) { return 0; }
int cuCtxSynchronize() { return 0; }
int cuGetErrorName(int, const char** text) {
  *text = "CUDA_ERROR_INVALID_VALUE";
  return 0;
}

int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  *free = *total = kTotal;
  return 0;
}
int cuMemAlloc_v2(std::uint64_t* address, std::size_t size) {
  void* made = std::aligned_alloc(256, (size + 255) / 256 * 256);
  if (!made) return 2;
  *address = reinterpret_cast<std::uint64_t>(made);
  memory[*address] = size;
  return 0;
}
int cuMemFree_v2(std::uint64_t address) {
  if (!memory.erase(address)) return kInvalidValue;
  std::free(pointer(address));
  return 0;
}
int cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t size) {
  if (!inside(to, size) || capturing) return kInvalidValue;
  std::memcpy(pointer(to), from, size);
  return 0;
}
int cuMemcpyDtoH_v2(void* to, std::uint64_t from, std::size_t size) {
  if (!inside(from, size) || capturing) return kInvalidValue;
  std::memcpy(to, pointer(from), size);
  return 0;
}
int cuMemcpyDtoDAsync_v2(std::uint64_t to, std::uint64_t from, std::size_t size, void*) {
  if (!inside(to, size) || !inside(from, size)) return kInvalidValue;
  const char* refused = std::getenv("FAKE_CUDA_REFUSED_COPY");  // in bytes
  if (refused && std::strtoull(refused, nullptr, 10) == size) return 700;
  std::memmove(pointer(to), pointer(from), size);
  return 0;
}
int cuMemsetD8_v2(std::uint64_t to, unsigned char byte, std::size_t size) {
  if (!inside(to, size) || capturing) return kInvalidValue;
  std::memset(pointer(to), byte, size);
  return 0;
}

// Machine code is a library of the host, whose functions take the number of blocks and the kernel's arguments.
int cuModuleLoadData(void** module, const void* image) {
  // The size is in the headers of an ELF file: its table of sections comes last.
  const auto* bytes = static_cast<const unsigned char*>(image);
  std::uint64_t sections = 0;
  std::uint16_t size = 0, count = 0;
  if (std::memcmp(bytes,
                  "\x7f"
                  "ELF",
                  4) != 0)
    return 200;
  std::memcpy(&sections, bytes + 0x28, 8);
  std::memcpy(&size, bytes + 0x3a, 2);
  std::memcpy(&count, bytes + 0x3c, 2);
  char name[] = "/tmp/module-XXXXXX";
  const int file = mkstemp(name);
  if (file < 0) return 304;
  std::size_t left = sections + std::uint64_t{size} * count;
  while (left) {
    const ssize_t written = write(file, bytes, left);
    if (written <= 0) return 304;
    bytes += written;
    left -= static_cast<std::size_t>(written);
  }
  close(file);
  *module = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  unlink(name);
  return *module ? 0 : 200;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = dlsym(module, name);
  return *function ? 0 : 500;
}
int cuLaunchKernel(void* function, unsigned blocks, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                   void** arguments, void**) {
  reinterpret_cast<void (*)(unsigned, void**)>(function)(blocks, arguments);
  return 0;
}

int cuStreamCreate(void** stream, unsigned) {
  static int streams = 0;
  *stream = reinterpret_cast<void*>(static_cast<std::uintptr_t>(++streams));
  return 0;
}
int cuStreamBeginCapture_v2(void*, int) {
  if (capturing) return kInvalidValue;
  capturing = true;
  return 0;
}
int cuStreamEndCapture(void*, void** graph) {
  if (!capturing) return kInvalidValue;
  capturing = false;
  *graph = new Graph{0};
  return 0;
}
int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  *executable = new Graph(*static_cast<Graph*>(graph));
  return 0;
}
int cuGraphLaunch(void* executable, void*) {
  ++static_cast<Graph*>(executable)->replays;
  return 0;
}
int cuGraphExecDestroy(void* executable) {
  delete static_cast<Graph*>(executable);
  return 0;
}
int cuGraphDestroy(void* graph) {
  delete static_cast<Graph*>(graph);
  return 0;
}
int cuEventCreate(void** event, unsigned) {
  *event = new Event{};
  return 0;
}
int cuEventRecord(void* event, void*) {
  static_cast<Event*>(event)->time = Clock::now();
  return 0;
}
int cuEventSynchronize(void*) { return 0; }
int cuEventElapsedTime(float* milliseconds, void* start, void* end) {
  const std::chrono::duration<float, std::milli> taken =
      static_cast<Event*>(end)->time - static_cast<Event*>(start)->time;
  *milliseconds = taken.count() + 0.001f;
  return 0;
}

}  // extern "C"
