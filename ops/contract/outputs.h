// What version 2 of the contract added: other types of output, extremes of rows, and rows that lie apart. Whether it is
// allowed, and where the rows of each tensor are.
#ifndef RMSNORM_DEPLOY_CONTRACT_OUTPUTS_H_
#define RMSNORM_DEPLOY_CONTRACT_OUTPUTS_H_

#include <cstdint>

#include "check.h"

namespace rmsnorm_deploy {

// The tensors of x's shape, in the order of the bits of `strided`.
enum RowTensor { kRowsOfX, kRowsOfResidual, kRowsOfY, kRowsOfSum, kRowsOfQuantised, kRowTensors };

// Type of y, which is also the one that is quantised.
std::int32_t type_of_y(const rms_norm_params& params) noexcept;

// Whether anything is asked for beside y of x's type in contiguous tensors.
bool has_outputs(const rms_norm_params& params) noexcept;

// A code of the contract; `sizes` is that of params whose older fields are right.
int check_outputs(const rms_norm_params& params, const Sizes& sizes) noexcept;

// Where rows begin, in elements of each tensor. They come in runs: within one, each tensor has a constant step.
struct Rows {
  std::int64_t run;                // rows in one; runs begin at its multiples
  std::int64_t step[kRowTensors];  // from a row to the next in the same run
};
Rows rows_of(const rms_norm_params& params, const Sizes& sizes) noexcept;
std::int64_t offset_of_row(const rms_norm_params& params, std::int64_t size, RowTensor tensor,
                           std::int64_t row) noexcept;

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CONTRACT_OUTPUTS_H_
