// How much the last-level cache holds, which decides how outputs are written.
#ifndef RMSNORM_DEPLOY_CPU_CACHE_H_
#define RMSNORM_DEPLOY_CPU_CACHE_H_

#include <cstdint>

namespace rmsnorm_deploy {

// Bytes from which a call's tensors together count as too large for every cache: half the last-level one. The
// environment variable RMSNORM_DEPLOY_STREAMING, read at the first use, gives another number; 0 says that none are.
// Negative where that variable holds no number.
std::int64_t far_bytes() noexcept;

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CPU_CACHE_H_
