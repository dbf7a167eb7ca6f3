#include "runtime.h"

#include <atomic>

namespace rmsnorm_deploy {

namespace {

std::atomic<const ort::Api*> remembered_api{nullptr};
std::atomic<const ort::Api*> remembered_references{nullptr};
std::atomic<int> remembered_minor{0};

}  // namespace

void set_runtime(const ort::Api* api, const ort::Api* references, int minor) noexcept {
  remembered_references.store(references, std::memory_order_release);
  remembered_minor.store(minor, std::memory_order_release);
  remembered_api.store(api, std::memory_order_release);
}
const ort::Api* runtime_api() noexcept { return remembered_api.load(std::memory_order_acquire); }
const ort::Api* reference_api() noexcept { return remembered_references.load(std::memory_order_acquire); }
int runtime_minor() noexcept { return remembered_minor.load(std::memory_order_acquire); }

}  // namespace rmsnorm_deploy
