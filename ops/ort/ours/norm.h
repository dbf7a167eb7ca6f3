// Kernels of this project's operators: one for all of them, since the contract covers them all.
#ifndef RMSNORM_DEPLOY_ORT_OURS_NORM_H_
#define RMSNORM_DEPLOY_ORT_OURS_NORM_H_

#include <memory>

#include "../custom_op.h"

namespace rmsnorm_deploy {

std::unique_ptr<Kernel> make_norm(const Op& op, const ort::Api* api, const ort::KernelInfo* info);

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_OURS_NORM_H_
