// Addresses within a tensor whose type is known at run time.
#ifndef RMSNORM_DEPLOY_CPU_ADDRESS_H_
#define RMSNORM_DEPLOY_CPU_ADDRESS_H_

#include <cstdint>

namespace rmsnorm_deploy {

template <typename T>
const T* at(const void* base, std::int64_t index) {
  return static_cast<const T*>(base) + index;
}
template <typename T>
T* at(void* base, std::int64_t index) {
  return static_cast<T*>(base) + index;
}

// `bytes` behind `base`, or null where that is null.
inline const void* advance(const void* base, std::int64_t bytes) {
  return base ? at<unsigned char>(base, bytes) : nullptr;
}
inline void* advance(void* base, std::int64_t bytes) { return base ? at<unsigned char>(base, bytes) : nullptr; }

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CPU_ADDRESS_H_
