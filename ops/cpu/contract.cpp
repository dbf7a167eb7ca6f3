// The exported half of the contract on the CPU.
#include "../contract/versions.h"
#include "plan.h"

extern "C" int rmsnorm_deploy_cpu_run(const rms_norm_params* params) {
  using namespace rmsnorm_deploy;
  if (!params) return RMS_NORM_BAD_POINTER;
  rms_norm_params room;
  Plan plan;
  const int code = plan.prepare(current(*params, room), false);
  if (code == RMS_NORM_OK) plan.run(0, plan.units());
  return code;
}
