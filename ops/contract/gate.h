// Whether a norm with a gate makes sense; the same for every backend.
#ifndef RMSNORM_DEPLOY_CONTRACT_GATE_H_
#define RMSNORM_DEPLOY_CONTRACT_GATE_H_

#include "../include/rms_norm_gated.h"
#include "check.h"

namespace rmsnorm_deploy {

// A code of the contract, as check() gives one; `params` is of this library's version.
int check_gated(const rms_norm_params& params, const rms_norm_gate& gate, Sizes& sizes) noexcept;

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CONTRACT_GATE_H_
