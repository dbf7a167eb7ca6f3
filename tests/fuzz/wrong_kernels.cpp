// The library with a fault before it: RMSNORM_DEPLOY_FAULT says which, WRONG_KERNELS_OF which library. What the fuzzer
// has to notice.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "include/rms_norm_gated.h"

namespace {

template <typename Function>
Function* of_library(const char* name) {
  static void* const handle = dlopen(std::getenv("WRONG_KERNELS_OF"), RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(handle, name));
}

}  // namespace

extern "C" int rmsnorm_deploy_cpu_run(const rms_norm_params* given) {
  static auto* const run = of_library<decltype(rmsnorm_deploy_cpu_run)>("rmsnorm_deploy_cpu_run");
  static const std::string fault = std::getenv("RMSNORM_DEPLOY_FAULT");
  rms_norm_params p = *given;
  if (fault == "epsilon") p.epsilon_outside += 0.001f;
  if (fault == "partial") p.partial_size = INT64_MAX;
  const int code = run(&p);
  if (fault == "forbidden") return RMS_NORM_OK;
  if (fault == "refusal" && p.rank == 4) return RMS_NORM_BAD_SHAPE;
  if (fault == "quantised" && code == RMS_NORM_OK && p.quantised_type) *static_cast<unsigned char*>(p.quantised) ^= 1;
  if (fault == "most" && code == RMS_NORM_OK && p.most) *p.most += 1;
  if (fault == "scale" && code == RMS_NORM_OK) *static_cast<unsigned char*>(const_cast<void*>(p.scale)) ^= 1;
  if (fault == "input" && code != RMS_NORM_OK && p.x) *static_cast<unsigned char*>(const_cast<void*>(p.x)) ^= 1;
  return code;
}

extern "C" int rmsnorm_deploy_cpu_run_gated(const rms_norm_params* params, const rms_norm_gate* given) {
  static auto* const run = of_library<decltype(rmsnorm_deploy_cpu_run_gated)>("rmsnorm_deploy_cpu_run_gated");
  static const std::string fault = std::getenv("RMSNORM_DEPLOY_FAULT");
  rms_norm_gate gate = *given;
  if (fault == "place" && gate.place < RMS_NORM_GATED_LAST) ++gate.place;
  if (fault == "activation" && gate.activation == RMS_NORM_SILU) gate.activation = RMS_NORM_SIGMOID;
  const int code = run(params, &gate);
  if (fault == "gate" && code == RMS_NORM_OK) *static_cast<unsigned char*>(const_cast<void*>(gate.gate)) ^= 1;
  return fault == "wrong gate" ? static_cast<int>(RMS_NORM_OK) : code;
}

extern "C" const char* rmsnorm_deploy_error_text(int code) {
  return of_library<decltype(rmsnorm_deploy_error_text)>("rmsnorm_deploy_error_text")(code);
}

extern "C" int rmsnorm_deploy_cpu_set_isa(const char* name) {
  return of_library<decltype(rmsnorm_deploy_cpu_set_isa)>("rmsnorm_deploy_cpu_set_isa")(name);
}

extern "C" const char* rmsnorm_deploy_cpu_isa_at(int index, int* usable) {
  return of_library<decltype(rmsnorm_deploy_cpu_isa_at)>("rmsnorm_deploy_cpu_isa_at")(index, usable);
}
