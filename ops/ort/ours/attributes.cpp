#include "attributes.h"

#include <algorithm>
#include <string>

#include "../../contract/check.h"
#include "../attributes.h"
#include "../errors.h"

namespace rmsnorm_deploy {
namespace {

using ort::KernelInfo;

constexpr std::int64_t kNewestVersion = 1;  // of the domain

[[noreturn]] void refuse(const Node& node, const std::string& sentence) {
  throw Error(ort::kInvalidGraph, node.owner + ": " + sentence);
}

// onnxruntime does not say which version of the domain a model imports, so the node does, from version 2 on.
void check_version(const Node& node, const KernelInfo* info) {
  std::int64_t version = 1;
  read(node, info, "version", &version);
  if (version < 1 || version > kNewestVersion) {
    refuse(node, "the node is of version " + std::to_string(version) + " of its domain, and this library knows " +
                     std::to_string(kNewestVersion) + "; use a newer release of rmsnorm_deploy");
  }
}

// An element type; 0 for one that no norm can have.
std::int32_t read_type(const Node& node, const KernelInfo* info, const char* name, std::int32_t absent) {
  std::int64_t value = absent;
  read(node, info, name, &value);
  const std::int32_t type = value >= 0 && value <= RMS_NORM_BFLOAT16 ? static_cast<std::int32_t>(value) : 0;
  return element_size(type) ? type : 0;
}

void read_axes(const Node& node, const KernelInfo* info, std::vector<std::int64_t>* axes) {
  read(node, info, "axes", axes);
  std::vector<std::int64_t> sorted = *axes;
  std::sort(sorted.begin(), sorted.end());
  bool adjacent = sorted.front() >= 0 || sorted.back() < 0;
  for (std::size_t i = 1; i < sorted.size(); ++i)
    adjacent = adjacent && sorted[i] > sorted[i - 1] && sorted[i] - 1 == sorted[i - 1];
  if (!adjacent) {
    refuse(node, "axes must be one contiguous run of dimensions, all of one sign, not " +
                     text_of(axes->data(), axes->size()));
  }
  *axes = sorted;
}

void read_partial_size(const Node& node, const KernelInfo* info, NormAttributes* a) {
  std::vector<std::int64_t> sizes(a->axes.size(), a->partial_size);
  read(node, info, "partial_size", &sizes);
  bool same = sizes.size() == a->axes.size();
  for (const std::int64_t size : sizes) same = same && size == sizes[0] && size >= 1;
  if (!same) {
    refuse(node, "partial_size must hold one integer for each axis, all the same and at least 1, not " +
                     text_of(sizes.data(), sizes.size()));
  }
  a->partial_size = sizes[0];
}

}  // namespace

NormAttributes norm_attributes(const Node& node, const KernelInfo* info, std::int32_t x_type) {
  NormAttributes a;
  check_version(node, info);
  read_axes(node, info, &a.axes);
  a.stash_type = read_type(node, info, "stash_type", a.stash_type);
  if (a.stash_type != RMS_NORM_FLOAT32 && a.stash_type != RMS_NORM_FLOAT64) {
    refuse(node, "stash_type must be 1 (float) or 11 (double)");
  }
  a.round_type = read_type(node, info, "scale_type", a.round_type);
  const std::int32_t output_type = read_type(node, info, "output_type", x_type);
  if (x_type == RMS_NORM_FLOAT32 && element_size(a.round_type) == 2 && a.round_type == output_type) {
    // The model's node is of 16 bits, and onnxruntime has turned it into a float32 one: it does that to a node whose
    // neighbours have no 16-bit kernels on the CPU, and drops the roundings between them. The node follows.
    a.round_type = RMS_NORM_FLOAT32;
  }
  const bool double_arithmetic = a.stash_type == RMS_NORM_FLOAT64 || x_type == RMS_NORM_FLOAT64;
  if (a.round_type != x_type && a.round_type != RMS_NORM_FLOAT32 &&
      !(a.round_type == RMS_NORM_FLOAT64 && double_arithmetic)) {
    refuse(node, "scale_type must be the type of X, float, or double with stash_type double");
  }
#define RMSNORM_DEPLOY_READ(name, neutral, since) read(node, info, #name, &a.name);
  RMS_NORM_FLOAT_ATTRIBUTES(RMSNORM_DEPLOY_READ)
#undef RMSNORM_DEPLOY_READ
  read_partial_size(node, info, &a);
  return a;
}

}  // namespace rmsnorm_deploy
