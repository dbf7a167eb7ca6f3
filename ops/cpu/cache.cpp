#include "cache.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace rmsnorm_deploy {
namespace {

// Where the system does not say: what a small server or a large laptop has.
constexpr std::int64_t kUsual = std::int64_t{32} << 20;

// As a number of bytes: no tensor has so many.
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// The largest cache that Linux lists for the first processor, or 0. The C library's own answer is missing on some
// processors and in some containers.
std::int64_t listed() noexcept {
  std::int64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    char path[80];
    std::snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
    std::FILE* file = std::fopen(path, "r");
    if (!file) break;
    long long size = 0;
    char unit = 0;
    if (std::fscanf(file, "%lld%c", &size, &unit) >= 1 && size > 0 && size < (1 << 30)) {
      const std::int64_t bytes = size << (unit == 'M' ? 20 : unit == 'K' ? 10 : 0);
      if (bytes > largest) largest = bytes;
    }
    std::fclose(file);
  }
  return largest;
}

// What the environment asks for: a number of bytes, 0 where it says nothing, or -1 where that is no number.
std::int64_t wanted() noexcept {
  const char* streaming = std::getenv("RMSNORM_DEPLOY_STREAMING");
  if (!streaming || !*streaming) return 0;
  std::int64_t value = 0;
  for (const char* digit = streaming; *digit; ++digit) {
    const std::int64_t next = *digit - '0';
    if (next < 0 || next > 9 || value > (kNever - next) / 10) return -1;
    value = value * 10 + next;
  }
  return value ? value : kNever;
}

std::int64_t found() noexcept {
  if (const std::int64_t asked = wanted()) return asked;
  const std::int64_t size = listed();
  // Half of it: other tensors, other programs and, in the cloud, other customers use it too.
  return (size ? size : kUsual) / 2;
}

std::atomic<std::int64_t> bytes{0};

}  // namespace

std::int64_t far_bytes() noexcept {
  std::int64_t known = bytes.load(std::memory_order_relaxed);
  if (!known) {
    known = found();  // two threads may both come here; they find the same
    if (known > 0) bytes.store(known, std::memory_order_relaxed);
  }
  return known;
}

}  // namespace rmsnorm_deploy
