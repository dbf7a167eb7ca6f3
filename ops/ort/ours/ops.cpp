// The operators of this project's own domain: one row for each.
#include "../library.h"
#include "gated.h"
#include "norm.h"
#include "quantised.h"

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

// With every type of 8 bits. The scale of a 16-bit norm is of its type or float32.
#define QUANTISED(types, by) \
  quantised(types, RMS_NORM_INT8, by), quantised(types, RMS_NORM_UINT8, by), quantised(types, RMS_NORM_FLOAT8E4M3FN, by)
constexpr Types kQuantisedTypes[] = {
    QUANTISED(kTypes[0], RMS_NORM_FLOAT32), QUANTISED(kTypes[1], RMS_NORM_FLOAT16),
    QUANTISED(kTypes[1], RMS_NORM_FLOAT32), QUANTISED(kTypes[2], RMS_NORM_FLOAT16),
    QUANTISED(kTypes[2], RMS_NORM_FLOAT32), QUANTISED(kTypes[3], RMS_NORM_BFLOAT16),
    QUANTISED(kTypes[3], RMS_NORM_FLOAT32), QUANTISED(kTypes[4], RMS_NORM_BFLOAT16),
    QUANTISED(kTypes[4], RMS_NORM_FLOAT32),
};
#undef QUANTISED
constexpr std::size_t kQuantisedTypeCount = sizeof kQuantisedTypes / sizeof kQuantisedTypes[0];
constexpr Types kDynamicTypes[] = {quantised(all_of(RMS_NORM_FLOAT32), RMS_NORM_UINT8, RMS_NORM_FLOAT32)};

// The sum may lie where the residual was; nothing else has a place of its size that is read before it is written.
template <int kSum>
std::size_t sum_in_place(int** inputs, int** outputs) {
  static int from[] = {1};
  static int to[] = {kSum};
  *inputs = from;
  *outputs = to;
  return 1;
}
std::size_t nothing_in_place(int**, int**) { return 0; }

constexpr Operand kKeptY = {Role::kY, ort::kOptional};

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
    {"RMSNormQuantizeLinear",
     {{Role::kX}, {Role::kScale}, {Role::kQuantisedScale}, {Role::kZeroPoint}},
     {kKeptY, {Role::kQuantised}},
     kQuantisedTypes,
     kQuantisedTypeCount,
     nothing_in_place,
     make_quantised},
    {"AddRMSNormQuantizeLinear",
     {{Role::kX}, {Role::kResidual}, {Role::kScale}, {Role::kQuantisedScale}, {Role::kZeroPoint}},
     {kKeptY, {Role::kQuantised}, {Role::kSum}},
     kQuantisedTypes,
     kQuantisedTypeCount,
     sum_in_place<2>,
     make_quantised},
    // onnxruntime's DynamicQuantizeLinear has no kernel for GPUs either.
    {"RMSNormDynamicQuantizeLinear",
     {{Role::kX}, {Role::kScale}},
     {kKeptY, {Role::kQuantised}, {Role::kQuantisedScale}, {Role::kZeroPoint}},
     kDynamicTypes,
     1,
     nothing_in_place,
     make_dynamically_quantised,
     1,
     false},
    {"AddRMSNormDynamicQuantizeLinear",
     {{Role::kX}, {Role::kResidual}, {Role::kScale}},
     {kKeptY, {Role::kQuantised}, {Role::kQuantisedScale}, {Role::kZeroPoint}, {Role::kSum}},
     kDynamicTypes,
     1,
     sum_in_place<4>,
     make_dynamically_quantised,
     1,
     false},
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
