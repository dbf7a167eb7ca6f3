// What an x86-64 processor can do, asked in a way that every one of them understands: although the including file is
// compiled for newer ones.
#ifndef RMSNORM_DEPLOY_CPU_ISA_X86_H_
#define RMSNORM_DEPLOY_CPU_ISA_X86_H_

#include <cpuid.h>

// For functions that run before anything is known of the processor.
#define ON_ANY_X86 __attribute__((target("general-regs-only")))

namespace {

ON_ANY_X86 inline bool has_avx2_fma_f16c() {
  __builtin_cpu_init();
  // These two also say that the operating system saves the wide registers. F16C has a name for this builtin in some
  // compilers only, so its bit is read directly.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return false;
  unsigned eax, ebx, ecx, edx;
  __cpuid(1, eax, ebx, ecx, edx);
  return ecx & bit_F16C;
}

}  // namespace

#endif  // RMSNORM_DEPLOY_CPU_ISA_X86_H_
