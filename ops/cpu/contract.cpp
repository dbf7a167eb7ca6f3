// The exported half of the contract on the CPU.
#include "../contract/versions.h"
#include "plan.h"

extern "C" int rmsnorm_deploy_cpu_run(const rms_norm_params* params) {
  using namespace rmsnorm_deploy;
  if (!params) return RMS_NORM_BAD_POINTER;
  rms_norm_params room;
  Plan plan;
  const rms_norm_params& all = current(*params, room);
  const int code = plan.prepare(all, false);
  if (code == RMS_NORM_OK) plan.run(Tensors(all), 0, plan.units());
  return code;
}
