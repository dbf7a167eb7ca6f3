// Copies of whole tensors, the floor of a norm's time: compiled and called by benchmarks/floor.py.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kSerialBytes = 256 * 1024;  // less is not worth a second thread
constexpr int kSpins = 20000;

// Keeps the compiler from turning the loop into a call of memcpy, which streams large copies of its own accord.
inline void keep_loop() { asm volatile("" ::: "memory"); }

void copy_plain(char* target, const char* source, std::size_t bytes) {
  std::size_t i = 0;
  for (; i + kLine <= bytes; i += kLine) {
    std::memcpy(target + i, source + i, kLine);
    keep_loop();
  }
  std::memcpy(target + i, source + i, bytes - i);
}

#if defined(__x86_64__)
constexpr bool kHasStreaming = true;

// The target begins on a cache line.
void copy_streaming(char* target, const char* source, std::size_t bytes) {
  std::size_t i = 0;
  for (; i + kLine <= bytes; i += kLine) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + i), _mm512_loadu_si512(source + i));
#elif defined(__AVX__)
    for (int part = 0; part < 64; part += 32)
      _mm256_stream_si256(reinterpret_cast<__m256i*>(target + i + part),
                          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i + part)));
#else
    for (int part = 0; part < 64; part += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(target + i + part),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i + part)));
#endif
  }
  std::memcpy(target + i, source + i, bytes - i);
  _mm_sfence();
}
#else
constexpr bool kHasStreaming = false;

void copy_streaming(char* target, const char* source, std::size_t bytes) { copy_plain(target, source, bytes); }
#endif

struct Copy {
  char* target;
  const char* source;
  std::size_t bytes;
  bool streaming;

  void run(int part, int parts) const {
    const std::size_t lines = (bytes + kLine - 1) / kLine;
    const std::size_t begin = std::min(bytes, lines * part / parts * kLine);
    const std::size_t end = std::min(bytes, lines * (part + 1) / parts * kLine);
    (streaming ? copy_streaming : copy_plain)(target + begin, source + begin, end - begin);
  }
};

// Workers that wait for the next copy: first spinning, then asleep, as those of an onnxruntime session do.
class Pool {
 public:
  // Worker i of the next ones runs on CPU i of these; one without a CPU is free.
  void pin(const int* cpus, int count) { cpus_.assign(cpus, cpus + count); }

  void run(const Copy& copy, int parts) {
    grow(parts - 1);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      copy_ = copy;
      parts_ = parts;
      left_.store(workers_);
      turn_.fetch_add(1);
    }
    wake_.notify_all();
    copy.run(0, parts);
    while (left_.load(std::memory_order_acquire) > 0) std::this_thread::yield();
  }

 private:
  void grow(int workers) {
    for (; workers_ < workers; ++workers_)
      std::thread([this, id = workers_ + 1, turn = turn_.load()] { work(id, turn); }).detach();
  }

  void place(int id) const {
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    if (id - 1 < static_cast<int>(cpus_.size())) {
      CPU_SET(cpus_[id - 1], &set);
      pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    }
#else
    (void)id;
#endif
  }

  void work(int id, unsigned seen) {
    place(id);
    for (;;) {
      for (int i = 0; i < kSpins && turn_.load(std::memory_order_acquire) == seen; ++i) {
#if defined(__x86_64__)
        _mm_pause();
#endif
      }
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return turn_.load() != seen; });
      seen = turn_.load();
      const Copy copy = copy_;
      const int parts = parts_;
      lock.unlock();
      if (id < parts) copy.run(id, parts);
      left_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<unsigned> turn_{0};
  std::atomic<int> left_{0};
  Copy copy_{};
  std::vector<int> cpus_;
  int parts_ = 0;
  int workers_ = 0;
};

Pool& pool() {
  static Pool* made = new Pool;  // never destroyed: its threads outlive main
  return *made;
}

}  // namespace

extern "C" int floor_has_streaming(void) { return kHasStreaming; }

// The CPUs of the threads beside the calling one; before the first copy.
extern "C" void floor_pin(const int* cpus, int count) { pool().pin(cpus, count); }

// Copies each of `count` tensors of `bytes` bytes, `repetitions` times over. Targets begin on a cache line.
extern "C" void floor_copy(char** targets, char** sources, int count, std::size_t bytes, int streaming, int threads,
                           int repetitions) {
  for (int i = 0; i < repetitions; ++i) {
    for (int t = 0; t < count; ++t) {
      const Copy copy{targets[t], sources[t], bytes, streaming != 0};
      if (threads < 2 || bytes < kSerialBytes)
        copy.run(0, 1);
      else
        pool().run(copy, threads);
    }
  }
}
