// onnxruntime's own operators as custom ops. Registering them replaces the built-in ones, schemas included, so each has
// its complete signature: every type, optional input and output that the built-in kernels for the CPU take.
//
// What they compute is what the built-in ones do. All arithmetic is in float32 (float64 for float64); what is of 16
// bits is rounded once, at the end. That includes the sum of SkipSimplifiedLayerNormalization: the norm is that of the
// float32 sum, and only the output is rounded. Norming the rounded sum, as Hugging Face's models do and as our own
// AddRMSNorm does, would be one conversion less, but up to a unit in the last place further off both the built-in
// kernel and float64.
#include "../library.h"
#include "kernels.h"

namespace rmsnorm_deploy {
namespace {

// The type of scale is that of y.
constexpr Types kMixedTypes[] = {
    all_of(RMS_NORM_FLOAT32),
    all_of(RMS_NORM_FLOAT16),
    all_of(RMS_NORM_BFLOAT16),
    all_of(RMS_NORM_FLOAT64),
    {RMS_NORM_FLOAT32, RMS_NORM_FLOAT16, RMS_NORM_FLOAT16},
    {RMS_NORM_FLOAT16, RMS_NORM_FLOAT32, RMS_NORM_FLOAT32},
};
constexpr std::size_t kMixed = 6;
constexpr std::size_t kSame = 4;        // the first of them: one type for all
constexpr std::size_t kSameOfSkip = 3;  // float64 comes last among those

constexpr ort::Characteristic kOptional = ort::kOptional;

constexpr Signature kStandard[] = {
    {"SimplifiedLayerNormalization",
     {{Role::kX}, {Role::kScale}},
     {{Role::kY}, {Role::kInverseRms, kOptional}},
     kMixedTypes,
     kMixed,
     in_place<0>,
     make_norm},
    {"RMSNormalization", {{Role::kX}, {Role::kScale}}, {{Role::kY}}, kMixedTypes, kSame, in_place<0>, make_norm, 23},
};
constexpr Signature kContrib[] = {
    {"SkipSimplifiedLayerNormalization",
     {{Role::kX}, {Role::kResidual}, {Role::kScale}, {Role::kBias, kOptional}},
     {{Role::kY}, {Role::kMean, kOptional}, {Role::kInverseRms, kOptional}, {Role::kSum, kOptional}},
     kMixedTypes,
     kSameOfSkip,
     in_place<0, 3>,
     make_skip},
};
// A domain in which operators are replaced gets the version 1000 in every model that does not import it, and then
// onnxruntime finds no other operator of that domain, such as those that its optimizer makes. So a session can leave
// out the domains that its model does not import: no node of them is in the file.
constexpr LibraryDomain kDomains[] = {
    {"", kStandard, sizeof kStandard / sizeof kStandard[0], "rmsnorm_deploy.override.ai.onnx"},
    {"com.microsoft", kContrib, sizeof kContrib / sizeof kContrib[0], "rmsnorm_deploy.override.com.microsoft"},
};
constexpr Provider kCpu = {nullptr, false};

}  // namespace

std::size_t domain_count() noexcept { return sizeof kDomains / sizeof kDomains[0]; }
const LibraryDomain& domain_at(std::size_t index) noexcept { return kDomains[index]; }
std::size_t provider_count() noexcept { return 1; }
const Provider& provider_at(std::size_t) noexcept { return kCpu; }

}  // namespace rmsnorm_deploy
