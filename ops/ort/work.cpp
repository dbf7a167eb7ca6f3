#include "work.h"

#include <algorithm>

#include "../cpu/plan.h"
#include "errors.h"

namespace rmsnorm_deploy {

namespace {

// Work divided into blocks of units for onnxruntime's threads.
struct Blocks {
  const Work* work;
  std::int64_t units;
  std::int64_t count;
};

void run_block(void* data, std::size_t index) {
  const Blocks& blocks = *static_cast<const Blocks*>(data);
  const std::int64_t each = blocks.units / blocks.count;
  const std::int64_t longer = blocks.units % blocks.count;  // this many blocks have one unit more
  const std::int64_t i = static_cast<std::int64_t>(index);
  const std::int64_t begin = i * each + std::min(i, longer);
  blocks.work->run(begin, begin + each + (i < longer ? 1 : 0));
}

struct PlanWork final : Work {
  const Plan& plan;
  const Tensors& tensors;
  PlanWork(const Plan& plan, const Tensors& tensors) : plan(plan), tensors(tensors) {}
  void run(std::int64_t begin, std::int64_t end) const noexcept override { plan.run(tensors, begin, end); }
};

}  // namespace

void run_parallel(const Node& node, ort::KernelContext* context, const Work& work, std::int64_t units,
                  std::int64_t unit_work) {
  // Handing work to another thread costs three or four microseconds where that thread has gone to sleep, and it often
  // has. A norm takes about 70 ps a value whatever its type (10 GB/s of 16-bit values and 20 of floats are both that),
  // so below twice that cost more threads are a bet. The number of threads is not known here: the number of blocks only
  // has an upper bound.
  constexpr std::int64_t kBlockWork = 16 * 1024;
  constexpr std::int64_t kMostBlocks = 64;
  const std::int64_t work_all = units * unit_work;
  const std::int64_t blocks = work_all < kLeastParallel ? 1 : std::min({units, work_all / kBlockWork, kMostBlocks});
  if (blocks <= 1) {
    work.run(0, units);
    return;
  }
  Blocks divided = {&work, units, blocks};
  check(ort::call<ort::KernelContext_ParallelFor>(node.api, context, &run_block, static_cast<std::size_t>(blocks), 0,
                                                  &divided));
}

void prepare_norm(const Node& node, Plan& plan, const rms_norm_params& params, const Shape& x, bool already_rounded,
                  bool moderate) {
  if (const int code = plan.prepare(params, already_rounded, moderate)) {
    throw Error(ort::kInvalidArgument,
                node.owner + ": " + rmsnorm_deploy_error_text(code) + " (X has shape " + x.text() + ")");
  }
}

void run_plan(const Node& node, ort::KernelContext* context, const Plan& plan, const Tensors& tensors) {
  run_parallel(node, context, PlanWork(plan, tensors), plan.units(), plan.unit_work());
}

void run_norm(const Node& node, ort::KernelContext* context, const rms_norm_params& params, const Shape& x,
              bool already_rounded) {
  Plan plan;
  prepare_norm(node, plan, params, x, already_rounded);
  run_plan(node, context, plan, Tensors(params));
}

}  // namespace rmsnorm_deploy
