// The kernel of GatedRMSNorm.
#ifndef RMSNORM_DEPLOY_ORT_OURS_GATED_H_
#define RMSNORM_DEPLOY_ORT_OURS_GATED_H_

#include <memory>

#include "../custom_op.h"

namespace rmsnorm_deploy {

std::unique_ptr<Kernel> make_gated(const Op& op, const ort::Api* api, const ort::KernelInfo* info);

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_OURS_GATED_H_
