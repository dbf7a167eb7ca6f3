// Runs the kernels' C contract for another process, which may be of another architecture: calls come in on the standard
// input, results go out on the standard output. `driver.py` is the other end and shows the protocol.
//
// Every tensor ends at a page that must not be touched, or a few bytes before it where the caller asks for an address
// off the usual alignment, and has known bytes around it: to read behind a tensor is a crash, to write outside one, or
// into an input, is reported.
#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <fcntl.h>
#include <io.h>
#include <windows.h>
#else
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../../ops/include/rms_norm_gated.h"

namespace {

enum Command : std::int32_t { kRun = 0, kSetIsa = 1, kIsa = 2, kIsaAt = 3, kErrorText = 4, kRunGated = 5 };

constexpr unsigned char kAround = 0x5a;
constexpr std::size_t kMargin = 256;  // bytes before a tensor that are looked at
constexpr std::size_t kAlignment = 16;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "driver: %s\n", what);
  std::exit(1);
}

void receive(void* to, std::size_t bytes) {
  if (std::fread(to, 1, bytes, stdin) != bytes) fail("the input ends inside a call");
}

template <typename T>
T receive() {
  T value;
  receive(&value, sizeof value);
  return value;
}

void send(const void* from, std::size_t bytes) {
  if (std::fwrite(from, 1, bytes, stdout) != bytes) fail("cannot write");
}

void send(std::int32_t value) { send(&value, sizeof value); }

void send_text(const char* text) {
  send(text ? static_cast<std::int32_t>(std::strlen(text)) : -1);
  if (text) send(text, std::strlen(text));
}

#if defined(_WIN32)
std::size_t page_size() {
  SYSTEM_INFO system;
  GetSystemInfo(&system);
  return system.dwPageSize;
}
// Pages of which only those between the first and the last may be touched.
unsigned char* fenced(std::size_t inside, std::size_t page) {
  void* const memory = VirtualAlloc(nullptr, inside + 2 * page, MEM_RESERVE, PAGE_NOACCESS);
  if (!memory) fail("no memory");
  unsigned char* const base = static_cast<unsigned char*>(memory);
  if (!VirtualAlloc(base + page, inside, MEM_COMMIT, PAGE_READWRITE)) fail("cannot make memory writable");
  return base;
}
void release(unsigned char* base, std::size_t) { VirtualFree(base, 0, MEM_RELEASE); }

void* open_library(const char* path) { return reinterpret_cast<void*>(LoadLibraryA(path)); }
void* symbol(void* library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(reinterpret_cast<HMODULE>(library), name));
}
const char* why_not() { return "Windows cannot load it, or find a function in it"; }

void binary_streams() {
  _setmode(_fileno(stdin), _O_BINARY);
  _setmode(_fileno(stdout), _O_BINARY);
}
#else
std::size_t page_size() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }
// Pages of which only those between the first and the last may be touched.
unsigned char* fenced(std::size_t inside, std::size_t page) {
  void* const memory = mmap(nullptr, inside + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no memory");
  unsigned char* const base = static_cast<unsigned char*>(memory);
  if (mprotect(base + page, inside, PROT_READ | PROT_WRITE)) fail("cannot make memory writable");
  return base;
}
void release(unsigned char* base, std::size_t bytes) { munmap(base, bytes); }

void* open_library(const char* path) { return dlopen(path, RTLD_NOW); }
void* symbol(void* library, const char* name) { return dlsym(library, name); }
const char* why_not() { return dlerror(); }

void binary_streams() {}
#endif

// Memory for one tensor, between two pages that must not be touched; it grows with the tensors.
class Room {
 public:
  unsigned char* place(std::size_t bytes, std::size_t misalignment) {
    const std::size_t page = page_size();
    const std::size_t needed = (bytes + kMargin + kAlignment + page - 1) / page * page;
    if (needed > size_) {
      if (base_) release(base_, size_ + 2 * page);
      base_ = fenced(needed, page);
      size_ = needed;
    }
    end_ = base_ + page + size_;
    bytes_ = bytes;
    begin_ = end_ - bytes;
    if (misalignment) {
      while (reinterpret_cast<std::uintptr_t>(begin_) % kAlignment != misalignment) --begin_;
    }
    std::memset(begin_ - kMargin, kAround, static_cast<std::size_t>(end_ - begin_) + kMargin);
    return begin_;
  }

  bool surroundings_are_whole() const {
    for (const unsigned char* p = begin_ - kMargin; p < begin_; ++p) {
      if (*p != kAround) return false;
    }
    for (const unsigned char* p = begin_ + bytes_; p < end_; ++p) {
      if (*p != kAround) return false;
    }
    return true;
  }

 private:
  unsigned char* base_ = nullptr;
  std::size_t size_ = 0;
  unsigned char* begin_ = nullptr;
  unsigned char* end_ = nullptr;
  std::size_t bytes_ = 0;
};

// What is said about a tensor; `same_as` is an earlier one at the same address, or its own number, or -1 for NULL.
struct Tensor {
  std::int64_t bytes;
  std::int32_t same_as;
  std::int32_t misalignment;
};

enum { kX, kResidual, kScale, kBias, kGate, kY, kSum, kTensors };

void run(decltype(&rmsnorm_deploy_cpu_run) contract, decltype(&rmsnorm_deploy_cpu_run_gated) gated) {
  static Room rooms[kTensors];
  rms_norm_params params = receive<rms_norm_params>();
  rms_norm_gate gate = receive<rms_norm_gate>();
  Tensor tensors[kTensors];
  receive(tensors, sizeof tensors);
  unsigned char* addresses[kTensors] = {};
  std::vector<unsigned char> inputs[kTensors];
  for (int i = 0; i < kTensors; ++i) {
    const Tensor& t = tensors[i];
    if (t.same_as < 0) continue;
    if (t.same_as != i) {
      addresses[i] = addresses[t.same_as];
      continue;
    }
    const std::size_t bytes = static_cast<std::size_t>(t.bytes);
    addresses[i] = rooms[i].place(bytes, static_cast<std::size_t>(t.misalignment));
    if (i < kY) {
      inputs[i].resize(bytes);
      receive(inputs[i].data(), bytes);
      if (bytes) std::memcpy(addresses[i], inputs[i].data(), bytes);
    }
  }
  params.x = addresses[kX];
  params.residual = addresses[kResidual];
  params.scale = addresses[kScale];
  params.bias = addresses[kBias];
  params.y = addresses[kY];
  params.sum = addresses[kSum];
  gate.gate = addresses[kGate];
  const std::int32_t code = gated ? gated(&params, &gate) : contract(&params);

  std::int32_t damaged = 0;  // one bit for each tensor
  for (int i = 0; i < kTensors; ++i) {
    if (tensors[i].same_as != i) continue;
    bool whole = rooms[i].surroundings_are_whole();
    const bool written = tensors[kY].same_as == i || tensors[kSum].same_as == i;
    if (!written && !inputs[i].empty()) {
      whole = whole && std::memcmp(addresses[i], inputs[i].data(), inputs[i].size()) == 0;
    }
    if (!whole) damaged |= 1 << i;
  }
  send(code);
  send(damaged);
  if (code != RMS_NORM_OK) return;
  for (const int i : {kY, kSum}) {
    if (addresses[i]) send(addresses[i], static_cast<std::size_t>(tensors[i].bytes));
  }
}

template <typename Function>
Function* find(void* library, const char* name) {
  void* const found = symbol(library, name);
  if (!found) fail(why_not());
  return reinterpret_cast<Function*>(found);
}

}  // namespace

// The one argument is the library's path.
int main(int argc, char** argv) {
  if (argc != 2) fail("wants the library's path");
  binary_streams();
  void* const library = open_library(argv[1]);
  if (!library) fail(why_not());
  auto* const contract = find<decltype(rmsnorm_deploy_cpu_run)>(library, "rmsnorm_deploy_cpu_run");
  auto* const gated = find<decltype(rmsnorm_deploy_cpu_run_gated)>(library, "rmsnorm_deploy_cpu_run_gated");
  auto* const set_isa = find<decltype(rmsnorm_deploy_cpu_set_isa)>(library, "rmsnorm_deploy_cpu_set_isa");
  auto* const isa = find<decltype(rmsnorm_deploy_cpu_isa)>(library, "rmsnorm_deploy_cpu_isa");
  auto* const isa_at = find<decltype(rmsnorm_deploy_cpu_isa_at)>(library, "rmsnorm_deploy_cpu_isa_at");
  auto* const error_text = find<decltype(rmsnorm_deploy_error_text)>(library, "rmsnorm_deploy_error_text");
  std::int32_t command;
  while (std::fread(&command, sizeof command, 1, stdin) == 1) {
    if (command == kRun) {
      run(contract, nullptr);
    } else if (command == kRunGated) {
      run(nullptr, gated);
    } else if (command == kSetIsa) {
      std::vector<char> name(static_cast<std::size_t>(receive<std::int32_t>()) + 1);
      receive(name.data(), name.size() - 1);
      send(set_isa(name.data()));
    } else if (command == kIsa) {
      send_text(isa());
    } else if (command == kIsaAt) {
      int usable = 0;
      const char* const name = isa_at(receive<std::int32_t>(), &usable);
      send(usable);
      send_text(name);
    } else if (command == kErrorText) {
      send_text(error_text(receive<std::int32_t>()));
    } else {
      fail("unknown command");
    }
    std::fflush(stdout);
  }
  return 0;
}
