// What tells one onnxruntime library of this project from another: the domains that it registers, each with its ops.
#ifndef RMSNORM_DEPLOY_ORT_LIBRARY_H_
#define RMSNORM_DEPLOY_ORT_LIBRARY_H_

#include "abi.h"

namespace rmsnorm_deploy {

struct LibraryDomain {
  const char* name;
  std::size_t op_count;
  // The op with an index. Ops live as long as the library, since sessions keep pointers to them.
  const ort::CustomOp* (*op_at)(std::size_t index);
};

// Defined by each library.
constexpr std::size_t kMostDomains = 2;
std::size_t domain_count() noexcept;
const LibraryDomain& domain_at(std::size_t index) noexcept;

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_LIBRARY_H_
