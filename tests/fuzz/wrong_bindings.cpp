// A library with onnxruntime spoiled before it: RMSNORM_DEPLOY_FAULT says how, WRONG_BINDINGS_OF which library. What
// the fuzzer has to notice.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "ort/abi.h"

using namespace rmsnorm_deploy::ort;

extern "C" {
void* replaced_api[420];  // the kernels get it too
}

namespace {

const Api* real = nullptr;

Status* other_epsilon(const KernelInfo* info, const char* name, float* value) {
  Status* const status = call<KernelInfoGetAttribute_float>(real, info, name, value);
  if (!status) *value = *value * 1.5f + 0.01f;
  return status;
}
Status* no_text(int code, const char*) { return call<CreateStatus>(real, code, ""); }
void keep(Status*) {}
Status* no_entry(const SessionOptions*, const char*, int* has) {
  *has = 0;
  return nullptr;
}

}  // namespace

extern "C" Status* RegisterCustomOps(SessionOptions* options, const ApiBase* base) {
  static const ApiBase* given = base;
  static const std::string fault = std::getenv("RMSNORM_DEPLOY_FAULT");
  static const bool once = [] {
    real = given->get_api(18);
    std::memcpy(replaced_api, real->slots, sizeof replaced_api);
    if (fault == "epsilon") replaced_api[KernelInfoGetAttribute_float] = reinterpret_cast<void*>(other_epsilon);
    if (fault == "text") replaced_api[CreateStatus] = reinterpret_cast<void*>(no_text);
    if (fault == "twice") replaced_api[HasSessionConfigEntry] = reinterpret_cast<void*>(no_entry);
    if (fault == "leak") replaced_api[ReleaseStatus] = reinterpret_cast<void*>(keep);
    return true;
  }();
  static const ApiBase spoiled = {[](std::uint32_t) { return reinterpret_cast<const Api*>(replaced_api); },
                                  [] { return given->version_string(); }};
  static void* const handle = dlopen(std::getenv("WRONG_BINDINGS_OF"), RTLD_NOW);
  auto* const run = reinterpret_cast<Status* (*)(SessionOptions*, const ApiBase*)>(dlsym(handle, "RegisterCustomOps"));
  return once ? run(options, &spoiled) : nullptr;
}
