// For which execution providers of onnxruntime this library has kernels.
#include "../../include/rms_norm_cuda.h"
#include "../library.h"

namespace rmsnorm_deploy {
namespace {

// onnxruntime's CUDA provider is also built as a plug-in, which some releases know under a name of its own. An op for a
// provider that a runtime lacks is never looked at, so nothing here depends on the runtime: a plug-in can come later.
constexpr Provider kProviders[] = {
    {nullptr, false},
    {"CUDAExecutionProvider", true},
    {"CudaPluginExecutionProvider", true},
};

}  // namespace

std::size_t provider_count() noexcept {
  return *rmsnorm_deploy_cuda_architectures() ? sizeof kProviders / sizeof kProviders[0] : 1;
}
const Provider& provider_at(std::size_t index) noexcept { return kProviders[index]; }

}  // namespace rmsnorm_deploy
