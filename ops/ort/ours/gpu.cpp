#include "gpu.h"

#include "../errors.h"

namespace rmsnorm_deploy {

void launch(const Node& node, const ort::KernelContext* context, const rms_norm_params& params,
            const rms_norm_gate* gate, const Shape& x) {
  void* stream = nullptr;
  check(ort::call<ort::KernelContext_GetGPUComputeStream>(node.api, context, &stream));
  const int code =
      gate ? rmsnorm_deploy_cuda_run_gated(&params, gate, stream) : rmsnorm_deploy_cuda_run(&params, stream);
  if (code == RMS_NORM_OK) return;
  throw Error(code >= RMS_NORM_CUDA_ERROR ? ort::kFail : ort::kInvalidArgument,
              node.owner + ": " + rmsnorm_deploy_cuda_error_text(code) + " (X has shape " + x.text() + ")");
}

}  // namespace rmsnorm_deploy
