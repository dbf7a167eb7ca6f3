// Copies from global to shared memory that go on by themselves. Each is made at once, or not before it is waited for,
// at random: whoever reads without waiting finds what was there before, and whoever copies over what is needed yet
// loses it.
#ifndef RMSNORM_DEPLOY_TESTS_CUDA_PIPELINE_H_
#define RMSNORM_DEPLOY_TESTS_CUDA_PIPELINE_H_

#include "cuda_runtime.h"

namespace emulator {
void copy(void* to, const void* from, std::size_t bytes);
void end_of_copies();
void wait_for_copies(std::size_t later);
}  // namespace emulator

inline void __pipeline_memcpy_async(void* to, const void* from, std::size_t bytes) { emulator::copy(to, from, bytes); }
inline void __pipeline_commit() { emulator::end_of_copies(); }
inline void __pipeline_wait_prior(std::size_t later) { emulator::wait_for_copies(later); }

#endif  // RMSNORM_DEPLOY_TESTS_CUDA_PIPELINE_H_
