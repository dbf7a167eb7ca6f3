#include "known.h"

#include "work.h"

namespace rmsnorm_deploy {

Known::~Known() {
  for (const auto& norm : norms_) delete norm.load(std::memory_order_relaxed);
}

const Known::Norm* Known::find(const Shape& x) const noexcept {
  for (const auto& each : norms_) {
    const Norm* const norm = each.load(std::memory_order_acquire);
    if (!norm) break;
    if (norm->x == x) return norm;
  }
  return nullptr;
}

bool Known::wants(const Shape& x) const noexcept {
  constexpr std::int64_t kMostWork = 4;  // of a value, as Plan counts it
  const std::int64_t count = x.count();
  return !norms_[kMost - 1].load(std::memory_order_relaxed) && count > 0 && count < kLeastParallel / kMostWork;
}

const Known::Norm* Known::keep(std::unique_ptr<Norm>& norm) const noexcept {
  if (norm->plan.depends_on_tensors()) return norm.get();
  for (auto& each : norms_) {
    Norm* none = nullptr;
    if (each.compare_exchange_strong(none, norm.get(), std::memory_order_acq_rel)) return norm.release();
  }
  return norm.get();
}

}  // namespace rmsnorm_deploy
