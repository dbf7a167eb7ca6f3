// What tells one onnxruntime library of this project from another: its operators, by domain, and their providers.
#ifndef RMSNORM_DEPLOY_ORT_LIBRARY_H_
#define RMSNORM_DEPLOY_ORT_LIBRARY_H_

#include "custom_op.h"

namespace rmsnorm_deploy {

struct LibraryDomain {
  const char* name;
  const Signature* operators;
  std::size_t operator_count;
  // The session's configuration entry that leaves this domain out where it is "0"; or null.
  const char* switched_by = nullptr;
};

// Defined by each library.
constexpr std::size_t kMostDomains = 2;
std::size_t domain_count() noexcept;
const LibraryDomain& domain_at(std::size_t index) noexcept;
std::size_t provider_count() noexcept;
const Provider& provider_at(std::size_t index) noexcept;

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_LIBRARY_H_
