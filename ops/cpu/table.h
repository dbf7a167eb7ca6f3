// What one instruction set's kernels look like to the code that calls them. Plain data and function pointers only:
// this header is included by translation units with different instruction sets, so it must not define any inline
// function with external linkage (the linker would keep one copy, perhaps the one that this machine cannot run).
#ifndef RMSNORM_DEPLOY_CPU_TABLE_H_
#define RMSNORM_DEPLOY_CPU_TABLE_H_

#include <cstdint>

#include "../include/rms_norm.h"

namespace rmsnorm_deploy {

// Index of the first level of a kernel table.
enum ElementIndex { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2, kElementCount = 3 };

// Index of the second level: what is computed beside the plain norm.
enum Mode { kPlain = 0, kResidual = 1, kBias = 2, kResidualBias = 3, kModeCount = 4 };

// Index of the third level: where the value is rounded.
enum Rounding {
  kRoundOnce = 0,   // at the end only
  kRoundTwice = 1,  // to the element type before the scale too, and after every step
  kRoundingCount = 2
};

// The same for the kernels of outputs.h.
enum Result {
  kResultOnce = kRoundOnce,    // of the element type, rounded at the end only
  kResultTwice = kRoundTwice,  // of the element type
  kResultFloat = 2,            // a float32, not rounded further
  kResultCount = 3
};

// Index of a type of quantised output.
enum QuantisedIndex { kInt8 = 0, kUint8 = 1, kFloat8 = 2, kQuantisedCount = 3 };

// The float attributes of the contract.
struct Attributes {
#define FIELD(name, neutral, since) double name = neutral;
  RMS_NORM_FLOAT_ATTRIBUTES(FIELD)
#undef FIELD
};

// Rows that lie one behind the other: x is [rows, size].
struct RowsArgs {
  const void* x;
  const void* residual;  // or null, by the mode
  void* y;
  void* sum;           // or null, by the mode
  const float* scale;  // [size], already rounded
  const float* bias;   // [size], already rounded, or null
  std::int64_t rows;
  std::int64_t size;
  std::int64_t measured;  // how many leading entries of a row make up the mean; 1 to size
  bool far;               // write past the caches: y and sum are in whole lines of 64 bytes, apart from x and residual
  Attributes attributes;
};

// A norm down the columns of one [size, inner] matrix, for the columns [begin, end).
struct ColumnsArgs {
  const void* x;
  const void* residual;
  void* y;
  void* sum;
  const float* scale;  // [size], or [size, inner] where by_column
  const float* bias;
  bool scale_by_column;
  bool bias_by_column;
  std::int64_t size;
  std::int64_t inner;
  std::int64_t begin;
  std::int64_t end;
  std::int64_t measured;
  Attributes attributes;
};

// Widens, or narrows, `count` values.
using WeightsKernel = void (*)(const void* from, float* to, std::int64_t count);
using NarrowKernel = void (*)(const float* from, void* to, std::int64_t count);

// The least and the greatest of `count` values and of what both are already; NaNs are left out.
using ExtremesKernel = void (*)(const void* from, std::int64_t count, float* least, float* most);

// QuantizeLinear of `count` values.
using QuantiseKernel = void (*)(const void* from, void* to, std::int64_t count, float scale, std::int32_t zero_point);

// What the values of rows are multiplied by, in two parts, or divided by: arrays, one of each a row.
struct RowFactors {
  float* high;
  float* low;
  bool* divides;
};

// The ends of the range of zero and the y of a piece of a row, each at most `margin` off; the margin is infinite where
// they are not known. Arrays, one of each for each piece of each row.
struct PieceEnds {
  float* least;
  float* most;
  float* margin;
};

// Rows that lie apart, or results that go elsewhere than into y of x's type. The result of a row is what the kernel
// computes, as its index Result says. Steps are from a row to the next, in elements of the tensor.
struct OutputsArgs {
  const void* x;
  const void* residual;  // or null, by the mode
  void* sum;
  std::int64_t x_step;
  std::int64_t residual_step;
  std::int64_t sum_step;
  const float* scale;
  const float* bias;
  std::int64_t rows;
  std::int64_t size;
  std::int64_t measured;
  Attributes attributes;

  // y: null, or of the result's type, or of another, and then one of the two kernels converts. The last two take values
  // of y's type, which `narrow` has made where it is given.
  void* y;
  std::int64_t y_step;
  std::int64_t y_bytes;     // of one element
  NarrowKernel narrow;      // or null; the result is float32, and y's type has 16 bits
  WeightsKernel widen;      // or null; the result has 16 bits, and y is float32
  ExtremesKernel extremes;  // or null
  float* least;             // one a row, or null; so with `most`
  float* most;
  QuantiseKernel quantise;  // or null
  void* quantised;
  std::int64_t quantised_step;
  const float* quantised_scale;  // one a row where by_row, else one; as floats and whole numbers
  const std::int32_t* zero_point;
  bool by_row;
  RowFactors factors;  // of all rows, or null: they are computed, and so is the sum. `bytes` only
};

// The greatest magnitude of a scale that the kernels of bytes.h are given.
constexpr float kMostModerate = 0x1p32f;

// Of 2^16: how near to a tie a quotient is not trusted; see Blocks of quantise.h.
constexpr int kUnsure = 12;

// Rows of float32, one behind the other, whose range is to be known before they are written anywhere.
struct RangesArgs {
  const void* x;
  const void* residual;  // or null, by the mode
  void* sum;
  const float* scale;
  std::int64_t rows;
  std::int64_t size;
  std::int64_t measured;
  Attributes attributes;
  RowFactors factors;  // written
  PieceEnds ends;      // written
  bool few;            // there are so few pieces of all rows that their ends are not worth an estimate
};

// The ends of the range of `size` values of y in one row, and of what both are before. NaNs are left out.
using EndsKernel = void (*)(const float* x, const float* scale, const RowFactors& factors, std::int64_t row,
                            std::int64_t size, float* least, float* most);

// Where a gate comes in: the numbers of the contract.
enum GatePlace { kGatedFirst = 0, kGatedNormalised = 1, kGatedLast = 2 };

// Rows that lie one behind the other, and a gate of x's shape.
struct GatedArgs {
  const void* x;
  const void* gate;
  void* y;
  const float* scale;  // [size], already rounded
  std::int64_t rows;
  std::int64_t size;
  bool silu;  // else sigmoid
  std::int32_t place;
  Attributes attributes;
};

using RowsKernel = void (*)(const RowsArgs&);
using ColumnsKernel = void (*)(const ColumnsArgs&);
using OutputsKernel = void (*)(const OutputsArgs&);
using RangesKernel = void (*)(const RangesArgs&);
using GatedKernel = void (*)(const GatedArgs&);

struct KernelTable {
  const char* name;
  bool (*usable)();  // whether this machine can run them
  RowsKernel rows[kElementCount][kModeCount][kRoundingCount];
  ColumnsKernel columns[kElementCount][kModeCount][kRoundingCount];
  WeightsKernel weights[kElementCount][kElementCount];  // from the first type, rounded to the second
  NarrowKernel narrow[kElementCount];                   // to the type
  OutputsKernel outputs[kElementCount][kModeCount][kResultCount];
  ExtremesKernel extremes[kElementCount];
  QuantiseKernel quantise[kElementCount][kQuantisedCount][2];  // second: the quotient is rounded to the element type
  GatedKernel gated[kElementCount][2][kRoundingCount];         // second: the gate is float32, not of the element type
  OutputsKernel bytes[2][2];                                   // kPlain and kResidual, kInt8 and kUint8; see bytes.h
  RangesKernel ranges[2];
  std::int64_t piece;  // values in a piece of a row, but for the last
  EndsKernel ends;
};

// Columns that a kernel handles together; work is best divided at multiples of it.
constexpr std::int64_t kColumnTile = 64;

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CPU_TABLE_H_
