// Calls of the kernels for NVIDIA GPUs.
#ifndef RMSNORM_DEPLOY_ORT_OURS_GPU_H_
#define RMSNORM_DEPLOY_ORT_OURS_GPU_H_

#include "../../include/rms_norm_cuda.h"
#include "../abi.h"
#include "../tensors.h"

namespace rmsnorm_deploy {

// Launch one norm, with a gate where `gate` is not null, on the stream that onnxruntime orders the node's neighbours
// on, and return at once: no waiting, no memory, so that the launch can be captured in a CUDA graph.
void launch(const Node& node, const ort::KernelContext* context, const rms_norm_params& params,
            const rms_norm_gate* gate, const Shape& x);

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_OURS_GPU_H_
