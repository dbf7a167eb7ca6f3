// Runs a norm that `rmsnorm-deploy compile` has compiled, from C++ and without Python.
//
//     run_compiled FOLDER ROWS COLUMNS EPSILON
//
// FOLDER is what the command wrote. Its model has two float32 inputs, X of shape [ROWS, COLUMNS] and the scale of shape
// [COLUMNS], and one float32 output of X's shape. Both inputs are filled with a fixed pattern; the output is compared
// with arithmetic in double and printed, one value on a line, with all its digits.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <new>
#include <string>

namespace ffi = tvm::ffi;

namespace {

// Compiled code takes it for granted that tensors begin at such addresses.
constexpr std::align_val_t kAlignment{64};

struct Memory {
  void AllocData(DLTensor* tensor) { tensor->data = ::operator new(ffi::GetDataSize(*tensor), kAlignment); }
  void FreeData(DLTensor* tensor) { ::operator delete(tensor->data, kAlignment); }
};

ffi::Tensor float_tensor(std::initializer_list<std::int64_t> shape) {
  return ffi::Tensor::FromNDAlloc(Memory(), ffi::ShapeView(shape.begin(), shape.size()), DLDataType{kDLFloat, 32, 1},
                                  DLDevice{kDLCPU, 0});
}

float* values(const ffi::Tensor& tensor) { return static_cast<float*>(tensor.data_ptr()); }

ffi::Function function_of(ffi::Module module, const char* name) {
  const ffi::Optional<ffi::Function> found = module->GetFunction(name);
  if (!found.has_value()) TVM_FFI_THROW(RuntimeError) << "the library has no function " << name;
  return found.value();
}

// The norm of one row in double; returns the largest error, in units of the row's largest value times float's epsilon.
double error_of_row(const float* x, const float* scale, const float* y, std::int64_t columns, double epsilon) {
  double total = 0.0;
  for (std::int64_t i = 0; i < columns; ++i) total += static_cast<double>(x[i]) * x[i];
  const double rms = std::sqrt(total / static_cast<double>(columns) + epsilon);
  double largest = 0.0, error = 0.0;
  for (std::int64_t i = 0; i < columns; ++i) {
    const double wanted = x[i] / rms * scale[i];
    const double off = std::fabs(y[i] - wanted);
    largest = std::max(largest, std::fabs(wanted));
    if (!(off <= error)) error = off;  // a NaN, too
  }
  return error / (std::max(largest, 1e-30) * 0x1p-23);
}

int run(const std::string& folder, std::int64_t rows, std::int64_t columns, double epsilon) {
  const ffi::Module library = ffi::Module::LoadFromFile(folder + "/model.so");
  const ffi::Module machine = function_of(library, "vm_load_executable")().cast<ffi::Module>();
  constexpr int kPooled = 2;  // tvm::runtime::memory::AllocatorType: memory is kept for the next call
  function_of(machine, "vm_initialization")(static_cast<int>(kDLCPU), 0, kPooled);
  const ffi::Function model = function_of(machine, "main");

  const ffi::Tensor x = float_tensor({rows, columns}), scale = float_tensor({columns});
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    values(x)[i] = (static_cast<float>(i * 37 % 101) - 50.0f) / 25.0f;
  }
  for (std::int64_t i = 0; i < columns; ++i) values(scale)[i] = 0.5f + static_cast<float>(i % 7) / 4.0f;

  const ffi::Tensor y = model(x, scale).cast<ffi::Tensor>();
  if (y.numel() != rows * columns) TVM_FFI_THROW(ValueError) << "the output has " << y.numel() << " values";
  double error = 0.0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const double one =
        error_of_row(values(x) + row * columns, values(scale), values(y) + row * columns, columns, epsilon);
    if (!(one <= error)) error = one;
  }
  for (std::int64_t i = 0; i < y.numel(); ++i) std::printf("%.9g\n", static_cast<double>(values(y)[i]));
  std::fprintf(stderr, "run_compiled: largest error %.3g ULP\n", error);
  return error <= 4.0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: run_compiled FOLDER ROWS COLUMNS EPSILON\n");
    return 2;
  }
  try {
    return run(argv[1], std::atoll(argv[2]), std::atoll(argv[3]), std::atof(argv[4]));
  } catch (const ffi::Error& error) {
    std::fprintf(stderr, "run_compiled: %s\n", error.message().c_str());
    return 1;
  }
}
