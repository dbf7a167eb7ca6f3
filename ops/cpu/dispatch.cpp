// Which instruction set runs, and the exported half of the contract.
#include <atomic>
#include <cstdlib>
#include <cstring>

#if defined(RMSNORM_DEPLOY_X86)
#include <cpuid.h>
#endif

#include "../contract/versions.h"
#include "plan.h"

namespace rmsnorm_deploy {
namespace {

bool anywhere() { return true; }

#if defined(RMSNORM_DEPLOY_X86)
bool has_avx2() {
  __builtin_cpu_init();
  // These two also say that the operating system saves the wide registers. F16C has a name for this builtin in some
  // compilers only, so its bit is read directly.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return false;
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}
// Whether to use AVX-512. The first processors that had it slow down when they do, and lack VBMI2.
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vbmi2");
}
#endif

struct Choice {
  const KernelTable* kernels;
  bool (*usable)();
};

// Best first.
const Choice kChoices[] = {
#if defined(RMSNORM_DEPLOY_X86)
    {&kAvx512Kernels, has_avx512},
    {&kAvx2Kernels, has_avx2},
#endif
#if defined(RMSNORM_DEPLOY_ARM64)
    {&kNeonKernels, anywhere},
#endif
    {&kPortableKernels, anywhere},
};

std::atomic<const KernelTable*> chosen{nullptr};

const KernelTable* choose(const char* name) {
  for (const Choice& choice : kChoices) {
    const bool wanted = !name || !*name || std::strcmp(name, choice.kernels->name) == 0;
    if (wanted && choice.usable()) return choice.kernels;
  }
  return nullptr;
}

}  // namespace

const KernelTable* kernels() noexcept {
  const KernelTable* table = chosen.load(std::memory_order_acquire);
  if (!table) {
    // Two threads may both come here at the same time; they find the same answer.
    table = choose(std::getenv("RMSNORM_DEPLOY_ISA"));
    if (table) chosen.store(table, std::memory_order_release);
  }
  return table;
}

}  // namespace rmsnorm_deploy

using rmsnorm_deploy::Plan;

extern "C" {

int rmsnorm_deploy_cpu_run(const rms_norm_params* params) {
  if (!params) return RMS_NORM_BAD_POINTER;
  rms_norm_params room;
  Plan plan;
  const int code = plan.prepare(rmsnorm_deploy::current(*params, room), false);
  if (code == RMS_NORM_OK) plan.run(0, plan.units());
  return code;
}

const char* rmsnorm_deploy_cpu_isa(void) {
  const rmsnorm_deploy::KernelTable* table = rmsnorm_deploy::kernels();
  return table ? table->name : nullptr;
}

int rmsnorm_deploy_cpu_set_isa(const char* name) {
  if (!name || !*name) {
    rmsnorm_deploy::chosen.store(nullptr, std::memory_order_release);
    return rmsnorm_deploy::kernels() ? RMS_NORM_OK : RMS_NORM_BAD_ISA;
  }
  const rmsnorm_deploy::KernelTable* table = rmsnorm_deploy::choose(name);
  if (!table) return RMS_NORM_BAD_ISA;
  rmsnorm_deploy::chosen.store(table, std::memory_order_release);
  return RMS_NORM_OK;
}

const char* rmsnorm_deploy_cpu_isa_at(int index, int* usable) {
  constexpr int count = static_cast<int>(sizeof rmsnorm_deploy::kChoices / sizeof rmsnorm_deploy::kChoices[0]);
  if (index < 0 || index >= count) return nullptr;
  if (usable) *usable = rmsnorm_deploy::kChoices[index].usable() ? 1 : 0;
  return rmsnorm_deploy::kChoices[index].kernels->name;
}

}  // extern "C"
