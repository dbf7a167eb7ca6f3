// Norms on onnxruntime's threads.
#ifndef RMSNORM_DEPLOY_ORT_WORK_H_
#define RMSNORM_DEPLOY_ORT_WORK_H_

#include <cstdint>

#include "../include/rms_norm.h"
#include "tensors.h"

namespace rmsnorm_deploy {

class Plan;
struct Tensors;

// Ranges of units of work that can run at the same time.
struct Work {
  virtual ~Work() = default;
  virtual void run(std::int64_t begin, std::int64_t end) const noexcept = 0;
};

// Units of fewer values than this are not worth handing over.
constexpr std::int64_t kLeastParallel = 96 * 1024;

// Run all units on onnxruntime's threads, or on this one where they are too small to be worth handing over. `unit_work`
// is in values of a float32 or 16-bit norm.
void run_parallel(const Node& node, ort::KernelContext* context, const Work& work, std::int64_t units,
                  std::int64_t unit_work);

// Prepare `params`, or say what is wrong with them. `already_rounded` and `moderate` as in Plan.
void prepare_norm(const Node& node, Plan& plan, const rms_norm_params& params, const Shape& x, bool already_rounded,
                  bool moderate = false);

void run_plan(const Node& node, ort::KernelContext* context, const Plan& plan, const Tensors& tensors);

// Prepare `params` and run it.
void run_norm(const Node& node, ort::KernelContext* context, const rms_norm_params& params, const Shape& x,
              bool already_rounded);

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_WORK_H_
