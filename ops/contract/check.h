// Whether the params of the contract make sense, the sizes that follow from them, and the sentence for each code; the
// same for every backend.
#ifndef RMSNORM_DEPLOY_CONTRACT_CHECK_H_
#define RMSNORM_DEPLOY_CONTRACT_CHECK_H_

#include <cstdint>

#include "../include/rms_norm.h"

namespace rmsnorm_deploy {

struct Sizes {
  bool float64;           // arithmetic in float64
  std::int64_t outer;     // product of the dimensions before the normalised ones
  std::int64_t size;      // of the normalised ones
  std::int64_t inner;     // of those behind
  std::int64_t total;     // of all
  std::int64_t measured;  // entries of the normalised run in the mean
};

// Bytes of one element, or 0 for a type that the contract does not have.
std::int64_t element_size(std::int32_t type) noexcept;

// A code of the contract. `params` is of this library's version, as versions.h makes it. `sizes` is complete on
// RMS_NORM_OK only; nothing is left to do where its total is 0.
int check(const rms_norm_params& params, Sizes& sizes) noexcept;

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CONTRACT_CHECK_H_
