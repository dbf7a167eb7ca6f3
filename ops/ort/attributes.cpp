#include "attributes.h"

#include <cmath>
#include <string>

#include "errors.h"

namespace rmsnorm_deploy {

using ort::KernelInfo;
using ort::Status;

namespace {

bool succeeded(const Node& node, Status* status) {
  if (!status) return true;
  ort::call<ort::ReleaseStatus>(node.api, status);
  return false;
}

[[noreturn]] void refuse(const Node& node, const char* name, const char* wanted) {
  throw Error(ort::kInvalidGraph, node.owner + ": the attribute " + name + " must be " + wanted);
}

// onnxruntime fails alike for an attribute that is absent and one of another type, so every type is tried. It has no
// function for lists of strings, which pass as absent.
void refuse_if_present(const Node& node, const KernelInfo* info, const char* name, const char* wanted) {
  float number = 0;
  std::int64_t integer = 0;
  std::size_t size = 0;
  const bool present =
      succeeded(node, ort::call<ort::KernelInfoGetAttribute_float>(node.api, info, name, &number)) ||
      succeeded(node, ort::call<ort::KernelInfoGetAttribute_int64>(node.api, info, name, &integer)) ||
      succeeded(node, ort::call<ort::KernelInfoGetAttributeArray_float>(node.api, info, name, nullptr, &size)) ||
      succeeded(node, ort::call<ort::KernelInfoGetAttributeArray_int64>(node.api, info, name, nullptr, &size)) ||
      succeeded(node, ort::call<ort::KernelInfoGetAttribute_string>(node.api, info, name, nullptr, &size));
  if (present) refuse(node, name, wanted);
}

}  // namespace

void read(const Node& node, const KernelInfo* info, const char* name, std::int64_t* value) {
  std::int64_t found = 0;
  if (succeeded(node, ort::call<ort::KernelInfoGetAttribute_int64>(node.api, info, name, &found))) {
    *value = found;
  } else {
    refuse_if_present(node, info, name, "an integer");
  }
}

void read(const Node& node, const KernelInfo* info, const char* name, std::vector<std::int64_t>* value) {
  std::size_t count = 0;  // asked for with no room, onnxruntime says how many there are
  if (!succeeded(node, ort::call<ort::KernelInfoGetAttributeArray_int64>(node.api, info, name, nullptr, &count))) {
    refuse_if_present(node, info, name, "a list of integers");
    return;
  }
  // Of an attribute of another type onnxruntime says that it holds no integers.
  if (!count) refuse(node, name, "a list of integers and not empty");
  value->resize(count);
  check(ort::call<ort::KernelInfoGetAttributeArray_int64>(node.api, info, name, value->data(), &count));
}

void read(const Node& node, const KernelInfo* info, const char* name, float* value) {
  float found = 0;
  if (!succeeded(node, ort::call<ort::KernelInfoGetAttribute_float>(node.api, info, name, &found))) {
    refuse_if_present(node, info, name, "a float");
    return;
  }
  if (!(found >= 0) || std::isinf(found)) {
    throw Error(ort::kInvalidGraph,
                node.owner + ": " + name + " must be finite and not negative, not " + std::to_string(found));
  }
  *value = found;
}

}  // namespace rmsnorm_deploy
