// The kernels by name, for the code that chooses among them.
#ifndef RMSNORM_DEPLOY_CUDA_KERNELS_H_
#define RMSNORM_DEPLOY_CUDA_KERNELS_H_

#include "args.h"

namespace rmsnorm_deploy {
namespace cuda {

// Threads of a block, at most.
constexpr int kRowsThreads = 256;
constexpr int kLongRowsThreads = 512;
constexpr int kStridedThreads = 256;

// Chunks to a thread that the third kernel for strided groups keeps.
constexpr int kKeptChunks = 8;

// Shared memory of a block of rows: partial sums of its warps (of two floats at most), twice, used in turn so that a
// row costs one barrier; two more for rows that are not ordinary; then the row itself where it is staged.
constexpr int kMostWarps = 32;
constexpr int kReduceBytes = 4 * kMostWarps * 8;
constexpr int kExtremeBytes = kMostWarps * 8;  // behind that, for the extremes of rows

// What the kernels for rows in registers are made for. The two ordinary forms test nothing of it for each chunk: the
// whole row is measured, there is no bias, all rows have one scale, and there are at most kOrdinaryRows of them.
constexpr int kAnyForm = 0;
constexpr int kOneRounding = 1;   // ordinary; rounded at the end (Gemma), or float32
constexpr int kTwoRoundings = 2;  // ordinary, 16 bits; rounded before the scale too (Llama)
constexpr std::int64_t kOrdinaryRows = std::int64_t{1} << 30;

using Kernel = void (*)(Args);
using RowKernel = void (*)(RowArgs);

struct RowKernels {
  RowKernel chunks2;  // rows in registers: two or four chunks to a thread
  RowKernel chunks4;  // null where there is none: then those of two do it, with the same bits
  RowKernel longer;   // rows in shared memory, or read twice; of any form
};

// wide_scale: scale and bias are float32 whatever the type of x.
RowKernels float32_rows(bool wide_scale, bool residual, int form) noexcept;
RowKernels float16_rows(bool wide_scale, bool residual, int form) noexcept;
RowKernels bfloat16_rows(bool wide_scale, bool residual, int form) noexcept;

struct StridedKernels {
  Kernel single;    // any strides and alignment, one value at a time
  Kernel chunked;   // whole chunks along the columns, read twice
  Kernel chunked8;  // the same, at most eight chunks to a thread, kept in registers
};

StridedKernels float32_strided() noexcept;
StridedKernels float16_strided() noexcept;
StridedKernels bfloat16_strided() noexcept;

// Arithmetic in float64, for x of any type.
Kernel float64_kernel(std::int32_t x_type) noexcept;

// The same norms, to the bit, of rows that lie apart or whose results go elsewhere than into y of x's type: whole
// chunks in the order of additions of RowKernels, single values in that of StridedKernels and float64_kernel.
using OutputRowKernel = void (*)(OutputRowArgs);
using OutputKernel = void (*)(OutputArgs);
OutputRowKernel output_rows(std::int32_t x_type) noexcept;
OutputKernel output_values(std::int32_t x_type, bool float64) noexcept;

// Norms with a gate: whole chunks, and single values.
using GatedRowKernel = void (*)(GatedRowArgs);
using GatedKernel = void (*)(GatedArgs);
GatedRowKernel gated_rows(std::int32_t x_type) noexcept;
GatedKernel gated_values(std::int32_t x_type, bool float64) noexcept;

}  // namespace cuda
}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CUDA_KERNELS_H_
