// Runs kernels on the host: every thread of a block is a fiber, which goes on until it waits for others, at a barrier
// or in an exchange between lanes. Which of those that can go on does so next is drawn at random, so that a result that
// depends on the order shows; and one warp at a time is held back as far as barriers let it. Blocks run one after the
// other, in random order too.
//
// A run stops with a message at: a barrier or exchange that not all come to; an access outside the memory of
// emulator_allocate(), or at an address that is not a multiple of its size; a write behind the shared memory asked for;
// more shared memory than was asked for or exists; signed overflow; in a grid that begins before earlier ones have
// ended, an access before all threads of the block wait for those, or a thread that never does. Shared memory starts as
// NaN, and an exchange with a lane that does not take part gives NaN.
#include <cxxabi.h>
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda_pipeline.h"
#include "cuda_runtime.h"

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace rmsnorm_deploy {
namespace cuda {
constexpr std::size_t kSharedBytes = 256 * 1024;
alignas(16) uint4 shared_memory[kSharedBytes / 16];
}  // namespace cuda
}  // namespace rmsnorm_deploy

namespace {

using rmsnorm_deploy::cuda::kSharedBytes;
using rmsnorm_deploy::cuda::shared_memory;

constexpr std::size_t kStack = 128 * 1024;
constexpr unsigned kLanes = 32;

enum class State { kReady, kBarrier, kExchange, kEarlier, kDone };

struct Copy {
  void* to;
  const void* from;
  std::size_t bytes;
};

struct Fiber {
  std::vector<std::vector<Copy>> copies;  // that are waited for yet, in groups; the last one is open
  std::unique_ptr<unsigned char[]> stack;
  ucontext_t start;
  jmp_buf resume;
  bool started;
  State state;
  bool vote;
  unsigned mask;
  int offset;
  std::size_t bytes;
  unsigned char value[8];
};

std::vector<Fiber> fibers;
std::size_t current;
jmp_buf scheduler;
sigjmp_buf stop;
const std::function<void()>* body;
bool voted;
bool running = false;
std::string message;
std::string kernel_name;
std::mt19937 random_order;
int multiprocessors = 4;
int shared_limit = 232448;
std::int64_t first_block = 0;
std::int64_t block_count = -1;
std::map<const void*, int> shared_allowed;

std::map<void*, std::size_t> memory;  // what emulator_allocate() has given out, whole pages
bool too_early = false;               // for any access

void allow_memory(bool allowed) {
  for (const auto& [begin, bytes] : memory) mprotect(begin, bytes, allowed ? PROT_READ | PROT_WRITE : PROT_NONE);
  too_early = !allowed;
}

// A warp that goes on only when no other can, so that a thread can be far behind: drawn again at every barrier.
std::size_t slow_warp = 0;

void draw_slow_warp(std::size_t count) { slow_warp = random_order() % ((count + kLanes - 1) / kLanes); }

[[noreturn]] void fail(const std::string& what) {
  message = what + " (kernel " + kernel_name + ", block " + std::to_string(blockIdx.x) + ", thread " +
            std::to_string(threadIdx.x) + ")";
  siglongjmp(stop, 1);
}

void wait(State state) {
  fibers[current].state = state;
  if (_setjmp(fibers[current].resume) == 0) _longjmp(scheduler, 1);
}

void fiber_main() {
  (*body)();
  fibers[current].state = State::kDone;
  _longjmp(scheduler, 1);
}

void resume(std::size_t index) {
  current = index;
  threadIdx = {static_cast<unsigned>(index), 0, 0};
  Fiber& fiber = fibers[index];
  if (_setjmp(scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.resume, 1);
  fiber.started = true;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = kStack;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, fiber_main, 0);
  setcontext(&fiber.start);
}

// Whether all lanes that `fiber` waits for have come to the same exchange.
bool complete(std::size_t index, std::size_t count) {
  const Fiber& fiber = fibers[index];
  const std::size_t warp = index / kLanes * kLanes;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (!(fiber.mask >> lane & 1u)) continue;
    if (warp + lane >= count) return false;
    const Fiber& other = fibers[warp + lane];
    if (other.state != State::kExchange || other.mask != fiber.mask || other.offset != fiber.offset ||
        other.bytes != fiber.bytes) {
      return false;
    }
  }
  return true;
}

void finish_exchanges(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (fibers[i].state != State::kExchange || !complete(i, count)) continue;
    const std::size_t warp = i / kLanes * kLanes;
    const unsigned mask = fibers[i].mask;
    unsigned char sent[kLanes][8];
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      std::memset(sent[lane], 0xff, 8);
      if (mask >> lane & 1u) std::memcpy(sent[lane], fibers[warp + lane].value, 8);
    }
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      if (!(mask >> lane & 1u)) continue;
      Fiber& fiber = fibers[warp + lane];
      const unsigned from = lane ^ static_cast<unsigned>(fiber.offset);
      if (from < kLanes) std::memcpy(fiber.value, sent[from], 8);
      fiber.state = State::kReady;
    }
  }
}

void run_block(std::size_t count, std::size_t shared, bool early) {
  if (early) allow_memory(false);
  std::memset(shared_memory, 0xff, std::min(kSharedBytes, shared + 16384));
  for (std::size_t i = 0; i < count; ++i) {
    fibers[i].state = State::kReady;
    fibers[i].started = false;
    fibers[i].copies.assign(1, {});
  }
  draw_slow_warp(count);
  std::vector<std::size_t> ready;
  for (;;) {
    ready.clear();
    std::size_t done = 0;
    std::size_t waiting = 0;
    std::size_t beginning = 0;
    for (std::size_t i = 0; i < count; ++i) {
      beginning += fibers[i].state == State::kEarlier;
      if (fibers[i].state == State::kReady) ready.push_back(i);
      done += fibers[i].state == State::kDone;
      waiting += fibers[i].state == State::kBarrier;
    }
    if (ready.empty()) {
      if (too_early && beginning != count) fail("a thread that does not wait for earlier grids");
      if (too_early) {
        allow_memory(true);
        for (std::size_t i = 0; i < count; ++i) fibers[i].state = State::kReady;
        continue;
      }
      if (done == count) break;
      if (waiting != count) {
        fail("divergent: " + std::to_string(waiting) + " threads wait at a barrier, " + std::to_string(done) +
             " have finished, " + std::to_string(count - waiting - done) + " wait for other lanes");
      }
      voted = false;
      for (std::size_t i = 0; i < count; ++i) voted = voted || fibers[i].vote;
      for (std::size_t i = 0; i < count; ++i) fibers[i].state = State::kReady;
      draw_slow_warp(count);
      continue;
    }
    const auto is_slow = [](std::size_t i) { return i / kLanes == slow_warp; };
    if (!std::all_of(ready.begin(), ready.end(), is_slow)) {
      ready.erase(std::remove_if(ready.begin(), ready.end(), is_slow), ready.end());
    }
    std::shuffle(ready.begin(), ready.end(), random_order);
    for (const std::size_t i : ready) resume(i);
    finish_exchanges(count);
  }
  const auto* const bytes = reinterpret_cast<const unsigned char*>(shared_memory);
  for (std::size_t i = shared; i < std::min(kSharedBytes, shared + 16384); ++i) {
    if (bytes[i] != 0xff) fail("a write behind the shared memory, at byte " + std::to_string(i));
  }
}

void on_signal(int number, siginfo_t* info, void*) {
  if (!running) {
    signal(number, SIG_DFL);
    return;
  }
  char text[96];
  const char* const what = too_early ? "too early, or out of bounds" : "out of bounds";
  std::snprintf(text, sizeof text, "%s: address %p", what, info->si_addr);
  fail(text);
}

std::string name_of(const void* kernel) {
  Dl_info info = {};
  if (!dladdr(kernel, &info) || !info.dli_sname) return "?";
  int status = 0;
  char* const name = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  const std::string result = name ? name : info.dli_sname;
  std::free(name);
  return result;
}

}  // namespace

namespace emulator {

void barrier() { barrier_or(false); }

bool barrier_or(bool value) {
  fibers[current].vote = value;
  wait(State::kBarrier);
  return voted;
}

void wait_for_earlier_grids() {
  if (too_early) wait(State::kEarlier);
}

void exchange(unsigned mask, void* value, std::size_t bytes, int offset) {
  Fiber& fiber = fibers[current];
  if (!(mask >> (current % kLanes) & 1u)) fail("a lane exchanges without being in its own mask");
  fiber.mask = mask;
  fiber.offset = offset;
  fiber.bytes = bytes;
  std::memcpy(fiber.value, value, bytes);
  wait(State::kExchange);
  std::memcpy(value, fibers[current].value, bytes);
}

void copy(void* to, const void* from, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(to);
  const auto begin = reinterpret_cast<std::uintptr_t>(shared_memory);
  if (address < begin || address + bytes > begin + kSharedBytes) fail("a copy that does not go to shared memory");
  if (address % bytes != 0 || reinterpret_cast<std::uintptr_t>(from) % bytes != 0) fail("a misaligned copy");
  if (random_order() % 2 != 0) {
    std::memcpy(to, from, bytes);
  } else {
    fibers[current].copies.back().push_back({to, from, bytes});
  }
}
void end_of_copies() { fibers[current].copies.emplace_back(); }
void wait_for_copies(std::size_t later) {
  std::vector<std::vector<Copy>>& copies = fibers[current].copies;
  while (copies.size() - 1 > later) {
    for (const Copy& copy : copies.front()) std::memcpy(copy.to, copy.from, copy.bytes);
    copies.erase(copies.begin());
  }
}

float estimate(double exact) {
  float value = static_cast<float>(exact);
  if (!std::isfinite(value) || value == 0) return value;
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const int off = static_cast<int>(bits * 2654435761u >> 16) % 5 - 2;
  for (int i = 0; i < std::abs(off); ++i) value = std::nextafter(value, off < 0 ? 0.0f : 2 * value);
  return value;
}

Machine machine;

int attribute(int which) { return which == cudaDevAttrMultiProcessorCount ? multiprocessors : shared_limit; }

int failed() { return !message.empty(); }

void run(const void* kernel, const dim3& grid, const dim3& block, std::size_t shared, bool early,
         const std::function<void()>& thread) {
  message.clear();
  kernel_name = name_of(kernel);
  gridDim = grid;
  blockDim = block;
  body = &thread;
  const std::size_t count = block.x;
  while (fibers.size() < count) {
    fibers.emplace_back();
    fibers.back().stack = std::make_unique<unsigned char[]>(kStack);
  }
  // What a signal handler runs on, as the stack of a fiber may be what is broken.
  static unsigned char handler_stack[64 * 1024];
  stack_t stack = {};
  stack.ss_sp = handler_stack;
  stack.ss_size = sizeof handler_stack;
  stack_t old_stack;
  sigaltstack(&stack, &old_stack);
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  struct sigaction old_segv;
  struct sigaction old_bus;
  sigaction(SIGSEGV, &action, &old_segv);
  sigaction(SIGBUS, &action, &old_bus);
  if (sigsetjmp(stop, 1) == 0) {
    running = true;
    if (shared > static_cast<std::size_t>(shared_limit) ||
        (shared > 48 * 1024 && static_cast<int>(shared) > shared_allowed[kernel])) {
      fail("more shared memory than allowed");
    }
    if (grid.x == 0 || count == 0 || count > 1024 || count % kLanes != 0) fail("a wrong grid or block");
    const std::int64_t blocks = block_count < 0 ? grid.x : std::min<std::int64_t>(grid.x - first_block, block_count);
    std::vector<unsigned> order(static_cast<std::size_t>(blocks));
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<unsigned>(first_block + i);
    std::shuffle(order.begin(), order.end(), random_order);
    for (const unsigned i : order) {
      blockIdx = {i, 0, 0};
      run_block(count, shared, early);
    }
  }
  running = false;
  if (too_early) allow_memory(true);
  sigaction(SIGSEGV, &old_segv, nullptr);
  sigaction(SIGBUS, &old_bus, nullptr);
  sigaltstack(&old_stack, nullptr);
}

}  // namespace emulator

cudaError_t cudaFuncSetAttribute(const void* kernel, int, int value) {
  // A launch of another thread that relies on the higher limit would fail.
  if (shared_allowed[kernel] > value) return cudaErrorInvalidValue;
  shared_allowed[kernel] = value;
  return cudaSuccess;
}

// What the compiler calls where -fsanitize finds something. The layout of the first argument is the compiler's.
struct Source {
  const char* file;
  std::uint32_t line;
  std::uint32_t column;
};
struct Mismatch {
  Source source;
  const void* type;
  unsigned char log_alignment;
  unsigned char kind;
};

namespace {
[[noreturn]] void found(const char* what, const Source& source) {
  const std::string file = source.file ? source.file : "?";
  fail(std::string(what) + " at " + file.substr(file.rfind('/') + 1) + ":" + std::to_string(source.line));
}
}  // namespace

extern "C" {

void __ubsan_handle_type_mismatch_v1_abort(Mismatch* data, std::uintptr_t) {
  found(("misaligned: needs a multiple of " + std::to_string(1 << data->log_alignment)).c_str(), data->source);
}
void __ubsan_handle_add_overflow_abort(Source* data, std::uintptr_t, std::uintptr_t) { found("overflow", *data); }
void __ubsan_handle_sub_overflow_abort(Source* data, std::uintptr_t, std::uintptr_t) { found("overflow", *data); }
void __ubsan_handle_mul_overflow_abort(Source* data, std::uintptr_t, std::uintptr_t) { found("overflow", *data); }
void __ubsan_handle_divrem_overflow_abort(Source* data, std::uintptr_t, std::uintptr_t) { found("overflow", *data); }
void __ubsan_handle_negate_overflow_abort(Source* data, std::uintptr_t) { found("overflow", *data); }
void __ubsan_handle_out_of_bounds_abort(Source* data, std::uintptr_t) { found("array index out of bounds", *data); }

// The error of the last run, or "".
const char* emulator_message() { return message.c_str(); }
const char* emulator_kernel() { return kernel_name.c_str(); }
void emulator_seed(unsigned seed) { random_order.seed(seed); }
void emulator_device(int processors, int shared) {
  multiprocessors = processors;
  shared_limit = shared;
  ++emulator::machine.current;
  emulator::machine.asked = 0;
}
// Several devices, with all memory on one of them; and whether the stream is being captured.
void emulator_machine(int devices, int of_memory, int capturing) {
  emulator::machine.devices = devices;
  emulator::machine.of_memory = of_memory;
  emulator::machine.capturing = capturing != 0;
}
int emulator_current() { return emulator::machine.current; }
// What architecture the kernels' code is of; launches that did not wait for earlier grids.
void emulator_ptx(int architecture) { emulator::machine.ptx = architecture; }
int emulator_early() { return emulator::machine.early; }
int emulator_asked() { return emulator::machine.asked; }
// Run only these blocks; a negative count is all.
void emulator_blocks(std::int64_t first, std::int64_t count) {
  first_block = first;
  block_count = count;
}

// Memory that ends (`at_end`) or begins exactly at a page that nobody may touch. Never written pages cost nothing.
void* emulator_allocate(std::size_t bytes, int at_end, void** whole, std::size_t* whole_bytes) {
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t room = (bytes + page - 1) / page * page;
  *whole_bytes = room + 2 * page;
  *whole = mmap(nullptr, *whole_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (*whole == MAP_FAILED) return nullptr;
  unsigned char* const begin = static_cast<unsigned char*>(*whole) + page;
  if (room) mprotect(begin, room, PROT_READ | PROT_WRITE);
  if (room) memory[begin] = room;
  return at_end ? begin + (room - bytes) : begin;
}
void emulator_free(void* whole, std::size_t bytes) {
  memory.erase(static_cast<unsigned char*>(whole) + sysconf(_SC_PAGESIZE));
  munmap(whole, bytes);
}

}  // extern "C"
