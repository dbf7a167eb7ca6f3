// The exported half of the contract where the library is built without CUDA.
#include "../include/rms_norm_cuda.h"

extern "C" {

int rmsnorm_deploy_cuda_run(const rms_norm_params*, void*) { return RMS_NORM_NO_CUDA; }

int rmsnorm_deploy_cuda_run_gated(const rms_norm_params*, const rms_norm_gate*, void*) { return RMS_NORM_NO_CUDA; }

const char* rmsnorm_deploy_cuda_error_text(int code) {
  if (code == RMS_NORM_NO_CUDA) return "this library was built without CUDA; install its toolkit and build again";
  return rmsnorm_deploy_error_text(code);
}

const char* rmsnorm_deploy_cuda_architectures(void) { return ""; }

int rmsnorm_deploy_cuda_version(void) { return 0; }

}  // extern "C"
