// The steps of a norm for one vector of values: how it enters the sum of squares, and how it becomes y.
#ifndef RMSNORM_DEPLOY_CPU_ISA_STEPS_H_
#define RMSNORM_DEPLOY_CPU_ISA_STEPS_H_

namespace {

#if !defined(HAS_MASKS)
// The first `count` lanes, fewer than all; the others are read as zeros and left unwritten.
template <typename T>
INLINE Vector load_first(const T* p, std::int64_t count) {
  T memory[kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) memory[i] = p[i];
  return load(memory);
}

template <typename T>
INLINE void store_first(T* p, Vector v, std::int64_t count) {
  T memory[kLanes];
  store(memory, v);
  for (std::int64_t i = 0; i < count; ++i) p[i] = memory[i];
}
#endif

#if !defined(HAS_KEPT_FIRST)
// The first `count` lanes of v, fewer than all, and zeros.
INLINE Vector kept_first(Vector v, std::int64_t count) {
  float lanes[kLanes];
  store(lanes, v);
  for (std::int64_t i = count; i < kLanes; ++i) lanes[i] = 0.0f;
  return load(lanes);
}
#endif

#if !defined(HAS_STREAM)
// Past the caches: this instruction set has no way to.
template <typename T>
INLINE void stream(T* p, Vector v) {
  store(p, v);
}
INLINE void stream_end() {}
#endif

INLINE Vector rounded(Vector v, const float*) { return v; }

// The square is rounded to float first, so that it overflows where float arithmetic does.
INLINE Wide wide_square_add(Vector v, Wide total) { return wide_add(v * v, total); }

// x / rms, for a result of type T.
template <typename T, bool kDivide>
INLINE Vector divided(Vector x, Vector high, Vector low) {
  if constexpr (kDivide) return x / high;
  if constexpr (sizeof(T) == 2) return x * high;  // exact enough for a result of 16 bits
  return multiply_add(x, high, x * low);
}

// The value after the scale, and the bias if there is one, in the rounding order asked for.
template <typename T, int kMode, int kRounding, bool kDivide>
INLINE Vector finished(Vector x, Vector high, Vector low, Vector scale, Vector bias) {
  const Vector v = divided<T, kDivide>(x, high, low);
  const auto round = [](Vector value) __attribute__((always_inline)) {
    if constexpr (kRounding == kRoundTwice) return rounded(value, static_cast<const T*>(nullptr));
    return value;
  };
  return scaled < kMode == kBias || kMode == kResidualBias > (v, scale, bias, round);  // the store rounds to T
}

// A store, past the caches where kFar: the line is neither read from memory first nor does it displace another.
template <bool kFar, typename T>
INLINE void put(T* p, Vector v) {
  if constexpr (kFar) {
    stream(p, v);
  } else {
    store(p, v);
  }
}

#if !defined(HAS_PUT_ROUNDED)
// The same, and what is then there.
template <bool kFar, typename T>
INLINE Vector put_rounded(T* p, Vector v) {
  v = rounded(v, p);
  put<kFar>(p, v);
  return v;
}
#else
template <bool kFar>
INLINE Vector put_rounded(float* p, Vector v) {
  put<kFar>(p, v);
  return v;
}
// Rounded once; the compiler does not know that rounding a rounded value changes nothing.
template <bool kFar, typename T>
INLINE Vector put_rounded(T* p, Vector v) {
  const Narrow narrowed = narrow(v, p);
  if constexpr (kFar) {
    stream_narrow(p, narrowed);
  } else {
    store_narrow(p, narrowed);
  }
  return widen(narrowed, p);
}
#endif

// One step of the first pass: the value that is normalised, written to `sum` on the way.
template <typename T, int kMode, bool kFar>
INLINE Vector entered(const T* x, const T* residual, T* sum, const Attributes& a) {
  Vector v = load(x);
  if constexpr (kMode == kResidual || kMode == kResidualBias) {
    v = put_rounded<kFar>(sum, combined(v, load(residual), a));
  }
  return v;
}

template <typename T, int kMode>
INLINE Vector entered_first(const T* x, const T* residual, T* sum, std::int64_t count, const Attributes& a) {
  Vector v = load_first(x, count);
  if constexpr (kMode == kResidual || kMode == kResidualBias) {
    v = rounded(combined(v, load_first(residual, count), a), x);
    store_first(sum, v, count);
  }
  return v;
}

}  // namespace

#endif  // RMSNORM_DEPLOY_CPU_ISA_STEPS_H_
