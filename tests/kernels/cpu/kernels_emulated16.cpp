// The kernels on sixteen lanes with masks, as isa/avx512.cpp has them, for any machine: a lane at a time in plain
// C++. Stands in the place of the portable kernels, in a library that is built for tests only.
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "../../../ops/cpu/scalar.h"

#define INLINE static inline  // left to the compiler: to inline all of this takes it half a minute

#include "../../../ops/cpu/formula.h"

using namespace rmsnorm_deploy;  // NOLINT: a test's own file

namespace {

constexpr int kLanes = 16;

struct Vector {
  float lanes[kLanes];
};

template <typename Function>
INLINE Vector each(Function function) {
  Vector v;
  for (int i = 0; i < kLanes; ++i) v.lanes[i] = function(i);
  return v;
}

// One value; those of 16 bits are exact floats, and a float is exact in the double that scalar.h rounds from.
template <typename T>
INLINE float read(T value) {
  return static_cast<float>(widen(value));
}
INLINE float read(float value) { return value; }

INLINE void write(float value, float& result) { result = value; }
template <typename T>
INLINE void write(float value, T& result) {
  narrow(widen(value), result);
}

INLINE Vector set1(float value) {
  return each([=](int) { return value; });
}

#define HAS_MASKS
template <typename T>
INLINE Vector load_first(const T* p, std::int64_t count) {
  return each([=](int i) { return i < count ? read(p[i]) : 0.0f; });
}
template <typename T>
INLINE void store_first(T* p, Vector v, std::int64_t count) {
  for (int i = 0; i < count; ++i) write(v.lanes[i], p[i]);
}
template <typename T>
INLINE Vector load(const T* p) {
  return load_first(p, kLanes);
}
template <typename T>
INLINE void store(T* p, Vector v) {
  store_first(p, v, kLanes);
}

#define HAS_STREAM
// Like the instruction, ends the program where the address is not aligned to what is stored.
template <typename T>
INLINE void stream(T* p, Vector v) {
  if (reinterpret_cast<std::uintptr_t>(p) % (kLanes * sizeof(T))) std::abort();
  store(p, v);
}
INLINE void stream_end() {}

template <typename T>
INLINE Vector rounded(Vector v, const T*) {
  T memory[kLanes];
  store(memory, v);
  return load(memory);
}

INLINE Vector operator+(Vector a, Vector b) {
  return each([&](int i) { return a.lanes[i] + b.lanes[i]; });
}
INLINE Vector operator*(Vector a, Vector b) {
  return each([&](int i) { return a.lanes[i] * b.lanes[i]; });
}
INLINE Vector operator/(Vector a, Vector b) {
  return each([&](int i) { return a.lanes[i] / b.lanes[i]; });
}
INLINE Vector multiply_add(Vector a, Vector b, Vector c) {
  return each([&](int i) { return std::fma(a.lanes[i], b.lanes[i], c.lanes[i]); });
}
INLINE Vector square_add(Vector v, Vector total) { return multiply_add(v, v, total); }

// The larger, and the smaller, of each lane; that of `bound` where v is a NaN.
INLINE Vector at_least(Vector v, Vector bound) {
  return each([&](int i) { return v.lanes[i] > bound.lanes[i] ? v.lanes[i] : bound.lanes[i]; });
}
INLINE Vector at_most(Vector v, Vector bound) {
  return each([&](int i) { return v.lanes[i] < bound.lanes[i] ? v.lanes[i] : bound.lanes[i]; });
}

struct Words {
  std::int32_t lanes[kLanes];
};
INLINE Words whole(Vector v, std::int32_t more) {
  Words w;
  for (int i = 0; i < kLanes; ++i) w.lanes[i] = static_cast<std::int32_t>(std::nearbyint(v.lanes[i])) + more;
  return w;
}
#define HAS_BYTE_MASKS
INLINE void store_bytes_first(unsigned char* p, Words w, std::int64_t count) {
  for (int i = 0; i < count; ++i) p[i] = static_cast<unsigned char>(w.lanes[i]);
}
INLINE void store_bytes(unsigned char* p, Words w) { store_bytes_first(p, w, kLanes); }

#define HAS_DISTANCE
INLINE Vector distance(Vector v) {
  return each([=](int i) { return std::fabs(v.lanes[i] - std::nearbyint(v.lanes[i])); });
}
#define HAS_FLOAT8
INLINE Words float8_of(Vector v) {
  Words w;
  for (int i = 0; i < kLanes; ++i) {
    const float magnitude = std::fmin(std::fabs(v.lanes[i]), 448.0f);
    const int exponent = std::fmax(magnitude > 0 ? std::ilogb(magnitude) : -6, -6);
    const int steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
    w.lanes[i] = v.lanes[i] != v.lanes[i] ? 0x7f : steps + (exponent + 6) * 8;
    if (std::signbit(v.lanes[i])) w.lanes[i] |= 0x80;
  }
  return w;
}

// One double for each lane.
struct Wide {
  double lanes[kLanes];
};

INLINE Wide wide_zero() { return {}; }
INLINE Wide wide_add(Vector v, Wide total) {
  for (int i = 0; i < kLanes; ++i) total.lanes[i] += static_cast<double>(v.lanes[i]);
  return total;
}
// Half onto half, the order in which AVX-512 reduces: so both give the same bits.
INLINE double wide_sum(Wide w) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) w.lanes[i] += w.lanes[i + width];
  }
  return w.lanes[0];
}

// Eight sums at once: neighbour onto neighbour, again as AVX-512 does it.
#define HAS_TOTALS
INLINE void wide_totals(const Wide* from, double* to) {
  for (int k = 0; k < kLanes / 2; ++k) {
    double v[kLanes / 2];
    for (int i = 0; i < kLanes / 2; ++i) v[i] = from[k].lanes[i] + from[k].lanes[i + kLanes / 2];
    to[k] = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
  }
}
INLINE void square_roots(double* values) {
  for (int i = 0; i < kLanes / 2; ++i) values[i] = std::sqrt(values[i]);
}

INLINE void wide_store(double* p, Wide w) { std::memcpy(p, w.lanes, sizeof w.lanes); }

bool usable() { return true; }

// In the place of isa/activation.h, which needs comparisons and bits of vectors that compilers know: in double
// precision.
#define RMSNORM_DEPLOY_CPU_ISA_ACTIVATION_H_
template <bool kSilu, bool kCoarse, int kCount>
INLINE void activate(Vector* z) {
  for (int k = 0; k < kCount; ++k) {
    z[k] = each([&](int i) {
      const double value = z[k].lanes[i];
      const double small = std::exp(-std::fabs(value));
      const double sigmoid = (value < 0 ? small : 1.0) / (1.0 + small);
      return static_cast<float>(kSilu ? value * sigmoid : sigmoid);
    });
  }
}

}  // namespace

#define HAS_HALF_CONVERSION
#define INSTRUCTION_SET emulated16
#include "../../../ops/cpu/isa/kernels.h"
