// The kernels for any machine, on four lanes: SSE2 on x86-64, NEON on aarch64.
#include "types.h"

namespace {

bool usable() { return true; }

constexpr int kLanes = 4;

}  // namespace

#include "generic.h"

#define INSTRUCTION_SET portable
#include "kernels.h"
