// Random and hostile calls of the kernels' C contract, each compared with the formula in float64. Meant to be built
// with a sanitizer: every tensor, and the struct itself, is a block of malloc's that is exactly as long as the contract
// says.
//
//   calls LIBRARY SEED FIRST COUNT THREADS     0 where every call is right; what is wrong goes to stderr with its
//   number
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "floats.h"
#include "include/rms_norm_gated.h"

namespace {

// ---- a call ---------------------------------------------------------------------------------------------------------

// Memory of exactly so many bytes, at an address that suits the element type and may suit nothing more.
class Block {
 public:
  Block() = default;
  Block(Random& r, std::int64_t count, int size) : bytes_(static_cast<std::size_t>(count) * size) {
    const std::size_t shift = chance(r, 0.5) ? 0 : below(r, 16) * static_cast<std::size_t>(size);
    base_ = static_cast<char*>(std::malloc(bytes_ + shift + (bytes_ + shift == 0)));
    data_ = base_ + shift;
  }
  Block(Block&& other) noexcept { *this = std::move(other); }
  Block& operator=(Block&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Block() { std::free(base_); }
  char* data() const { return data_; }
  std::string bytes() const { return std::string(data_ ? data_ : "", bytes_); }

 private:
  char* base_ = nullptr;
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
};

struct Call {
  rms_norm_params p{};
  Block x, residual, scale, bias, y, sum;
  std::int64_t total = 1;
  bool odd = false;  // values that are no ordinary numbers are among the others
};

double number(Random& r, bool odd) {
  if (odd && chance(r, 0.02)) {
    static const double kOdd[] = {0.0,  -0.0,   kInfinity, -kInfinity, std::nan(""), 1e-45, -1e-40,
                                  3e38, 1e-310, 65504.0,   6e-8,       1e19,         -1e25, 1e300};
    return any_of(r, kOdd);
  }
  double total = 0;  // near enough to a normal number
  for (int i = 0; i < 6; ++i) total += static_cast<double>(r() >> 11) * 0x1p-53 - 0.5;
  return total * 1.4;
}

std::int64_t fill_strides(Random& r, const rms_norm_params& p, std::int64_t* strides) {
  std::int64_t extent = 1, next = 1;
  const bool any = chance(r, 0.2);
  const std::size_t kind = below(r, 4);  // one number, the normalised dimensions, everything, anything
  for (int i = p.rank - 1; i >= 0; --i) {
    const bool normalised = i >= p.axis_begin && i < p.axis_begin + p.axis_count;
    const bool used = kind == 1 ? normalised : kind == 2 ? true : kind == 3 ? chance(r, 0.5) : false;
    strides[i] = any ? static_cast<std::int64_t>(below(r, 6)) : used ? next : 0;
    if (used) next *= p.shape[i];
    if (p.shape[i] > 0) extent += strides[i] * (p.shape[i] - 1);
  }
  return extent;
}

Call make(Random& r) {
  static const std::int32_t kTypes[] = {RMS_NORM_FLOAT32, RMS_NORM_FLOAT32, RMS_NORM_FLOAT16, RMS_NORM_BFLOAT16,
                                        RMS_NORM_FLOAT64};
  static const int kSizes[] = {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 129, 255, 257, 300};
  Call c;
  rms_norm_params& p = c.p;
  p.version = RMS_NORM_PARAMS_VERSION;
  p.x_type = any_of(r, kTypes);
  p.scale_type = chance(r, 0.5) ? p.x_type : static_cast<std::int32_t>(RMS_NORM_FLOAT32);
  p.stash_type = p.x_type == RMS_NORM_FLOAT64 || chance(r, 0.2) ? RMS_NORM_FLOAT64 : RMS_NORM_FLOAT32;
  const std::int32_t rounds[] = {p.x_type, RMS_NORM_FLOAT32, p.stash_type};
  p.round_type = any_of(r, rounds);
  p.rank = chance(r, 0.05) ? 16 : 1 + static_cast<std::int32_t>(below(r, 4));
  p.axis_begin = chance(r, 0.6) ? p.rank - 1 : static_cast<std::int32_t>(below(r, static_cast<std::size_t>(p.rank)));
  p.axis_count = 1 + static_cast<std::int32_t>(below(r, static_cast<std::size_t>(p.rank - p.axis_begin)));
  std::int64_t room = 6000;
  for (int i = 0; i < p.rank; ++i) {
    const bool normalised = i >= p.axis_begin && i < p.axis_begin + p.axis_count;
    std::int64_t n = normalised || chance(r, 0.2) ? any_of(r, kSizes) : 1 + static_cast<std::int64_t>(below(r, 4));
    if (p.rank == 16) n = 1 + (chance(r, 0.3) ? 1 : 0);
    if (chance(r, 0.01)) n = 0;
    n = std::min(n, std::max<std::int64_t>(room, 1));
    p.shape[i] = n;
    if (n) room /= n;
    c.total *= n;
  }
  p.partial_size = INT64_MAX;
  if (p.axis_count == 1 && chance(r, 0.2)) {
    p.partial_size = 1 + static_cast<std::int64_t>(below(r, static_cast<std::size_t>(p.shape[p.axis_begin]) + 3));
  }
  static const float kEpsilons[] = {0.0f, 1e-6f, 1e-5f, 1e-3f, 0.5f, 1e-45f, 1e10f};
  p.epsilon = any_of(r, kEpsilons);
  if (chance(r, 0.2)) p.epsilon_outside = any_of(r, kEpsilons);
  if (chance(r, 0.2)) p.rms_floor = any_of(r, kEpsilons);
  const bool add = chance(r, 0.4), biased = chance(r, 0.3);
  const int size = type_of(p.x_type).bytes, weight = type_of(p.scale_type).bytes;
  const std::int64_t scales = fill_strides(r, p, p.scale_strides);
  const std::int64_t biases = fill_strides(r, p, p.bias_strides);
  c.x = Block(r, c.total, size);
  c.scale = Block(r, scales, weight);
  const bool odd = c.odd = chance(r, 0.1);
  const double spread = chance(r, 0.3) ? std::ldexp(1.0, static_cast<int>(below(r, 20)) - 10) : 1.0;
  for (std::int64_t i = 0; i < c.total; ++i) store(c.x.data(), i, p.x_type, number(r, odd) * spread);
  for (std::int64_t i = 0; i < scales; ++i) store(c.scale.data(), i, p.scale_type, number(r, odd) + 1);
  p.x = c.x.data();
  p.scale = c.scale.data();
  if (biased) {
    c.bias = Block(r, biases, weight);
    for (std::int64_t i = 0; i < biases; ++i) store(c.bias.data(), i, p.scale_type, number(r, odd));
    p.bias = c.bias.data();
  }
  if (add) {
    c.residual = Block(r, c.total, size);
    for (std::int64_t i = 0; i < c.total; ++i) store(c.residual.data(), i, p.x_type, number(r, odd) * spread);
    p.residual = c.residual.data();
  }
  // What may be written over: x or residual, by y or by the sum, at exactly their addresses.
  const std::size_t places = add ? below(r, 7) : below(r, 2);
  char* const on_x = c.x.data();
  char* const on_residual = c.residual.data();
  char* y = nullptr;
  char* sum = nullptr;
  if (places == 1 || places == 5) y = on_x;
  if (places == 2 || places == 6) y = on_residual;
  if (places == 3 || places == 6) sum = on_x;
  if (places == 4 || places == 5) sum = on_residual;
  if (!y) {
    c.y = Block(r, c.total, size);
    y = c.y.data();
  }
  if (add && !sum) {
    c.sum = Block(r, c.total, size);
    sum = c.sum.data();
  }
  p.y = y;
  p.sum = sum;
  return c;
}

// ---- what is right --------------------------------------------------------------------------------------------------

struct Wanted {
  // largest: of the row, before the bias, too; infinite where nothing is said
  // lost: what half a unit of the normalised value is worth behind its scale, which is much where it is subnormal
  std::vector<double> y, largest, lost;
  std::vector<double> sum;
};

Wanted formula(const Call& c) {
  const rms_norm_params& p = c.p;
  Wanted w;
  std::vector<double> x(static_cast<std::size_t>(c.total));
  for (std::int64_t i = 0; i < c.total; ++i) {
    double v = load(p.x, i, p.x_type);
    if (p.residual) {
      v += load(p.residual, i, p.x_type);
      if (p.stash_type == RMS_NORM_FLOAT32) v = rounded(v, RMS_NORM_FLOAT32);
      v = rounded(v, p.x_type);
      w.sum.push_back(v);
    }
    x[static_cast<std::size_t>(i)] = v;
  }
  std::int64_t inner = 1, size = 1;
  for (int i = p.axis_begin + p.axis_count; i < p.rank; ++i) inner *= p.shape[i];
  for (int i = p.axis_begin; i < p.axis_begin + p.axis_count; ++i) size *= p.shape[i];
  const std::int64_t rows = size && inner ? c.total / size : 0;
  w.y.resize(static_cast<std::size_t>(c.total));
  w.largest.resize(static_cast<std::size_t>(c.total));
  w.lost.resize(static_cast<std::size_t>(c.total));
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t first = row / inner * inner * size + row % inner;
    const std::int64_t measured = std::min(size, p.partial_size);
    long double squares = 0;
    double most = 0;
    for (std::int64_t k = 0; k < measured; ++k) {
      const long double v = x[static_cast<std::size_t>(first + k * inner)];
      squares += v * v;
    }
    const double mean = static_cast<double>(squares / static_cast<long double>(measured));
    const double root = std::sqrt(mean + static_cast<double>(p.epsilon)) + static_cast<double>(p.epsilon_outside);
    const double rms = std::max(root, static_cast<double>(p.rms_floor));
    // what float32 cannot hold on the way, or holds as a subnormal, is not compared
    bool known = std::isfinite(root) && rms > 1e-30 && rms < 1e17;
    for (std::int64_t k = 0; k < size; ++k) {
      const std::int64_t at = first + k * inner;
      std::int64_t scale_at = 0, bias_at = 0, rest = at;
      for (int i = p.rank - 1; i >= 0; --i) {
        scale_at += rest % p.shape[i] * p.scale_strides[i];
        bias_at += rest % p.shape[i] * p.bias_strides[i];
        rest /= p.shape[i];
      }
      const double scale = rounded(load(p.scale, scale_at, p.scale_type), p.round_type);
      const double normalised = x[static_cast<std::size_t>(at)] / rms, plain = normalised * scale;
      double unit = spacing(normalised, type_of(p.round_type));
      if (p.stash_type == RMS_NORM_FLOAT32) unit = std::max(unit, spacing(normalised, type_of(RMS_NORM_FLOAT32)));
      w.lost[static_cast<std::size_t>(at)] = unit * std::fabs(scale) / 2;
      const double bias = p.bias ? rounded(load(p.bias, bias_at, p.scale_type), p.round_type) : 0;
      w.y[static_cast<std::size_t>(at)] = plain + bias;
      most = std::max({most, std::fabs(plain), std::fabs(plain + bias), std::fabs(bias)});
      known &= std::isfinite(plain + bias) && std::fabs(normalised) < 6e4;
    }
    known &= most < 6e4;
    for (std::int64_t k = 0; k < size; ++k)
      w.largest[static_cast<std::size_t>(first + k * inner)] = known ? most : kInfinity;
  }
  return w;
}

std::string compare(const Call& c, const Wanted& w) {
  const rms_norm_params& p = c.p;
  char text[200];
  // n, its product with the scale and the bias are each rounded to round_type; then comes x's type
  const bool narrow = type_of(p.round_type).bytes == 2;
  const double units = narrow ? 4.0 : type_of(p.x_type).bytes == 2 ? 1.0 : 4.5;
  for (std::int64_t i = 0; i < c.total; ++i) {
    const std::size_t at = static_cast<std::size_t>(i);
    if (p.sum) {
      const double got = load(p.sum, i, p.x_type);
      if (got != w.sum[at] && !(std::isnan(got) && std::isnan(w.sum[at]))) {
        std::snprintf(text, sizeof text, "sum[%lld] is %.9g instead of %.9g", static_cast<long long>(i), got,
                      w.sum[at]);
        return text;
      }
    }
    if (std::isinf(w.largest[at])) continue;
    const double got = load(p.y, i, p.x_type);
    double unit = std::max(spacing(w.largest[at], type_of(p.x_type)), spacing(w.largest[at], type_of(p.round_type)));
    if (p.stash_type == RMS_NORM_FLOAT32) unit = std::max(unit, spacing(w.largest[at], type_of(RMS_NORM_FLOAT32)));
    unit = std::max(unit, w.lost[at]);
    if (!(std::fabs(got - w.y[at]) <= units * unit)) {
      std::snprintf(text, sizeof text, "y[%lld] is %.9g instead of %.9g, %.3g units off", static_cast<long long>(i),
                    got, w.y[at], std::fabs(got - w.y[at]) / unit);
      return text;
    }
  }
  return "";
}

// ---- calls that must be refused -------------------------------------------------------------------------------------

// Spoils a right call so that the contract forbids it.
void spoil(Random& r, rms_norm_params& p) {
  static const std::int32_t kInts[] = {0, -1, 2, 3, 6, 12, 17, 99, INT32_MAX, INT32_MIN};
  static const float kFloats[] = {-1.0f, -1e-45f, NAN, INFINITY, -INFINITY};
  static const std::int64_t kHuge[] = {-1, INT64_MIN, INT64_MAX, 1LL << 62};
  static char nowhere[8];
  switch (below(r, 14)) {
    case 0:
      p.version = any_of<std::uint32_t>(r, {0u, RMS_NORM_PARAMS_VERSION + 1u, 99u, UINT32_MAX});
      break;
    case 1:
      p.x_type = any_of(r, kInts);
      break;
    case 2:
      p.scale_type = any_of(r, kInts);
      break;
    case 3:
      p.round_type = any_of(r, kInts);
      break;
    case 4:
      p.stash_type = any_of(r, {0, -1, 10, 16, 99, INT32_MIN});
      break;
    case 5:
      p.rank = any_of(r, {0, -1, 17, INT32_MAX, INT32_MIN});
      break;
    case 6:
      p.axis_begin = any_of(r, {-1, p.rank, INT32_MAX, INT32_MIN});
      break;
    case 7:
      p.axis_count = any_of(r, {0, -1, p.rank + 1, INT32_MAX, INT32_MIN});
      break;
    case 8:
      p.shape[below(r, static_cast<std::size_t>(p.rank))] = any_of(r, {std::int64_t{-1}, INT64_MIN});
      break;
    case 9:
      p.partial_size = any_of(r, {std::int64_t{0}, std::int64_t{-1}, INT64_MIN});
      break;
    case 10:
      (chance(r, 0.3) ? p.epsilon : chance(r, 0.5) ? p.epsilon_outside : p.rms_floor) = any_of(r, kFloats);
      break;
    case 11:
      p.scale_strides[below(r, static_cast<std::size_t>(p.rank))] = any_of(r, {std::int64_t{-1}, INT64_MIN});
      break;
    case 12:  // shapes whose product does not fit
      for (int i = 0; i < p.rank; ++i) p.shape[i] = any_of(r, kHuge);
      if (p.rank == 1) p.shape[0] = INT64_MAX;
      break;
    default:
      if (p.residual) {
        (chance(r, 0.5) ? p.residual : *const_cast<const void**>(&p.x)) = nullptr;
        if (chance(r, 0.3)) p.y = p.sum;
      } else if (chance(r, 0.5)) {
        p.sum = nowhere;
      } else {
        (chance(r, 0.5) ? p.scale : p.x) = nullptr;
      }
  }
}

// Adds to a right call what version 2 of the contract forbids. `room` is memory of no tensor.
void spoil_outputs(Random& r, rms_norm_params& p, void* room) {
  static const std::int32_t kInts[] = {-1, 4, 5, 7, 9, 18, 19, 99, INT32_MAX, INT32_MIN};
  switch (below(r, 7)) {
    case 0:
      p.y_type = any_of(r, kInts);
      break;
    case 1:
      p.quantised_type = any_of(r, kInts);
      p.quantised = room;
      p.quantised_scale = room;
      p.quantised_scale_type = RMS_NORM_FLOAT32;
      break;
    case 2:  // a quantised output of no type
      p.quantised = room;
      break;
    case 3:  // a type without an output, or without a scale
      p.quantised_type = any_of(r, {RMS_NORM_INT8, RMS_NORM_UINT8, RMS_NORM_FLOAT8E4M3FN});
      p.quantised_scale_type = RMS_NORM_FLOAT32;
      (chance(r, 0.5) ? p.quantised : *const_cast<void**>(&p.quantised_scale)) = room;
      break;
    case 4:
      p.strided = any_of(r, {32, 64, -1, INT32_MIN, INT32_MAX});
      break;
    case 5:  // strides of dimensions that have one element are not read
      p.strided = 1 << below(r, 5) % 3;
      for (std::int64_t* strides : {p.x_strides, p.residual_strides, p.y_strides}) {
        std::fill_n(strides, p.rank, any_of(r, {std::int64_t{-1}, INT64_MIN, INT64_MAX}));
      }
      if (!p.residual && p.strided == RMS_NORM_STRIDED_RESIDUAL) p.strided = RMS_NORM_STRIDED_X;
      break;
    default:
      p.least = static_cast<float*>(room);
      p.most = static_cast<float*>(room);
  }
}

// Whether a spoilt call is forbidden after all: an empty one needs no pointers, and other changes may be right by
// chance.
bool forbidden(const rms_norm_params& p, const rms_norm_params& right) {
  bool empty = false;
  for (int i = 0; i < right.rank; ++i) empty |= right.shape[i] == 0;
  return !empty && std::memcmp(&p, &right, sizeof p) != 0;
}

// ---- eight bits -----------------------------------------------------------------------------------------------------

// What is wrong with an 8-bit output and the ends of rows beside it, from the y that the plain call has given.
template <typename Run>
std::string compare_outputs(Random& r, const Call& c, const Run& run) {
  rms_norm_params p = c.p;
  std::int64_t inner = 1, rows = 1;
  for (int i = p.axis_begin + p.axis_count; i < p.rank; ++i) inner *= p.shape[i];
  for (int i = 0; i < p.axis_begin; ++i) rows *= p.shape[i];
  const std::int64_t size = rows ? c.total / rows : 0;
  if (inner != 1 || !c.total || p.stash_type == RMS_NORM_FLOAT64) return "";
  const bool is_signed = chance(r, 0.5), by_row = chance(r, 0.5);
  const std::int64_t scales = by_row ? rows : 1;
  Block quantised(r, c.total, 1), scale(r, scales, 4), zero(r, scales, 1), least(r, rows, 4), most(r, rows, 4);
  Block sum(r, p.sum ? c.total : 0, type_of(p.x_type).bytes);
  for (std::int64_t i = 0; i < scales; ++i) {
    store(scale.data(), i, RMS_NORM_FLOAT32, 0.004 + 0.05 * static_cast<double>(below(r, 1000)) / 1000);
    zero.data()[i] = static_cast<char>(below(r, 256));
  }
  p.y = nullptr;
  p.sum = p.sum ? sum.data() : nullptr;
  p.quantised_type = is_signed ? RMS_NORM_INT8 : RMS_NORM_UINT8;
  p.quantised_scale_type = RMS_NORM_FLOAT32;
  p.quantised_by_row = by_row;
  p.quantised = quantised.data();
  p.quantised_scale = scale.data();
  p.zero_point = zero.data();
  p.least = reinterpret_cast<float*>(least.data());
  p.most = reinterpret_cast<float*>(most.data());
  if (run(p) != RMS_NORM_OK) return "an 8-bit output was refused";
  const float lowest = is_signed ? -128.0f : 0.0f, highest = lowest + 255.0f;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t which = by_row ? row : 0;
    const float s = static_cast<float>(load(scale.data(), which, RMS_NORM_FLOAT32));
    const float z = is_signed ? static_cast<signed char>(zero.data()[which])
                              : static_cast<float>(static_cast<unsigned char>(zero.data()[which]));
    double low = kInfinity, high = -kInfinity;
    for (std::int64_t i = row * size; i < (row + 1) * size; ++i) {
      const double y = load(c.p.y, i, p.x_type);
      if (y < low) low = y;
      if (y > high) high = y;
      float q = std::nearbyint(static_cast<float>(y) / s) + z;
      q = q > lowest ? std::min(q, highest) : lowest;
      const char byte = quantised.data()[i];
      const int got = is_signed ? static_cast<signed char>(byte) : static_cast<unsigned char>(byte);
      if (got != static_cast<int>(q)) return "quantised is not what QuantizeLinear gives";
    }
    if (load(least.data(), row, RMS_NORM_FLOAT32) != low || load(most.data(), row, RMS_NORM_FLOAT32) != high) {
      return "the ends of a row are others";
    }
  }
  return "";
}

// ---- a gate ---------------------------------------------------------------------------------------------------------

// What is wrong with the same norm with a gate in front of it, beside the norm of the product in float64.
template <typename Run>
std::string compare_gated(Random& r, const Call& c, const Run& run) {
  const bool wide = chance(r, 0.5), silu = chance(r, 0.5);
  rms_norm_params p = c.p;
  if (p.residual || p.bias || p.partial_size != INT64_MAX || !c.total) return "";
  const std::int32_t type = wide ? static_cast<std::int32_t>(RMS_NORM_FLOAT32) : p.x_type;
  Block gate(r, c.total, type_of(type).bytes), y(r, c.total, type_of(p.x_type).bytes);
  Block product(r, c.total, 8), factors(r, c.total, 8);
  for (std::int64_t i = 0; i < c.total; ++i) {
    store(gate.data(), i, type, number(r, false) * 4);
    const double z = load(gate.data(), i, type), g = (silu ? z : 1) / (1 + std::exp(-z));
    store(factors.data(), i, RMS_NORM_FLOAT64, g);
    store(product.data(), i, RMS_NORM_FLOAT64, load(p.x, i, p.x_type) * g);
  }
  const std::string before = gate.bytes();
  p.y = y.data();
  rms_norm_gate given = {RMS_NORM_GATE_VERSION, type, silu ? RMS_NORM_SILU : RMS_NORM_SIGMOID, 0, gate.data()};
  const rms_norm_gate wrong[] = {{0, type, given.activation, 0, gate.data()},
                                 {given.version + 1, type, given.activation, 0, gate.data()},
                                 {given.version, RMS_NORM_INT8, given.activation, 0, gate.data()},
                                 {given.version, type, any_of(r, {-1, 2, 99}), 0, gate.data()},
                                 {given.version, type, given.activation, any_of(r, {-1, 3, 99}), gate.data()},
                                 {given.version, type, given.activation, 0, nullptr}};
  if (run(p, any_of(r, wrong)) == RMS_NORM_OK) return "a gate that the contract forbids was taken";
  for (given.place = RMS_NORM_GATED_LAST; given.place >= RMS_NORM_GATED_FIRST; --given.place) {
    if (run(p, given) != RMS_NORM_OK) return "a gate was refused";
    if (before != gate.bytes()) return "the gate was written";
    if (given.place == RMS_NORM_GATED_FIRST) break;
    if (c.odd) continue;
    // Behind the norm: each y is that of the norm alone times its factor, but for the roundings of one row's values.
    for (std::int64_t i = 0; i < c.total; ++i) {
      const double alone = load(c.p.y, i, p.x_type), got = load(y.data(), i, p.x_type);
      const double g = load(factors.data(), i, RMS_NORM_FLOAT64), wanted = alone * g;
      if (!(std::fabs(alone) < 6e4 && std::fabs(alone) > 1e-2 && std::fabs(g) > 1e-2)) continue;
      if (!(std::fabs(got - wanted) <= 0.1 * std::fabs(wanted))) return "a gate behind the norm is wrong";
    }
  }
  if (c.odd) return "";  // products that float32 cannot hold
  rms_norm_params q = p;
  q.x_type = RMS_NORM_FLOAT64;
  Call of_product;
  of_product.total = c.total;
  q.x = product.data();
  of_product.p = q;
  Wanted wanted = formula(of_product);
  for (double& largest : wanted.largest) largest *= 4;  // the activation's error, and that of the product
  Call got;
  got.total = c.total;
  got.p = p;
  return compare(got, wanted);
}

// ---- the run --------------------------------------------------------------------------------------------------------

struct Library {
  decltype(&rmsnorm_deploy_cpu_run) run;
  decltype(&rmsnorm_deploy_cpu_run_gated) run_gated;
  decltype(&rmsnorm_deploy_error_text) error_text;
  decltype(&rmsnorm_deploy_cpu_set_isa) set_isa;
  decltype(&rmsnorm_deploy_cpu_isa_at) isa_at;
};

std::atomic<long> refused{0}, compared{0};

// The struct in a block of exactly its size.
int run(const Library& library, Random& r, const rms_norm_params& p) {
  Block block(r, sizeof p / 8, 8);
  std::memcpy(block.data(), &p, sizeof p);
  return library.run(reinterpret_cast<const rms_norm_params*>(block.data()));
}

std::string one(const Library& library, std::uint64_t seed, long n) {
  Random r(seed * 1000003 + static_cast<std::uint64_t>(n));
  Call c = make(r);
  if (chance(r, 0.3)) {
    rms_norm_params p = c.p;
    const std::size_t times = 1 + below(r, 3);
    static float room[64];  // written by nobody, as every such call is refused
    const bool newer = chance(r, 0.3) && c.total > 1;
    if (newer) spoil_outputs(r, p, room);
    for (std::size_t i = 0; !newer && i < times && p.rank == c.p.rank; ++i) spoil(r, p);
    if (!forbidden(p, c.p)) return "";
    const std::string x = c.x.bytes(), residual = c.residual.bytes();
    const int code = run(library, r, p);
    ++refused;
    const char* const text = library.error_text(code);
    if (!text || !*text) return "an error without a text";
    if (code == RMS_NORM_OK) return "a call that the contract forbids was taken";
    if (x != c.x.bytes() || residual != c.residual.bytes()) return "a refused call has written";
    return "";
  }
  const Wanted wanted = formula(c);
  const std::string x = c.x.bytes(), residual = c.residual.bytes(), scale = c.scale.bytes(), bias = c.bias.bytes();
  const int code = run(library, r, c.p);
  if (code != RMS_NORM_OK) return std::string("refused: ") + library.error_text(code);
  ++compared;
  const std::string wrong = compare(c, wanted);
  if (!wrong.empty()) return wrong;
  if (scale != c.scale.bytes() || bias != c.bias.bytes()) return "scale or bias was written";
  const bool x_kept = c.p.y != c.p.x && c.p.sum != c.p.x,
             residual_kept = !c.p.residual || (c.p.y != c.p.residual && c.p.sum != c.p.residual);
  if (x_kept && x != c.x.bytes()) return "x was written";
  if (residual_kept && residual != c.residual.bytes()) return "residual was written";
  if (x_kept && residual_kept) {
    const std::string y = c.y.bytes(), sum = c.sum.bytes();
    run(library, r, c.p);
    if (y != c.y.bytes() || sum != c.sum.bytes()) return "other bits the second time";
    const std::string outputs = compare_outputs(r, c, [&](const rms_norm_params& p) { return run(library, r, p); });
    if (!outputs.empty()) return outputs;
    return compare_gated(
        r, c, [&](const rms_norm_params& p, const rms_norm_gate& gate) { return library.run_gated(&p, &gate); });
  }
  return "";
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 6) return 2;
  void* const handle = dlopen(arguments[1], RTLD_NOW);
  if (!handle) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  Library library{};
  library.run = reinterpret_cast<decltype(library.run)>(dlsym(handle, "rmsnorm_deploy_cpu_run"));
  library.run_gated = reinterpret_cast<decltype(library.run_gated)>(dlsym(handle, "rmsnorm_deploy_cpu_run_gated"));
  library.error_text = reinterpret_cast<decltype(library.error_text)>(dlsym(handle, "rmsnorm_deploy_error_text"));
  library.set_isa = reinterpret_cast<decltype(library.set_isa)>(dlsym(handle, "rmsnorm_deploy_cpu_set_isa"));
  library.isa_at = reinterpret_cast<decltype(library.isa_at)>(dlsym(handle, "rmsnorm_deploy_cpu_isa_at"));
  const std::uint64_t seed = std::strtoull(arguments[2], nullptr, 10);
  const long first = std::atol(arguments[3]), last = first + std::atol(arguments[4]);
  const int threads = std::atoi(arguments[5]);
  std::atomic<int> faults{0};
  for (int isa = 0, usable = 0; const char *name = library.isa_at(isa, &usable); ++isa) {
    if (!usable || library.set_isa(name) != RMS_NORM_OK) continue;
    const auto work = [&](long from) {
      for (long n = from; n < last; n += threads) {
        const std::string wrong = one(library, seed, n);
        if (wrong.empty()) continue;
        std::fprintf(stderr, "call %ld with %s: %s\n", n, name, wrong.c_str());
        ++faults;
      }
    };
    std::vector<std::thread> running;
    for (int t = 1; t < threads; ++t) running.emplace_back(work, first + t);
    work(first);
    for (std::thread& t : running) t.join();
  }
  std::printf("%ld calls compared, %ld refused, %d faults\n", compared.load(), refused.load(), faults.load());
  return faults ? 1 : 0;
}
