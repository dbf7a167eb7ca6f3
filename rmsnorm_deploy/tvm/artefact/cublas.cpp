// Linked into model.so: products of matrices by cuBLAS, which is looked for at the first one. Whoever links this says
// in CUBLAS which libraries to try, and in FUNCTIONS(one) the names of the functions that kernels call.
#ifndef DRIVER
#define DRIVER "libcuda.so.1"
#endif
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

extern "C" {
void* TVMFFIEnvGetStream(int32_t device_type, int32_t device_id);
void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message);
}

namespace {

// As tvm_ffi and DLPack have them
struct Any {
  int32_t type;
  uint32_t padding;
  union {
    int64_t number;
    const void* pointer;
  };
};
struct Tensor {
  char* data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t *shape, *strides;
  uint64_t byte_offset;

  void* at(int64_t element) const { return data + byte_offset + element * (bits / 8); }
  int type() const { return bits == 64 ? 1 : bits == 32 ? 0 : code == 4 ? 14 : 2; }  // cudaDataType
};
struct Dim {
  int64_t size, a, b, c;  // how many matrices, and how many values apart

  bool follows(const Dim& inner) const {
    return a == inner.a * inner.size && b == inner.b * inner.size && c == inner.c * inner.size;
  }
};

constexpr int cuda = 2, float_sums = 68, double_sums = 70, usual_algorithm = -1;
// of cublasMath_t: no TF32, and partial sums of 16-bit products in float32 as well
constexpr int exact_sums = 16;
constexpr size_t workspace_bytes = 32u << 20;  // what NVIDIA recommends for its largest GPUs

struct Cublas {
  int (*create)(void**);
  int (*set_stream)(void*, void*);
  int (*set_workspace)(void*, void*, size_t);
  int (*set_math)(void*, int);
  int (*gemm)(void*, int, int, int64_t, int64_t, int64_t, const void*, const void*, int, int64_t, long long,
              const void*, int, int64_t, long long, const void*, void*, int, int64_t, long long, int64_t, int, int);
  int (*allocate)(void**, size_t);
  std::string missing;

  Cublas() {
    void* library = nullptr;
    for (const char* name : {CUBLAS})
      if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) missing = std::string("cuBLAS is missing (") + dlerror() + "): pip install nvidia-cublas";
    void* driver = library ? dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (library && !driver) missing = std::string("the NVIDIA driver is missing: ") + dlerror();
    find(library, "cublasCreate_v2", create);
    find(library, "cublasSetStream_v2", set_stream);
    find(library, "cublasSetWorkspace_v2", set_workspace);
    find(library, "cublasSetMathMode", set_math);
    find(library, "cublasGemmStridedBatchedEx_64", gemm);
    find(driver, "cuMemAlloc_v2", allocate);
  }

  template <class Function>
  void find(void* library, const char* name, Function& function) {
    function = library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
    if (!function && missing.empty()) missing = std::string("cuBLAS or the driver is too old: no ") + name;
  }
};

int failed(const std::string& message) {
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", message.c_str());
  return -1;
}

// Handles that nobody uses at the moment, for each device and stream. Each has a workspace of its own, in which only
// one stream works: so the same bits come out each time. They are never destroyed: the driver may be gone by then.
std::mutex lock;
std::map<std::pair<int, void*>, std::vector<void*>> idle;

int handle_for(const Cublas& cublas, int device, void* stream, void** handle) {
  {
    std::lock_guard<std::mutex> hold(lock);
    std::vector<void*>& known = idle[{device, stream}];
    if (!known.empty()) {
      *handle = known.back();
      known.pop_back();
      return 0;
    }
  }
  void* workspace = nullptr;
  if (int status = cublas.allocate(&workspace, workspace_bytes))
    return failed("no memory for the workspace of cuBLAS: CUDA's error " + std::to_string(status));
  int status = cublas.create(handle);
  if (!status) status = cublas.set_math(*handle, exact_sums);
  if (!status) status = cublas.set_stream(*handle, stream);  // takes the workspace away
  if (!status) status = cublas.set_workspace(*handle, workspace, workspace_bytes);
  return status ? failed("cuBLAS cannot start: its status " + std::to_string(status)) : 0;
}

// C = A B, rows of matrices side by side. Arguments: A, B, C; whether A, B have columns side by side instead; m, n, k;
// how far apart the rows (or columns) of A, B, C are; for each dimension of the batch its size, and how far apart
// matrices of A, B, C are. The device is the current one already.
int multiply(const Any* given, int32_t count) {
  static const Cublas cublas;
  const auto tensor = [given](int i) { return static_cast<const Tensor*>(given[i].pointer); };
  const auto number = [given](int i) { return given[i].number; };
  const Tensor &a = *tensor(0), &b = *tensor(1), &c = *tensor(2);
  const bool a_turned = number(3), b_turned = number(4);
  int64_t m = number(5), lda = number(8);
  const int64_t n = number(6), k = number(7), ldb = std::max<int64_t>(number(9), 1), ldc = number(10);
  std::vector<Dim> dims;
  for (int i = count - 4; i >= 11; i -= 4) {  // the innermost first
    const Dim dim{number(i), number(i + 1), number(i + 2), number(i + 3)};
    if (!dim.size) return 0;
    if (dim.size == 1) continue;
    const bool single = m == 1 && dim.a >= k, follow = single || dim.a == m * lda;
    if (!dim.b && !a_turned && dims.empty() && follow && dim.c == m * ldc) {  // more rows for the same B
      if (single) lda = dim.a;
      m *= dim.size;
    } else if (!dims.empty() && dim.follows(dims.back())) {
      dims.back().size *= dim.size;
    } else {
      dims.push_back(dim);
    }
  }
  if (!m || !n) return 0;
  lda = std::max<int64_t>(lda, 1);  // without terms there are no values between rows
  if (!cublas.missing.empty()) return failed(cublas.missing);

  Dim batch{1, 0, 0, 0};  // the largest dimension; there is a call for each place of the others
  size_t largest = dims.size();
  for (size_t i = 0; i < dims.size(); ++i)
    if (dims[i].size > batch.size) batch = dims[largest = i];
  if (largest < dims.size()) dims.erase(dims.begin() + largest);
  int64_t calls = 1;
  for (const Dim& dim : dims) calls *= dim.size;

  void* const stream = TVMFFIEnvGetStream(cuda, a.device_id);
  void* handle;
  if (handle_for(cublas, a.device_id, stream, &handle)) return -1;
  const bool wide = c.bits == 64;
  const float one = 1, zero = 0;
  const double wide_one = 1, wide_zero = 0;
  const void *alpha = wide ? static_cast<const void*>(&wide_one) : &one,
             *beta = wide ? static_cast<const void*>(&wide_zero) : &zero;
  int status = 0;
  for (int64_t call = 0; call < calls && !status; ++call) {
    int64_t rest = call, at_a = 0, at_b = 0, at_c = 0;
    for (const Dim& dim : dims) {
      const int64_t place = rest % dim.size;
      at_a += place * dim.a, at_b += place * dim.b, at_c += place * dim.c;
      rest /= dim.size;
    }
    // cuBLAS takes columns side by side: our C = A B is its C' = B' A'
    status = cublas.gemm(handle, b_turned, a_turned, n, m, k, alpha, b.at(at_b), b.type(), ldb, batch.b, a.at(at_a),
                         a.type(), lda, batch.a, beta, c.at(at_c), c.type(), ldc, batch.c, batch.size,
                         wide ? double_sums : float_sums, usual_algorithm);
  }
  std::lock_guard<std::mutex> hold(lock);
  idle[{a.device_id, stream}].push_back(handle);
  return status ? failed("cuBLAS cannot multiply: its status " + std::to_string(status)) : 0;
}

}  // namespace

#define FUNCTION(name)                                                                                      \
  extern "C" __attribute__((visibility("hidden"))) int name(void*, const Any* given, int32_t count, Any*) { \
    return multiply(given, count);                                                                          \
  }
FUNCTIONS(FUNCTION)
