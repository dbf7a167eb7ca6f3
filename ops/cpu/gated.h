// A norm with a gate, checked and laid out, as plan.h does it for those without.
#ifndef RMSNORM_DEPLOY_CPU_GATED_H_
#define RMSNORM_DEPLOY_CPU_GATED_H_

#include <cstdint>

#include "../include/rms_norm_gated.h"
#include "table.h"
#include "weights.h"

namespace rmsnorm_deploy {

class GatedPlan {
 public:
  // As Plan::prepare; `gate` and its tensor must outlive the plan too.
  int prepare(const rms_norm_params& params, const rms_norm_gate& gate, bool already_rounded) noexcept;

  std::int64_t units() const noexcept { return units_; }

  // In values of a norm without a gate: the activation takes longer than the norm.
  std::int64_t unit_work() const noexcept { return size_ * (slow_ ? 32 : 3); }

  void run(std::int64_t begin, std::int64_t end) const noexcept;

 private:
  void run_rows(std::int64_t begin, std::int64_t end) const noexcept;

  const rms_norm_params* params_ = nullptr;
  const rms_norm_gate* gate_ = nullptr;
  const KernelTable* kernels_ = nullptr;
  bool float64_ = false;
  bool slow_ = false;       // one value after the other, in double precision
  std::int64_t size_ = 0;   // of the normalised dimensions
  std::int64_t inner_ = 0;  // of those behind
  std::int64_t units_ = 0;
  std::int64_t same_weights_ = 1;
  Attributes attributes_;
  Weights scale_;
};

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CPU_GATED_H_
