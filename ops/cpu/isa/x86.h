// What an x86-64 processor can do, asked in a way that every one of them understands: although the including file is
// compiled for newer ones.
#ifndef RMSNORM_DEPLOY_CPU_ISA_X86_H_
#define RMSNORM_DEPLOY_CPU_ISA_X86_H_

#include <cpuid.h>

// For functions that run before anything is known of the processor.
#define ON_ANY_X86 __attribute__((target("general-regs-only")))

namespace {

// Read from the processor itself: not every compiler's library knows the answers of __builtin_cpu_supports.
struct X86 {
  unsigned basic = 0;     // leaf 1, ecx
  unsigned extended = 0;  // leaf 7, ebx
  unsigned later = 0;     // leaf 7, ecx
  unsigned saved = 0;     // registers that the operating system saves
};

ON_ANY_X86 inline X86 this_x86() {
  X86 found;
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return found;
  found.basic = ecx;
  if (ecx & bit_OSXSAVE) {
    unsigned high;
    __asm__("xgetbv" : "=a"(found.saved), "=d"(high) : "c"(0));
  }
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    found.extended = ebx;
    found.later = ecx;
  }
  return found;
}

ON_ANY_X86 inline bool has(unsigned word, unsigned bits) { return (word & bits) == bits; }

ON_ANY_X86 inline bool has_avx2_fma_f16c(const X86& x86) {
  constexpr unsigned kWide = 0x6;  // xmm and ymm
  return has(x86.saved, kWide) && has(x86.basic, bit_AVX | bit_FMA | bit_F16C) && has(x86.extended, bit_AVX2);
}

}  // namespace

#endif  // RMSNORM_DEPLOY_CPU_ISA_X86_H_
