// Errors: thrown inside, handed over to onnxruntime as a status at the edge.
#ifndef RMSNORM_DEPLOY_ORT_ERRORS_H_
#define RMSNORM_DEPLOY_ORT_ERRORS_H_

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "abi.h"

namespace rmsnorm_deploy {

struct Error : std::exception {
  Error(int code_, std::string text_) : code(code_), text(std::move(text_)) {}
  int code;
  std::string text;
};

// A status that onnxruntime made and that goes back to it as it is.
struct Passed {
  ort::Status* status;
};

inline void check(ort::Status* status) {
  if (status) throw Passed{status};
}

// Run `body` and turn whatever it throws into a status: no exception may reach onnxruntime.
template <typename Body>
ort::Status* guarded(const ort::Api* api, Body body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const Passed& passed) {
    return passed.status;
  } catch (const Error& error) {
    return ort::call<ort::CreateStatus>(api, error.code, error.text.c_str());
  } catch (const std::bad_alloc&) {
    return ort::call<ort::CreateStatus>(api, ort::kFail, "rmsnorm_deploy: out of memory");
  } catch (...) {
    return ort::call<ort::CreateStatus>(api, ort::kFail, "rmsnorm_deploy: internal error");
  }
}

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_ERRORS_H_
