// What a struct of an older version of the contract means.
#ifndef RMSNORM_DEPLOY_CONTRACT_VERSIONS_H_
#define RMSNORM_DEPLOY_CONTRACT_VERSIONS_H_

#include <cstdint>

#include "../include/rms_norm.h"

namespace rmsnorm_deploy {

// Gives every field that is newer than `version` its neutral value.
void set_neutral(rms_norm_params& params, std::uint32_t version) noexcept;

// `given` in this library's layout. A struct of an older version is copied to `room`, with the neutral value in every
// newer field; any other struct is returned as it is, and check() refuses it where its version is unknown.
const rms_norm_params& current(const rms_norm_params& given, rms_norm_params& room) noexcept;

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CONTRACT_VERSIONS_H_
