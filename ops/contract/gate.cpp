#include "gate.h"

#include "outputs.h"

namespace rmsnorm_deploy {

int check_gated(const rms_norm_params& params, const rms_norm_gate& gate, Sizes& sizes) noexcept {
  const int code = check(params, sizes);
  if (code != RMS_NORM_OK) return code;
  if (gate.version != RMS_NORM_GATE_VERSION) return RMS_NORM_BAD_VERSION;
  if (has_outputs(params) || (gate.type != params.x_type && gate.type != RMS_NORM_FLOAT32)) return RMS_NORM_BAD_TYPE;
  if (gate.activation != RMS_NORM_SIGMOID && gate.activation != RMS_NORM_SILU) return RMS_NORM_BAD_VALUE;
  if (gate.place < RMS_NORM_GATED_FIRST || gate.place > RMS_NORM_GATED_LAST) return RMS_NORM_BAD_VALUE;
  if (params.residual || params.sum || params.bias) return RMS_NORM_BAD_POINTER;
  if (sizes.measured != sizes.size) return RMS_NORM_BAD_PARTIAL;
  return sizes.total > 0 && !gate.gate ? RMS_NORM_BAD_POINTER : RMS_NORM_OK;
}

}  // namespace rmsnorm_deploy
