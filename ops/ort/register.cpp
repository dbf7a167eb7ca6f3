// RegisterCustomOps: what onnxruntime calls when a program registers this library with its session options.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "../cpu/cache.h"
#include "../include/rms_norm.h"
#include "custom_op.h"
#include "library.h"
#include "runtime.h"
#include "stay.h"

#if defined(_WIN32)
#define ENTRY __declspec(dllexport)
#else
#define ENTRY __attribute__((visibility("default")))
#endif

namespace rmsnorm_deploy {
namespace {

using ort::Api;
using ort::ApiBase;
using ort::Status;

Status* failure(const Api* api, int code, const char* text) { return ort::call<ort::CreateStatus>(api, code, text); }

// Every op of a domain: each operator with each of its types for each provider.
std::vector<Op> ops_of(const LibraryDomain& domain) {
  std::vector<Op> ops;
  for (std::size_t p = 0; p < provider_count(); ++p) {
    for (std::size_t i = 0; i < domain.operator_count; ++i) {
      const Signature& signature = domain.operators[i];
      if (provider_at(p).on_gpu && !signature.on_gpu) continue;
      for (std::size_t t = 0; t < signature.type_count; ++t)
        ops.emplace_back(signature, signature.types[t], provider_at(p));
    }
  }
  return ops;
}

// A domain with all its ops, as one runtime holds it.
struct Made {
  const Api* api;
  ort::CustomOpDomain* domains[kMostDomains];
};

// The domains with all ops, made once for a runtime and shared by all its sessions. They are never released: sessions
// keep pointers into them and may outlive every session options object.
Status* shared_domains(const ApiBase* base, const Api* api, int minor, ort::CustomOpDomain** result) {
  static std::mutex mutex;
  static std::vector<Made>* const made = new std::vector<Made>;  // one, unless a process has several runtimes
  static std::vector<Op>* ops[kMostDomains] = {};
  const std::lock_guard<std::mutex> lock(mutex);
  if (runtime_api() != api) {
    const bool references = minor >= static_cast<int>(ort::kReferenceVersion);
    set_runtime(api, references ? base->get_api(ort::kReferenceVersion) : nullptr, minor);
  }
  const auto known = std::find_if(made->begin(), made->end(), [api](const Made& each) { return each.api == api; });
  if (known != made->end()) {
    std::copy_n(known->domains, domain_count(), result);
    return nullptr;
  }
  Made fresh = {api, {}};
  for (std::size_t d = 0; d < domain_count(); ++d) {
    if (!ops[d]) ops[d] = new std::vector<Op>(ops_of(domain_at(d)));
    if (Status* status = ort::call<ort::CreateCustomOpDomain>(api, domain_at(d).name, &fresh.domains[d])) return status;
    for (const Op& op : *ops[d]) {
      if (Status* status = ort::call<ort::CustomOpDomain_Add>(api, fresh.domains[d], &op)) return status;
    }
  }
  made->push_back(fresh);
  std::copy_n(fresh.domains, domain_count(), result);
  return nullptr;
}

// Why the environment keeps every kernel from running: written to `text`, empty where nothing does.
void environment_problem(char* text, std::size_t size) {
  text[0] = 0;
  const auto value = [](const char* name) {
    const char* const set = std::getenv(name);
    return set ? set : "";
  };
  if (!rmsnorm_deploy_cpu_isa()) {
    int length = std::snprintf(text, size,
                               "rmsnorm_deploy: RMSNORM_DEPLOY_ISA is '%.60s', which this library or this machine "
                               "lacks; this machine can run:",
                               value("RMSNORM_DEPLOY_ISA"));
    int usable = 0;
    for (int i = 0; const char* name = rmsnorm_deploy_cpu_isa_at(i, &usable); ++i) {
      if (usable) length += std::snprintf(text + length, size - static_cast<std::size_t>(length), " %s", name);
    }
  } else if (far_bytes() < 0) {
    std::snprintf(
        text, size,
        "rmsnorm_deploy: RMSNORM_DEPLOY_STREAMING is '%.60s', which is no number of bytes; write digits only, "
        "as in 16777216, or 0",
        value("RMSNORM_DEPLOY_STREAMING"));
  }
}

// Whether an entry of the session's configuration is the text "0".
Status* is_switched_off(const Api* api, const ort::SessionOptions* options, const char* key, bool* off) {
  *off = false;
  int has = 0;
  if (Status* status = ort::call<ort::HasSessionConfigEntry>(api, options, key, &has)) return status;
  if (!has) return nullptr;
  char value[2] = {};
  std::size_t size = 0;  // with the zero at the end
  if (Status* status = ort::call<ort::GetSessionConfigEntry>(api, options, key, static_cast<char*>(nullptr), &size)) {
    return status;
  }
  if (size != sizeof value) return nullptr;
  if (Status* status = ort::call<ort::GetSessionConfigEntry>(api, options, key, value, &size)) return status;
  *off = value[0] == '0';
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
  char problem[320];
  environment_problem(problem, sizeof problem);
  if (*problem) return failure(api, ort::kInvalidArgument, problem);

  stay_loaded();
  ort::CustomOpDomain* domains[kMostDomains] = {};
  if (major > 1) minor = std::numeric_limits<int>::max();
  if (Status* status = shared_domains(base, api, minor, domains)) return status;
  for (std::size_t d = 0; d < domain_count(); ++d) {
    const LibraryDomain& domain = domain_at(d);
    if (domain.switched_by) {
      bool off = false;
      if (Status* status = is_switched_off(api, options, domain.switched_by, &off)) return status;
      if (off) continue;
    }
    // A second call on the same options adds nothing: onnxruntime refuses a session with one domain twice.
    const std::string mark = std::string("rmsnorm_deploy.has_domain.") + domain.name;
    int marked = 0;
    if (Status* status = ort::call<ort::HasSessionConfigEntry>(api, options, mark.c_str(), &marked)) return status;
    if (marked) continue;
    if (Status* status = ort::call<ort::AddCustomOpDomain>(api, options, domains[d])) return status;
    if (Status* status = ort::call<ort::AddSessionConfigEntry>(api, options, mark.c_str(), "1")) return status;
  }
  return nullptr;
}

}  // namespace
}  // namespace rmsnorm_deploy

extern "C" ENTRY rmsnorm_deploy::ort::Status* RegisterCustomOps(rmsnorm_deploy::ort::SessionOptions* options,
                                                                const rmsnorm_deploy::ort::ApiBase* base) {
  try {
    return rmsnorm_deploy::register_ops(options, base);
  } catch (...) {
    // A lock or a list of ops can fail here. The runtime is new enough, or neither would have been tried.
    return rmsnorm_deploy::failure(base->get_api(1), rmsnorm_deploy::ort::kFail,
                                   "rmsnorm_deploy: the operators could not be registered");
  }
}
