/*
 * The contracts of rms_norm.h and rms_norm_gated.h on an NVIDIA GPU. Every pointer in their structs is a device
 * pointer; meaning, aliasing and accuracy are the same. The structs may be changed or freed as soon as the call
 * returns.
 */
#ifndef RMSNORM_DEPLOY_RMS_NORM_CUDA_H_
#define RMSNORM_DEPLOY_RMS_NORM_CUDA_H_

#include "rms_norm_gated.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a call can return beside the codes of rms_norm.h. */
enum {
  RMS_NORM_NO_CUDA = 100,    /* this library was built without CUDA */
  RMS_NORM_CUDA_ERROR = 1000 /* plus a cudaError_t: what the CUDA runtime said to the launch */
};

/*
 * Launch one norm on `stream` (a cudaStream_t; NULL is the default stream) of the device that x lies on, which becomes
 * the current device unless `stream` is being captured. Never synchronises, allocates or copies, so that it can be
 * captured in a CUDA graph. Errors that a kernel meets while it runs appear at the caller's next synchronisation.
 */
RMS_NORM_EXPORT int rmsnorm_deploy_cuda_run(const rms_norm_params* params, void* stream);

/* The same for a norm with a gate, which the contract of rms_norm_gated.h is about; its tensor too is on the device. */
RMS_NORM_EXPORT int rmsnorm_deploy_cuda_run_gated(const rms_norm_params* params, const rms_norm_gate* gate,
                                                  void* stream);

/* The sentence that belongs to a code of either header; never NULL, never to be freed. */
RMS_NORM_EXPORT const char* rmsnorm_deploy_cuda_error_text(int code);

/* The architectures that this library has kernels for, as in "75-real 80-real 90-real 100"; "" where it was built
 * without. */
RMS_NORM_EXPORT const char* rmsnorm_deploy_cuda_architectures(void);

/* The CUDA version that this library was built with, as in 13000 for 13.0; 0 where it was built without. A driver that
 * knows no version with that major number (the part before the point) refuses every launch. */
RMS_NORM_EXPORT int rmsnorm_deploy_cuda_version(void);

#ifdef __cplusplus
}
#endif

#endif /* RMSNORM_DEPLOY_RMS_NORM_CUDA_H_ */
