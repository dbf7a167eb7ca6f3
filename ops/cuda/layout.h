// How the tensors of a call lie, as the kernels want to be told.
#ifndef RMSNORM_DEPLOY_CUDA_LAYOUT_H_
#define RMSNORM_DEPLOY_CUDA_LAYOUT_H_

#include "../contract/check.h"
#include "args.h"

namespace rmsnorm_deploy {
namespace cuda {

constexpr std::int64_t kChunkBytes = 16;

// Whether chunks can lie there.
bool aligned(const void* address);

// Scale or bias, its dimensions merged.
Weights weights(const rms_norm_params& params, const void* data, const std::int64_t* strides);

// Whether the kernels of rows can use these weights; fills in what they need.
bool fit_rows(const Weights& w, std::int32_t x_type, std::int64_t rows, RowWeights& result);

// Whether the kernels that take chunks of columns can.
bool fit_columns(const Weights& w, std::int32_t x_type);

// What version 2 of the contract asks for; `out` is all zeros before. False where that comes to nothing: contiguous
// rows, and nothing but y of x's type.
bool outputs_of(const rms_norm_params& params, const Sizes& sizes, Outputs& out);

}  // namespace cuda
}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CUDA_LAYOUT_H_
