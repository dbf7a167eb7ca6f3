// What an instruction set ends with: the kernels, and the table that dispatch.cpp chooses by. The including file has
// defined INSTRUCTION_SET, its name; usable(), which runs on any machine; and the operations, see types.h.
#include "bytes.h"
#include "columns.h"
#include "convert.h"
#include "gated.h"
#include "outputs.h"
#include "quantise.h"
#include "rows.h"

#define JOINED(name, suffix) name##suffix
#define TABLE_OF(name) JOINED(name, _kernels)
#define TEXT(name) #name
#define TEXT_OF(name) TEXT(name)

#define WEIGHTS(T) {weights_kernel<T, float>, weights_kernel<T, Half>, weights_kernel<T, Bfloat>}

// A float32 value is never rounded before the end, so both orders are one kernel.
#define MODES(KERNEL, T, TWICE)                                                \
  {                                                                            \
      {KERNEL<T, kPlain, kRoundOnce>, KERNEL<T, kPlain, TWICE>},               \
      {KERNEL<T, kResidual, kRoundOnce>, KERNEL<T, kResidual, TWICE>},         \
      {KERNEL<T, kBias, kRoundOnce>, KERNEL<T, kBias, TWICE>},                 \
      {KERNEL<T, kResidualBias, kRoundOnce>, KERNEL<T, kResidualBias, TWICE>}, \
  }

// By mode; the result is T as often rounded as MODES says, or a float that is not rounded further.
#define OUTPUT_MODE(T, MODE, TWICE)                                           \
  {outputs_kernel<T, T, MODE, kRoundOnce>, outputs_kernel<T, T, MODE, TWICE>, \
   outputs_kernel<T, float, MODE, kRoundOnce>}
#define OUTPUTS(T, TWICE)                                                                         \
  {OUTPUT_MODE(T, kPlain, TWICE), OUTPUT_MODE(T, kResidual, TWICE), OUTPUT_MODE(T, kBias, TWICE), \
   OUTPUT_MODE(T, kResidualBias, TWICE)}

#define QUANTISE(T)                                                                      \
  {                                                                                      \
      {quantise_kernel<T, kInt8, false>, quantise_kernel<T, kInt8, sizeof(T) == 2>},     \
      {quantise_kernel<T, kUint8, false>, quantise_kernel<T, kUint8, sizeof(T) == 2>},   \
      {quantise_kernel<T, kFloat8, false>, quantise_kernel<T, kFloat8, sizeof(T) == 2>}, \
  }

#define GATED(T, G, TWICE) {gated_kernel<T, G, kRoundOnce>, gated_kernel<T, G, TWICE>}

namespace rmsnorm_deploy {

extern const KernelTable TABLE_OF(INSTRUCTION_SET);
const KernelTable TABLE_OF(INSTRUCTION_SET) = {
    TEXT_OF(INSTRUCTION_SET),
    usable,
    {MODES(rows_kernel, float, kRoundOnce), MODES(rows_kernel, Half, kRoundTwice),
     MODES(rows_kernel, Bfloat, kRoundTwice)},
    {MODES(columns_kernel, float, kRoundOnce), MODES(columns_kernel, Half, kRoundTwice),
     MODES(columns_kernel, Bfloat, kRoundTwice)},
    {WEIGHTS(float), WEIGHTS(Half), WEIGHTS(Bfloat)},
    {narrow_kernel<float>, narrow_kernel<Half>, narrow_kernel<Bfloat>},
    {OUTPUTS(float, kRoundOnce), OUTPUTS(Half, kRoundTwice), OUTPUTS(Bfloat, kRoundTwice)},
    {extremes_kernel<float>, extremes_kernel<Half>, extremes_kernel<Bfloat>},
    {QUANTISE(float), QUANTISE(Half), QUANTISE(Bfloat)},
    {{GATED(float, float, kRoundOnce), GATED(float, float, kRoundOnce)},
     {GATED(Half, Half, kRoundTwice), GATED(Half, float, kRoundTwice)},
     {GATED(Bfloat, Bfloat, kRoundTwice), GATED(Bfloat, float, kRoundTwice)}},
    {{bytes_kernel<kPlain, kInt8>, bytes_kernel<kPlain, kUint8>},
     {bytes_kernel<kResidual, kInt8>, bytes_kernel<kResidual, kUint8>}},
    {ranges_kernel<kPlain>, ranges_kernel<kResidual>},
    kChunk,
    ends_kernel,
};

}  // namespace rmsnorm_deploy
