// The kernels for any machine, on four lanes: SSE2 on x86-64, NEON on aarch64.
#include "types.h"

namespace {

bool usable() { return true; }

constexpr int kLanes = 4;

}  // namespace

// Where another set nearly always runs, these are kept small: no copies for rows of usual sizes or past the caches, and
// conversions of float16, which are long here, are called. The results are the same.
#if defined(__x86_64__) || defined(__aarch64__)
#define FEW_KERNELS
#endif

#include "generic.h"

#define INSTRUCTION_SET portable
#include "kernels.h"
