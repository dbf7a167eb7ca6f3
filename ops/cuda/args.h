// What the kernels are handed, as plain data. Everything here is passed by value through the kernel's parameter space.
#ifndef RMSNORM_DEPLOY_CUDA_ARGS_H_
#define RMSNORM_DEPLOY_CUDA_ARGS_H_

#include <cstdint>

#include "../contract/outputs.h"

namespace rmsnorm_deploy {
namespace cuda {

// A scale or bias in the caller's memory. The dimensions of x are three runs: those before the normalised ones (outer),
// the normalised ones, those behind (inner). Dimensions that can be walked as one are merged, and a run along which the
// values do not change has no dimension left, so that the usual cases cost nothing.
struct Weights {
  const void* data;  // null where there is none
  std::int32_t type;
  std::int32_t outer_end;  // dimensions [0, outer_end) are outer
  std::int32_t axes_end;   // [outer_end, axes_end) are normalised
  std::int32_t inner_end;  // [axes_end, inner_end) are inner
  std::int64_t extent[RMS_NORM_MAX_RANK];
  std::int64_t stride[RMS_NORM_MAX_RANK];
  bool single;  // nothing changes along the normalised run
};

// The same for kernels of rows: row r has those that begin at (r / repeat % period) * row_stride, one behind the other
// or `single`. These kernels run only where that is so and r fits 32 bits or row_stride is 0.
struct RowWeights {
  const void* data;  // null where there is none
  std::int64_t row_stride;
  std::uint32_t repeat;
  std::uint32_t period;
  std::int32_t type;
  bool single;
};

// How a sum of squares becomes an rms: the float attributes of the contract, and what follows from them. statistic.cuh
// makes and reads it.
struct Statistic {
  double count;      // values in the mean
  float count_high;  // 1 / count, in two parts
  float count_low;
#define FIELD(name, neutral, since) float name;
  RMS_NORM_FLOAT_ATTRIBUTES(FIELD)
#undef FIELD
  float largest_term;  // of sqrt(epsilon), epsilon_outside and rms_floor
  bool plain;          // the last two are zero
  bool ordinary;       // they are so small that float32 arithmetic cannot overflow on them
};

// What the kernels of rows are handed. Small, as a launch copies it: host time is what counts while decoding.
struct RowArgs {
  const void* x;
  const void* residual;  // or null, together with sum
  void* y;
  void* sum;
  RowWeights scale;
  RowWeights bias;
  Statistic statistic;
  std::int64_t outer;
  std::int64_t measured;  // leading values of a row that make up the mean
  std::int32_t chunks;    // of a row, of 16 bytes
  std::int32_t round_type;
  std::int32_t group_log2;  // threads of a row; more than a warp only where a block has one row
  std::int32_t buffers;  // rows that a block has room for in shared memory: 0, 1, 2 (rows too long for registers only)
};

// What those of strided groups are.
struct Args {
  const void* x;
  const void* residual;  // or null, together with sum
  void* y;
  void* sum;
  Weights scale;
  Weights bias;
  Statistic statistic;
  std::int64_t outer;
  std::int64_t size;  // of the normalised run
  std::int64_t inner;
  std::int64_t measured;  // leading entries of it that make up the mean; 1 to size
  std::int32_t round_type;

  // Threads along columns, and along the normalised run; both powers of two.
  std::int32_t columns;
  std::int32_t slices;
  std::int64_t tiles;  // of columns, in one outer position
};

// What version 2 of the contract asks for beside that: where rows lie, and what else is made of y.
struct Outputs {
  void* quantised;
  const void* quantised_scale;
  const void* zero_point;
  float* least;
  float* most;
  std::int32_t y_type;
  std::int32_t quantised_type;  // 0 where there is nothing quantised
  std::int32_t quantised_scale_type;
  std::int32_t quotient_type;
  bool by_row;
  std::int32_t in_chunks;   // bits of the tensors, by RowTensor, whose chunks of a row lie at multiples of their size
  std::int32_t dimensions;  // that rows are counted along, merged where they can be walked as one
  std::int64_t extent[RMS_NORM_MAX_RANK];
  std::int64_t stride[kRowTensors][RMS_NORM_MAX_RANK];
};

// A gate of x's shape, contiguous.
struct Gate {
  const void* data;
  std::int32_t place;
  bool wide;  // float32 whatever the type of x
  bool silu;
};

struct GatedRowArgs {
  RowArgs row;
  Gate gate;
};
struct GatedArgs {
  Args row;
  Gate gate;
};

struct OutputRowArgs {
  RowArgs row;
  Outputs out;
};
struct OutputArgs {
  Args row;
  Outputs out;
};

}  // namespace cuda
}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CUDA_ARGS_H_
