// What an instruction set begins with: the element types in memory, and how its operations are declared. It goes on to
// define Vector and the operations on it, all in an anonymous namespace, and ends by including kernels.h. An object
// file is compiled for one instruction set, so nothing in it may have external linkage but the table.
#ifndef RMSNORM_DEPLOY_CPU_ISA_TYPES_H_
#define RMSNORM_DEPLOY_CPU_ISA_TYPES_H_

#include <cstdint>
#include <cstring>

#include "../formula.h"

using namespace rmsnorm_deploy;  // NOLINT: the table's types and the formula, nothing else

namespace {

struct Half {
  std::uint16_t bits;
};
struct Bfloat {
  std::uint16_t bits;
};

}  // namespace

#endif  // RMSNORM_DEPLOY_CPU_ISA_TYPES_H_
