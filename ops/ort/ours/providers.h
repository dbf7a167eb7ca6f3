// For which execution providers of onnxruntime this library has kernels.
#ifndef RMSNORM_DEPLOY_ORT_PROVIDERS_H_
#define RMSNORM_DEPLOY_ORT_PROVIDERS_H_

#include <cstddef>

namespace rmsnorm_deploy {

struct Provider {
  const char* name;  // null is the CPU
  bool on_gpu;       // its tensors are on an NVIDIA GPU
};

constexpr std::size_t kMostProviders = 3;

// Those of this library, in a fixed order; without CUDA kernels only the CPU.
std::size_t provider_count() noexcept;
const Provider& provider_at(std::size_t index) noexcept;

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_PROVIDERS_H_
