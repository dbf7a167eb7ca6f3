// RegisterCustomOps: what onnxruntime calls when a program registers this library with its session options.
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "../include/rms_norm.h"
#include "ops.h"

namespace rmsnorm_deploy {
namespace {

using ort::Api;
using ort::ApiBase;
using ort::Status;

Status* failure(const Api* api, int code, const char* text) { return ort::call<ort::CreateStatus>(api, code, text); }

// The domain with all ops, made once for a runtime and shared by all its sessions. It is never released: sessions keep
// pointers into it and may outlive every session options object.
Status* shared_domain(const Api* api, ort::CustomOpDomain** result) {
  static std::mutex mutex;
  static const Api* made_for = nullptr;
  static ort::CustomOpDomain* made = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (made_for != api) {
    ort::CustomOpDomain* domain = nullptr;
    if (Status* status = ort::call<ort::CreateCustomOpDomain>(api, &kDomain[0], &domain)) return status;
    for (std::size_t i = 0; i < op_count(); ++i) {
      if (Status* status = ort::call<ort::CustomOpDomain_Add>(api, domain, op_at(i))) return status;
    }
    set_api(api);
    made = domain;
    made_for = api;
  }
  *result = made;
  return nullptr;
}

Status* register_ops(ort::SessionOptions* options, const ApiBase* base) {
  // Asking for a version that the runtime lacks makes it write to stderr, so its version string decides first.
  const char* version = base->version_string();
  int major = 0;
  int minor = 0;
  if (std::sscanf(version, "%d.%d", &major, &minor) != 2) major = minor = 0;
  if (major == 0 || (major == 1 && minor < ort::kOldestMinor)) {
    const Api* oldest = base->get_api(1);  // the first version had statuses already
    char text[160];
    std::snprintf(text, sizeof text, "rmsnorm_deploy needs onnxruntime 1.%d or newer, and this is %.40s",
                  ort::kOldestMinor, version);
    return failure(oldest, ort::kNotImplemented, text);
  }
  const Api* api = base->get_api(ort::kApiVersion);
  if (!rmsnorm_deploy_cpu_isa()) {
    char text[256];
    const char* wanted = std::getenv("RMSNORM_DEPLOY_ISA");
    int length = std::snprintf(text, sizeof text,
                               "rmsnorm_deploy: RMSNORM_DEPLOY_ISA is '%.60s', which this library or this machine "
                               "lacks; this machine can run:",
                               wanted ? wanted : "");
    int usable = 0;
    for (int i = 0; const char* name = rmsnorm_deploy_cpu_isa_at(i, &usable); ++i) {
      if (usable) length += std::snprintf(text + length, sizeof text - static_cast<std::size_t>(length), " %s", name);
    }
    return failure(api, ort::kInvalidArgument, text);
  }
  ort::CustomOpDomain* domain = nullptr;
  if (Status* status = shared_domain(api, &domain)) return status;
  return ort::call<ort::AddCustomOpDomain>(api, options, domain);
}

}  // namespace
}  // namespace rmsnorm_deploy

extern "C" RMS_NORM_EXPORT rmsnorm_deploy::ort::Status* RegisterCustomOps(rmsnorm_deploy::ort::SessionOptions* options,
                                                                          const rmsnorm_deploy::ort::ApiBase* base) {
  try {
    return rmsnorm_deploy::register_ops(options, base);
  } catch (...) {
    // Only a lock can throw here. The runtime is new enough, or there would have been no lock.
    return rmsnorm_deploy::failure(base->get_api(1), rmsnorm_deploy::ort::kFail,
                                   "rmsnorm_deploy: the operators could not be registered");
  }
}
