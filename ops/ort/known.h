// Small norms that a node has run before: what they come to is worked out once for each shape of X.
#ifndef RMSNORM_DEPLOY_ORT_KNOWN_H_
#define RMSNORM_DEPLOY_ORT_KNOWN_H_

#include <atomic>
#include <memory>

#include "../cpu/plan.h"
#include "../include/rms_norm.h"
#include "tensors.h"

namespace rmsnorm_deploy {

// A norm is described and checked in a few hundred steps, whose code and tables have left the caches by the time that a
// model has read its weights: for one row of a language model that takes longer than the norm.
class Known {
 public:
  struct Norm {
    Shape x;
    rms_norm_params params;  // its long arrays are set as far as they are used
    Plan plan;               // of `params`; its scale and bias are constants of the node
  };

  Known() = default;
  Known(const Known&) = delete;
  Known& operator=(const Known&) = delete;
  ~Known();

  // Null where there is none for this shape. Any number of threads may look and keep at the same time.
  const Norm* find(const Shape& x) const noexcept;

  // Whether a norm of this shape is small, and there is room for it.
  bool wants(const Shape& x) const noexcept;

  // Takes it where there is still room, and leaves it where it is otherwise.
  const Norm* keep(std::unique_ptr<Norm>& norm) const noexcept;

 private:
  static constexpr int kMost = 4;
  mutable std::atomic<Norm*> norms_[kMost] = {};  // filled in order; what is there stays
};

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_KNOWN_H_
