// Which kernel runs one norm, with which arguments and on which grid.
#ifndef RMSNORM_DEPLOY_CUDA_PLAN_H_
#define RMSNORM_DEPLOY_CUDA_PLAN_H_

#include "../include/rms_norm_gated.h"
#include "kernels.h"

namespace rmsnorm_deploy {
namespace cuda {

struct Device {
  int multiprocessors;
  int shared_bytes;  // most that one block can have
  bool overlaps;     // the kernels' code there waits for earlier grids, and may be launched before they have ended
};

struct Launch {
  // One of these; all are null where there is nothing to do.
  RowKernel rows;               // with row_args
  Kernel strided;               // with args
  OutputRowKernel output_rows;  // with row_args and outputs
  OutputKernel output_values;   // with args and outputs
  GatedRowKernel gated_rows;    // with row_args and gate
  GatedKernel gated_values;     // with args and gate
  RowArgs row_args;
  Args args;
  Outputs outputs;
  Gate gate;
  unsigned blocks;
  unsigned threads;
  unsigned shared_bytes;
};

// A code of the contract; `launch` is complete on RMS_NORM_OK only. `gate` may be null.
int plan(const rms_norm_params& params, const rms_norm_gate* gate, const Device& device, Launch& launch) noexcept;

}  // namespace cuda
}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CUDA_PLAN_H_
