// The address arithmetic of tensors with more than 2^32 elements, on a machine without that memory. A tensor is a range
// of addresses without memory behind it; only the places that the last units of work may touch can be read or written.
// Whatever is computed with fewer than 64 bits leads elsewhere and ends the program, or gives another result than the
// same values in a small tensor.
//
//   far_end CASE            run one case with all instruction sets;  0 right, 1 wrong, 3 touched elsewhere, 77 no room
//   far_end --list          the names of the cases
//   far_end whole LIBRARY   one row of more than 2^31 float16 values, through the contract of a built library
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "contract/check.h"
#include "cpu/gated.h"
#include "cpu/plan.h"
#include "cpu/scalar.h"

using namespace rmsnorm_deploy;

namespace {

constexpr int kWrong = 1;
constexpr int kElsewhere = 3;
constexpr int kNoRoom = 77;

void touched_elsewhere(int) {
  static const char text[] = "an address was touched that belongs to no unit of work\n";
  if (write(2, text, sizeof text - 1)) _exit(kElsewhere);
  _exit(kElsewhere);
}

void* mapped(void* address) {
  if (address != MAP_FAILED) return address;
  std::perror("mmap");
  std::exit(kNoRoom);
}

const std::uintptr_t page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));

// Addresses for a tensor, with as much again before and behind that must not be touched.
class Range {
 public:
  explicit Range(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    whole_ = static_cast<unsigned char*>(
        mapped(mmap(nullptr, 3 * bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)));
  }
  Range(const Range&) = delete;
  ~Range() { munmap(whole_, 3 * bytes_); }
  unsigned char* base() const { return whole_ + bytes_; }
  unsigned char* open(std::int64_t offset, std::int64_t count) {
    unsigned char* const begin = base() + offset;
    const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(begin) / page * page;
    const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(begin) + static_cast<std::uintptr_t>(count);
    if (mprotect(reinterpret_cast<void*>(first), end - first, PROT_READ | PROT_WRITE)) std::exit(kNoRoom);
    return begin;
  }

 private:
  std::size_t bytes_;
  unsigned char* whole_;
};

enum class Weight { kShared, kByOuter, kByColumn };

struct Case {
  const char* name;
  std::int32_t type;
  std::int32_t stash_type;
  std::int64_t outer, size, inner;
  Weight weight;
  bool residual, bias;
  std::int32_t place = -1;  // of a gate; -1: there is none
};

constexpr std::int64_t kTwo31 = std::int64_t{1} << 31;
constexpr std::int64_t kTwo32 = std::int64_t{1} << 32;
constexpr std::int32_t kF32 = RMS_NORM_FLOAT32, kF16 = RMS_NORM_FLOAT16, kF64 = RMS_NORM_FLOAT64,
                       kBf16 = RMS_NORM_BFLOAT16;

const Case kCases[] = {
    {"rows", kF32, kF32, kTwo31 / 67 + 100, 67, 1, Weight::kShared, false, false},
    {"rows float16", kF16, kF32, kTwo31 / 67 + 100, 67, 1, Weight::kShared, false, false},
    {"rows bfloat16 residual", kBf16, kF32, kTwo31 / 67 + 100, 67, 1, Weight::kShared, true, false},
    {"rows residual bias", kF32, kF32, kTwo31 / 67 + 100, 67, 1, Weight::kShared, true, true},
    {"rows beyond 2^32", kF16, kF32, kTwo32 + 100, 3, 1, Weight::kShared, true, false},
    {"rows scale by outer", kF16, kF32, kTwo31 / 67 + 100, 67, 1, Weight::kByOuter, false, true},
    {"columns", kF32, kF32, kTwo31 / 350 + 9, 5, 70, Weight::kShared, false, false},
    {"columns float16 residual bias", kF16, kF32, kTwo31 / 350 + 9, 5, 70, Weight::kShared, true, true},
    {"columns scale by outer", kF32, kF32, kTwo31 / 350 + 9, 5, 70, Weight::kByOuter, false, true},
    {"columns scale by column", kBf16, kF32, kTwo31 / 350 + 9, 5, 70, Weight::kByColumn, true, true},
    {"columns beyond 2^32", kF32, kF32, 1, 3, kTwo32 + 70, Weight::kShared, true, false},
    {"columns beyond 2^32 by column", kF16, kF32, 1, 3, kTwo32 + 70, Weight::kByColumn, false, true},
    {"double rows", kF64, kF64, kTwo31 / 67 + 100, 67, 1, Weight::kShared, true, false},
    {"double rows float16", kF16, kF64, kTwo31 / 67 + 100, 67, 1, Weight::kByOuter, false, true},
    {"double columns", kF64, kF64, kTwo31 / 350 + 9, 5, 70, Weight::kByColumn, true, true},
    {"double columns beyond 2^32", kF32, kF64, 1, 3, kTwo32 + 70, Weight::kByColumn, true, false},
    {"gated rows", kF32, kF32, kTwo31 / 67 + 100, 67, 1, Weight::kShared, false, false, RMS_NORM_GATED_FIRST},
    {"gated rows beyond 2^32", kF16, kF32, kTwo32 + 100, 3, 1, Weight::kByOuter, false, false, RMS_NORM_GATED_LAST},
    {"gated columns", kF16, kF32, kTwo31 / 350 + 9, 5, 70, Weight::kShared, false, false, RMS_NORM_GATED_NORMALISED},
    {"gated double columns beyond 2^32", kF32, kF64, 1, 3, kTwo32 + 70, Weight::kByColumn, false, false,
     RMS_NORM_GATED_FIRST},
};

std::mt19937 random_bits(1);

// Numbers between 1 and 2 in magnitude, of either sign.
void fill(unsigned char* data, std::int32_t type, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const double value = (1 + static_cast<double>(random_bits() % 1024) / 1024) * (random_bits() % 2 ? 1 : -1);
    switch (type) {
      case kF32:
        narrow(value, reinterpret_cast<float*>(data)[i]);
        break;
      case kF16:
        narrow(value, reinterpret_cast<Half*>(data)[i]);
        break;
      case kBf16:
        narrow(value, reinterpret_cast<Bfloat*>(data)[i]);
        break;
      default:
        reinterpret_cast<double*>(data)[i] = value;
    }
  }
}

// The elements of a tensor that some units of work have to do with: columns [begin, end) of one outer position.
struct Part {
  std::int64_t outer, begin, end;
};

// A part of a tensor [outer, size, inner], copied to a small one [size, columns].
std::vector<unsigned char> gathered(const unsigned char* base, const Case& c, const Part& part, std::int64_t bytes) {
  std::vector<unsigned char> found;
  for (std::int64_t i = 0; i < c.size; ++i) {
    const unsigned char* row = base + ((part.outer * c.size + i) * c.inner + part.begin) * bytes;
    found.insert(found.end(), row, row + (part.end - part.begin) * bytes);
  }
  return found;
}

void open_part(Range& range, const Case& c, const Part& part, std::int32_t type) {
  const std::int64_t bytes = element_size(type);
  for (std::int64_t i = 0; i < c.size; ++i) {
    const std::int64_t count = part.end - part.begin;
    fill(range.open(((part.outer * c.size + i) * c.inner + part.begin) * bytes, count * bytes), type, count);
  }
}

// Scale or bias of a case: the parts of it that are used, or all of a shared one.
void open_weights(Range& range, const Case& c, const std::vector<Part>& parts, std::int32_t type) {
  const std::int64_t bytes = element_size(type);
  if (c.weight == Weight::kShared) fill(range.open(0, c.size * bytes), type, c.size);
  for (const Part& part : parts) {
    if (c.weight == Weight::kByColumn) open_part(range, c, part, type);
    if (c.weight == Weight::kByOuter) {
      fill(range.open(part.outer * c.size * bytes, c.size * bytes), type, c.size);
    }
  }
}

std::vector<unsigned char> gathered_weights(const unsigned char* base, const Case& c, const Part& part,
                                            std::int64_t bytes) {
  if (c.weight == Weight::kByColumn) return gathered(base, c, part, bytes);
  const unsigned char* row = base + (c.weight == Weight::kByOuter ? part.outer * c.size * bytes : 0);
  return std::vector<unsigned char>(row, row + c.size * bytes);
}

rms_norm_params params_of(const Case& c, std::int64_t outer, std::int64_t inner) {
  rms_norm_params p = {};
  p.version = RMS_NORM_PARAMS_VERSION;
  p.x_type = c.type;
  p.stash_type = c.stash_type;
  p.scale_type = p.round_type = c.stash_type;
  p.rank = 3;
  p.axis_begin = 1;
  p.axis_count = 1;
  p.shape[0] = outer;
  p.shape[1] = c.size;
  p.shape[2] = inner;
  p.scale_strides[0] = c.weight == Weight::kByColumn ? c.size * inner : c.weight == Weight::kByOuter ? c.size : 0;
  p.scale_strides[1] = c.weight == Weight::kByColumn ? inner : 1;
  p.scale_strides[2] = c.weight == Weight::kByColumn ? 1 : 0;
  std::copy(p.scale_strides, p.scale_strides + 3, p.bias_strides);
  p.partial_size = INT64_MAX;
  p.epsilon = 1e-6f;
  return p;
}

// The last units of one call, or all where `last` is negative; the gate is of float32. A code of the contract.
int run_units(const Case& c, const rms_norm_params& p, const unsigned char* gate, std::int64_t last) {
  const auto from = [last](const auto& plan) { return last < 0 ? 0 : plan.units() - last; };
  Plan plan;
  GatedPlan gated;
  const rms_norm_gate given = {RMS_NORM_GATE_VERSION, kF32, RMS_NORM_SILU, c.place, gate};
  const int code = c.place < 0 ? plan.prepare(p, true) : gated.prepare(p, given, true);
  if (code != RMS_NORM_OK) return std::puts(rmsnorm_deploy_error_text(code)), code;
  c.place < 0 ? plan.run(Tensors(p), from(plan), plan.units()) : gated.run(from(gated), gated.units());
  return RMS_NORM_OK;
}

int run_case(const Case& c) {
  const std::int64_t bytes = element_size(c.type), weight_bytes = element_size(c.stash_type);
  const std::int64_t count = c.outer * c.size * c.inner;
  const std::int64_t weight_count = c.weight == Weight::kByColumn  ? count
                                    : c.weight == Weight::kByOuter ? c.outer * c.size
                                                                   : c.size;
  Range x(count * bytes), residual(c.residual ? count * bytes : 1), y(count * bytes),
      sum(c.residual ? count * bytes : 1), gate(c.place < 0 ? 1 : count * 4), scale(weight_count * weight_bytes),
      bias(weight_count * weight_bytes);

  // The last units of work: three rows, or three columns, or the last two tiles of columns.
  std::vector<Part> parts;
  std::int64_t units = 3;
  if (c.inner == 1) {
    for (std::int64_t o = c.outer - units; o < c.outer; ++o) parts.push_back({o, 0, 1});
  } else if (c.stash_type == kF64 || c.place >= 0) {
    parts.push_back({c.outer - 1, c.inner - units, c.inner});
  } else {
    units = 2;
    const std::int64_t tiles = (c.inner + kColumnTile - 1) / kColumnTile;
    parts.push_back({c.outer - 1, (tiles - units) * kColumnTile, c.inner});
  }
  for (const Part& part : parts) {
    for (Range* range : {&x, &y}) open_part(*range, c, part, c.type);
    if (c.place >= 0) open_part(gate, c, part, kF32);
    if (c.residual) {
      for (Range* range : {&residual, &sum}) open_part(*range, c, part, c.type);
    }
  }
  open_weights(scale, c, parts, c.stash_type);
  open_weights(bias, c, parts, c.stash_type);

  rms_norm_params p = params_of(c, c.outer, c.inner);
  p.x = x.base();
  p.y = y.base();
  p.scale = scale.base();
  if (c.residual) p.residual = residual.base();
  if (c.residual) p.sum = sum.base();
  if (c.bias) p.bias = bias.base();
  if (run_units(c, p, gate.base(), units)) return kWrong;

  for (const Part& part : parts) {
    const std::vector<unsigned char> small_x = gathered(x.base(), c, part, bytes);
    const std::vector<unsigned char> small_scale = gathered_weights(scale.base(), c, part, weight_bytes);
    const std::vector<unsigned char> small_bias = gathered_weights(bias.base(), c, part, weight_bytes);
    std::vector<unsigned char> small_y(small_x.size()), small_sum(small_x.size()), small_residual;
    rms_norm_params q = params_of(c, 1, part.end - part.begin);
    q.x = small_x.data();
    q.y = small_y.data();
    q.scale = small_scale.data();
    if (c.bias) q.bias = small_bias.data();
    if (c.residual) {
      small_residual = gathered(residual.base(), c, part, bytes);
      q.residual = small_residual.data();
      q.sum = small_sum.data();
    }
    std::vector<unsigned char> small_gate;
    if (c.place >= 0) small_gate = gathered(gate.base(), c, part, 4);
    if (run_units(c, q, small_gate.data(), -1)) return kWrong;
    if (gathered(y.base(), c, part, bytes) != small_y)
      return std::puts("y differs from that of a small tensor"), kWrong;
    if (c.residual && gathered(sum.base(), c, part, bytes) != small_sum) {
      return std::puts("sum differs from that of a small tensor"), kWrong;
    }
  }
  return 0;
}

// A scale that has to be converted, with 2^32 elements from one row of it to the next.
int run_converted_scale() {
  constexpr std::int64_t kSize = 64;
  Range scale((kTwo32 + kSize) * 2);
  std::vector<unsigned char> x(2 * kSize * 4), y(x.size()), again(x.size()), near_scale(2 * kSize * 2);
  fill(x.data(), kF32, 2 * kSize);
  fill(near_scale.data(), kF16, 2 * kSize);
  for (std::int64_t row = 0; row < 2; ++row) {
    std::memcpy(scale.open(row * kTwo32 * 2, kSize * 2), near_scale.data() + row * kSize * 2, kSize * 2);
  }
  rms_norm_params p = params_of({"", kF32, kF32, 2, kSize, 1, Weight::kByOuter, false, false}, 2, 1);
  p.scale_type = kF16;
  p.x = x.data();
  p.y = y.data();
  p.scale = near_scale.data();
  if (rmsnorm_deploy_cpu_run(&p)) return kWrong;
  p.y = again.data();
  p.scale = scale.base();
  p.scale_strides[0] = kTwo32;
  if (rmsnorm_deploy_cpu_run(&p)) return kWrong;
  return y == again ? 0 : kWrong;
}

// ---------------------------------------------------------------------------------------------------------------------
// A whole run: the same few pages again and again under all addresses of a tensor

class Repeated {
 public:
  Repeated(std::int64_t window, std::int64_t bytes) : bytes_((bytes + window - 1) / window * window) {
    const int file = memfd_create("window", 0);
    if (file < 0 || ftruncate(file, window)) std::exit(kNoRoom);
    base_ = static_cast<unsigned char*>(mapped(mmap(nullptr, static_cast<std::size_t>(bytes_), PROT_NONE,
                                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)));
    for (std::int64_t at = 0; at < bytes_; at += window) {
      mapped(mmap(base_ + at, static_cast<std::size_t>(window), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_FIXED | MAP_POPULATE, file, 0));
    }
    close(file);
  }
  Repeated(const Repeated&) = delete;
  ~Repeated() { munmap(base_, static_cast<std::size_t>(bytes_)); }
  unsigned char* base() const { return base_; }

 private:
  std::int64_t bytes_;
  unsigned char* base_;
};

int run_whole(const char* library) {
  void* const handle = dlopen(library, RTLD_NOW);
  if (!handle) return std::puts(dlerror()), kWrong;
  const auto run = reinterpret_cast<int (*)(const rms_norm_params*)>(dlsym(handle, "rmsnorm_deploy_cpu_run"));
  // Windows of an odd number of pages: what is 2^31 or 2^32 elements or bytes away is never the same place.
  const std::int64_t pages = static_cast<std::int64_t>(page);
  const std::int64_t x_window = 257 * pages, y_window = 509 * pages, scale_window = 1021 * pages;
  const std::int64_t x_period = x_window / 2, y_period = y_window / 2, scale_period = scale_window / 4;
  const std::int64_t count = kTwo31 + 12345;
  Repeated x(x_window, count * 2), y(y_window, count * 2), scale(scale_window, count * 4);
  fill(x.base(), kF16, x_period);
  fill(scale.base(), kF32, scale_period);

  rms_norm_params p = params_of({"", kF16, kF32, 1, count, 1, Weight::kShared, false, false}, 1, 1);
  p.x = x.base();
  p.y = y.base();
  p.scale = scale.base();
  if (const int code = run(&p)) return std::printf("code %d\n", code), kWrong;

  const Half* const xs = reinterpret_cast<const Half*>(x.base());
  const Half* const ys = reinterpret_cast<const Half*>(y.base());
  const float* const scales = reinterpret_cast<const float*>(scale.base());
  double period = 0, rest = 0;
  for (std::int64_t i = 0; i < x_period; ++i) {
    const double square = widen(xs[i]) * widen(xs[i]);
    period += square;
    if (i < count % x_period) rest += square;
  }
  const double mean = (period * static_cast<double>(count / x_period) + rest) / static_cast<double>(count);
  const double rms = std::sqrt(mean + static_cast<double>(p.epsilon));
  // What is left in the window of y is what was written there last.
  std::int64_t moved = 0;
  for (std::int64_t i = count - y_period; i < count; ++i) {
    Half wanted;
    narrow(widen(xs[i % x_period]) / rms * static_cast<double>(scales[i % scale_period]), wanted);
    const int off = std::abs(static_cast<int>(wanted.bits) - static_cast<int>(ys[i % y_period].bits));
    if (off > 1) return std::printf("element %lld is wrong\n", static_cast<long long>(i)), kWrong;
    moved += off;
  }
  std::printf("%lld of %lld on the other side of a tie\n", static_cast<long long>(moved),
              static_cast<long long>(y_period));
  return moved * 1000 <= y_period ? 0 : kWrong;
}

constexpr char kConverted[] = "converted scale";

}  // namespace

int main(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  signal(SIGSEGV, touched_elsewhere);
  signal(SIGBUS, touched_elsewhere);
  if (wanted == "--list") {
    for (const Case& c : kCases) std::puts(c.name);
    std::puts(kConverted);
    return 0;
  }
  if (wanted == "whole" && argc == 3) return run_whole(argv[2]);
  int usable = 0;
  bool found = false;
  for (int i = 0; const char* isa = rmsnorm_deploy_cpu_isa_at(i, &usable); ++i) {
    if (!usable || rmsnorm_deploy_cpu_set_isa(isa)) continue;
    std::printf("%s: ", isa);
    for (const Case& c : kCases) {
      if (wanted != c.name) continue;
      found = true;
      if (const int code = run_case(c)) return code;
    }
    if (wanted == kConverted) {
      found = true;
      if (const int code = run_converted_scale()) return std::puts("the scale was read elsewhere"), code;
    }
    std::puts("right");
  }
  return found ? 0 : (std::puts("there is no such case"), kWrong);
}
