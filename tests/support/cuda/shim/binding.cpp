// What the onnxruntime binding needs beside its own sources so that its ops for a GPU run on the emulator: they are
// registered for the GPU's providers, and in the place of the CPU's ops for the CPU, whose memory is the emulated one.
#include <cstddef>

#include "cpu/convert.h"
#include "cpu/gated.h"
#include "cpu/plan.h"
#include "include/rms_norm.h"
#include "ort/library.h"

namespace rmsnorm_deploy {

constexpr Provider kProviders[] = {
    {nullptr, true}, {"CUDAExecutionProvider", true}, {"CudaPluginExecutionProvider", true}};
std::size_t provider_count() noexcept { return sizeof kProviders / sizeof kProviders[0]; }
const Provider& provider_at(std::size_t index) noexcept { return kProviders[index]; }

// The kernels of the CPU, which must not be asked for anything.
bool all_moderate(const float*, std::int64_t) noexcept { __builtin_trap(); }
int Plan::prepare(const rms_norm_params&, bool, bool) noexcept { __builtin_trap(); }
void Plan::run(const Tensors&, std::int64_t, std::int64_t) const noexcept { __builtin_trap(); }
std::int64_t Plan::pieces() const noexcept { __builtin_trap(); }
void Plan::run_ranges(const Tensors&, std::int64_t, std::int64_t, const RowFactors&, const PieceEnds&) const noexcept {
  __builtin_trap();
}
void Plan::widen_range(const Tensors&, const RowFactors&, const PieceEnds&, float*, float*) const noexcept {
  __builtin_trap();
}
void Plan::run_outputs(const Tensors&, std::int64_t, std::int64_t, const RowFactors&) const noexcept {
  __builtin_trap();
}
int GatedPlan::prepare(const rms_norm_params&, const rms_norm_gate&, bool) noexcept { __builtin_trap(); }
void GatedPlan::run(std::int64_t, std::int64_t) const noexcept { __builtin_trap(); }
void convert(const void*, std::int32_t, std::int64_t, std::int32_t, std::int32_t, void*) noexcept { __builtin_trap(); }

}  // namespace rmsnorm_deploy

extern "C" {
RMS_NORM_EXPORT const char* rmsnorm_deploy_cpu_isa(void) { return "emulated"; }
RMS_NORM_EXPORT const char* rmsnorm_deploy_cpu_isa_at(int, int*) { return nullptr; }
}
