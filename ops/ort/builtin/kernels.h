// Kernels of onnxruntime's own operators.
#ifndef RMSNORM_DEPLOY_ORT_BUILTIN_KERNELS_H_
#define RMSNORM_DEPLOY_ORT_BUILTIN_KERNELS_H_

#include <memory>

#include "../custom_op.h"

namespace rmsnorm_deploy {

// SimplifiedLayerNormalization and RMSNormalization.
std::unique_ptr<Kernel> make_norm(const Op& op, const ort::Api* api, const ort::KernelInfo* info);

// SkipSimplifiedLayerNormalization.
std::unique_ptr<Kernel> make_skip(const Op& op, const ort::Api* api, const ort::KernelInfo* info);

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_BUILTIN_KERNELS_H_
