// Which instruction set runs.
#ifndef RMSNORM_DEPLOY_CPU_DISPATCH_H_
#define RMSNORM_DEPLOY_CPU_DISPATCH_H_

#include "table.h"

namespace rmsnorm_deploy {

// The chosen kernels, or null where the environment asks for some that cannot run.
const KernelTable* kernels() noexcept;

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CPU_DISPATCH_H_
