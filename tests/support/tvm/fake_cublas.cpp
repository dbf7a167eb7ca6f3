// A stand-in for cuBLAS and the part of the driver that allocates, on the host's memory: loops, as the documentation of
// cublasGemmStridedBatchedEx says. What it would refuse is refused, and what it was asked for is kept.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

namespace {

struct Operand {
  int64_t type, turned, apart, stride, first, last;  // the bytes that it may reach
};
struct Record {
  int64_t m, n, k, batch, sums, math, stream, workspace, handle;
  Operand a, b, c;
};
struct Handle {
  int64_t stream, workspace, math, number;
};

std::vector<Record> records;
std::mutex lock;
int64_t handles, allocated;
constexpr int invalid_value = 7, not_supported = 15;

int64_t bytes_of(int type) { return type == 1 ? 8 : type == 0 ? 4 : 2; }

double half(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double value = exponent == 31 ? (mantissa ? NAN : INFINITY)
                       : exponent     ? std::ldexp(1024 + mantissa, exponent - 25)
                                      : std::ldexp(mantissa, -24);
  return bits >> 15 ? -value : value;
}

uint16_t to_half(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return 0x7e00;
  const double size = std::fabs(double(value));
  if (size == 0) return sign;
  if (size >= 65520) return sign | 0x7c00;
  int exponent;
  std::frexp(size, &exponent);
  const int unit = std::max(exponent - 11, -24);
  const double steps = std::nearbyint(std::ldexp(size, -unit));  // to nearest even
  return sign | uint16_t(unit == -24 ? steps : (unit + 24) * 1024 + steps);
}

float of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

uint16_t to_bfloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return std::isnan(value) ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

double read(const char* at, int type) {
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  if (type == 14) return of_bits(uint32_t(bits) << 16);
  if (type == 2) return half(bits);
  if (type == 0) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  }
  double value;
  std::memcpy(&value, at, 8);
  return value;
}

void write(char* at, int type, double value) {
  const float narrow = float(value);
  const uint16_t bits = type == 14 ? to_bfloat(narrow) : type == 2 ? to_half(narrow) : 0;
  if (type == 1) std::memcpy(at, &value, 8);
  if (type == 0) std::memcpy(at, &narrow, 4);
  if (type == 2 || type == 14) std::memcpy(at, &bits, 2);
}

bool has(int a, int b, int c, int sums) {
  if (a != b) return false;
  if (a == 1) return c == 1 && sums == 70;
  return sums == 68 && (c == 0 || (c == a && a != 0));
}

}  // namespace

extern "C" {

int fake_count() { return int(records.size()); }
const Record* fake_record(int i) { return &records[i]; }
void fake_clear() { records.clear(); }

int cuMemAlloc_v2(void** memory, size_t size) {
  allocated = int64_t(size);
  *memory = std::aligned_alloc(256, size);
  return *memory ? 0 : 2;
}
int cublasCreate_v2(Handle** handle) {
  std::lock_guard<std::mutex> hold(lock);
  *handle = new Handle{0, 0, 0, handles++};
  return 0;
}
int cublasSetStream_v2(Handle* handle, void* stream) {
  handle->stream = int64_t(stream);
  handle->workspace = 0;  // cuBLAS's own again
  return 0;
}
int cublasSetWorkspace_v2(Handle* handle, void* memory, size_t size) {
  if (int64_t(memory) % 256 || (allocated && int64_t(size) > allocated)) return invalid_value;
  handle->workspace = int64_t(size);
  return 0;
}
int cublasSetMathMode(Handle* handle, int mode) {
  handle->math = mode;
  return 0;
}

// Everything is in columns: value (i, j) of a matrix that is not turned is i + j ld from its beginning.
int cublasGemmStridedBatchedEx_64(Handle* handle, int turn_a, int turn_b, int64_t m, int64_t n, int64_t k,
                                  const void* alpha, const char* a, int type_a, int64_t lda, long long stride_a,
                                  const char* b, int type_b, int64_t ldb, long long stride_b, const void* beta, char* c,
                                  int type_c, int64_t ldc, long long stride_c, int64_t batch, int sums, int algorithm) {
  const int64_t rows_a = turn_a ? k : m, columns_a = turn_a ? m : k, rows_b = turn_b ? n : k,
                columns_b = turn_b ? k : n, one = 1;
  if (m < 0 || n < 0 || k < 0 || batch < 0 || lda < std::max(one, rows_a) || ldb < std::max(one, rows_b) ||
      ldc < std::max(one, m) || turn_a < 0 || turn_a > 1 || turn_b < 0 || turn_b > 1 || algorithm != -1)
    return invalid_value;
  if (!has(type_a, type_b, type_c, sums)) return not_supported;
  const bool wide = sums == 70;
  const double by = wide ? *static_cast<const double*>(alpha) : *static_cast<const float*>(alpha);
  if ((wide ? *static_cast<const double*>(beta) : *static_cast<const float*>(beta)) != 0) return not_supported;
  const auto reached = [batch](const char* first, int type, int64_t rows, int64_t columns, int64_t ld, long long stride,
                               int turned) {
    const int64_t values = rows && columns ? (batch - 1) * stride + (columns - 1) * ld + rows : 0;
    return Operand{type, turned, ld, stride, int64_t(first), int64_t(first) + values * bytes_of(type)};
  };
  {
    std::lock_guard<std::mutex> hold(lock);
    records.push_back({m, n, k, batch, sums, handle->math, handle->stream, handle->workspace, handle->number,
                       reached(a, type_a, rows_a, columns_a, lda, stride_a, turn_a),
                       reached(b, type_b, rows_b, columns_b, ldb, stride_b, turn_b),
                       reached(c, type_c, m, n, ldc, stride_c, 0)});
  }
  const int64_t size_a = bytes_of(type_a), size_b = bytes_of(type_b), size_c = bytes_of(type_c);
  for (int64_t i = 0; i < batch; ++i)
    for (int64_t column = 0; column < n; ++column)
      for (int64_t row = 0; row < m; ++row) {
        double sum = 0;
        for (int64_t term = 0; term < k; ++term) {
          const int64_t at_a = i * stride_a + (turn_a ? term + row * lda : row + term * lda),
                        at_b = i * stride_b + (turn_b ? column + term * ldb : term + column * ldb);
          sum += read(a + at_a * size_a, type_a) * read(b + at_b * size_b, type_b);
        }
        write(c + (i * stride_c + row + column * ldc) * size_c, type_c, by * sum);
      }
  return 0;
}

}  // extern "C"
