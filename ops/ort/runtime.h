// The onnxruntime that registered the ops, which not every call is handed.
#ifndef RMSNORM_DEPLOY_ORT_RUNTIME_H_
#define RMSNORM_DEPLOY_ORT_RUNTIME_H_

#include "abi.h"

namespace rmsnorm_deploy {

// Remember its interface, that of kReferenceVersion (or null), and the minor number of its version. Called before the
// first op is made.
void set_runtime(const ort::Api* api, const ort::Api* references, int minor) noexcept;

const ort::Api* runtime_api() noexcept;
const ort::Api* reference_api() noexcept;  // null where the runtime is older than kReferenceVersion
int runtime_minor() noexcept;

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_RUNTIME_H_
