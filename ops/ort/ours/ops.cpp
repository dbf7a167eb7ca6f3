// The operators of this project's own domain: one row for each.
#include "../library.h"
#include "gated.h"
#include "norm.h"

namespace rmsnorm_deploy {
namespace {

constexpr Types kTypes[] = {
    all_of(RMS_NORM_FLOAT32),
    all_of(RMS_NORM_FLOAT16),
    {RMS_NORM_FLOAT16, RMS_NORM_FLOAT32, RMS_NORM_FLOAT16},
    all_of(RMS_NORM_BFLOAT16),
    {RMS_NORM_BFLOAT16, RMS_NORM_FLOAT32, RMS_NORM_BFLOAT16},
    all_of(RMS_NORM_FLOAT64),
    {RMS_NORM_FLOAT64, RMS_NORM_FLOAT32, RMS_NORM_FLOAT64},
};
constexpr std::size_t kTypeCount = sizeof kTypes / sizeof kTypes[0];

// X, scale, Y, gate.
constexpr Types kGatedTypes[] = {
    all_of(RMS_NORM_FLOAT32),
    all_of(RMS_NORM_FLOAT16),
    {RMS_NORM_FLOAT16, RMS_NORM_FLOAT32, RMS_NORM_FLOAT16, RMS_NORM_FLOAT16},
    {RMS_NORM_FLOAT16, RMS_NORM_FLOAT16, RMS_NORM_FLOAT16, RMS_NORM_FLOAT32},
    {RMS_NORM_FLOAT16, RMS_NORM_FLOAT32, RMS_NORM_FLOAT16, RMS_NORM_FLOAT32},
    all_of(RMS_NORM_BFLOAT16),
    {RMS_NORM_BFLOAT16, RMS_NORM_FLOAT32, RMS_NORM_BFLOAT16, RMS_NORM_BFLOAT16},
    {RMS_NORM_BFLOAT16, RMS_NORM_BFLOAT16, RMS_NORM_BFLOAT16, RMS_NORM_FLOAT32},
    {RMS_NORM_BFLOAT16, RMS_NORM_FLOAT32, RMS_NORM_BFLOAT16, RMS_NORM_FLOAT32},
    all_of(RMS_NORM_FLOAT64),
    {RMS_NORM_FLOAT64, RMS_NORM_FLOAT32, RMS_NORM_FLOAT64, RMS_NORM_FLOAT64},
    {RMS_NORM_FLOAT64, RMS_NORM_FLOAT64, RMS_NORM_FLOAT64, RMS_NORM_FLOAT32},
    {RMS_NORM_FLOAT64, RMS_NORM_FLOAT32, RMS_NORM_FLOAT64, RMS_NORM_FLOAT32},
};
constexpr std::size_t kGatedTypeCount = sizeof kGatedTypes / sizeof kGatedTypes[0];

// An operator is registered with every type that its function body takes: onnxruntime does not fall back to the body.
constexpr Signature kOperators[] = {
    {"RMSNorm", {{Role::kX}, {Role::kScale}}, {{Role::kY}}, kTypes, kTypeCount, in_place<0>, make_norm},
    {"AddRMSNorm",
     {{Role::kX}, {Role::kResidual}, {Role::kScale}},
     {{Role::kY}, {Role::kSum}},
     kTypes,
     kTypeCount,
     in_place<0, 1>,
     make_norm},
    {"GeneralRMSNorm",
     {{Role::kX}, {Role::kScale}, {Role::kBias}},
     {{Role::kY}},
     kTypes,
     kTypeCount,
     in_place<0>,
     make_norm},
    {"GatedRMSNorm",
     {{Role::kX}, {Role::kGate}, {Role::kScale}},
     {{Role::kY}},
     kGatedTypes,
     kGatedTypeCount,
     in_place<0>,
     make_gated},
};

constexpr LibraryDomain kDomain = {"rmsnorm_deploy", kOperators, sizeof kOperators / sizeof kOperators[0]};

}  // namespace

std::size_t domain_count() noexcept { return 1; }
const LibraryDomain& domain_at(std::size_t) noexcept { return kDomain; }

}  // namespace rmsnorm_deploy
