#include "narrow.h"

#include "../../cpu/plan.h"
#include "../../cpu/scalar.h"

namespace rmsnorm_deploy {
namespace {

template <typename T>
void narrow_all(const float* from, std::int64_t count, T* to) noexcept {
  for (std::int64_t i = 0; i < count; ++i) narrow(widen(from[i]), to[i]);
}

}  // namespace

void narrow_floats(const float* from, std::int64_t count, std::int32_t type, void* to) noexcept {
  std::int64_t done = 0;
#if defined(RMSNORM_DEPLOY_X86)
  const KernelTable* chosen = kernels();
  if (chosen && chosen != &kPortableKernels) done = narrow_floats_avx2(from, count, type, to);
#endif
  if (type == RMS_NORM_FLOAT16) {
    narrow_all(from + done, count - done, static_cast<Half*>(to) + done);
  } else {
    narrow_all(from + done, count - done, static_cast<Bfloat*>(to) + done);
  }
}

}  // namespace rmsnorm_deploy
