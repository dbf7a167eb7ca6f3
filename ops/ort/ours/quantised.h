// Kernels of norms whose result is quantised, by a given scale or by one of its own range.
#ifndef RMSNORM_DEPLOY_ORT_OURS_QUANTISED_H_
#define RMSNORM_DEPLOY_ORT_OURS_QUANTISED_H_

#include <memory>

#include "../custom_op.h"

namespace rmsnorm_deploy {

std::unique_ptr<Kernel> make_quantised(const Op& op, const ort::Api* api, const ort::KernelInfo* info);
std::unique_ptr<Kernel> make_dynamically_quantised(const Op& op, const ort::Api* api, const ort::KernelInfo* info);

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_OURS_QUANTISED_H_
