/*
 * The contract of rms_norm.h for a norm with a gate: a second struct says what the gate is. With g = act(c(gate)),
 * which is never rounded, where sigmoid(z) = 1 / (1 + exp(-z)) and SiLU is z * sigmoid(z):
 *
 *     place 0:  c(x) * g in place of c(x), not rounded: the statistics are those of the product
 *     place 1:  n = round_type(c(n) * g), behind the first n
 *     place 2:  y = T(c(y) * g), behind the last y
 *
 * In float32 arithmetic sigmoid is at most 2.5 ULP, and SiLU at most 3 ULP off, wherever exp(-|z|) is a normal float (z
 * from -87 on); below, the error is at most |z| * 2^-148. Where x has 16 bits it may be 2^-17 of the value, a hundredth
 * of what y is rounded by. SiLU of -infinity is a NaN, as -infinity * 0 is.
 */
#ifndef RMSNORM_DEPLOY_RMS_NORM_GATED_H_
#define RMSNORM_DEPLOY_RMS_NORM_GATED_H_

#include "rms_norm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the struct below; as with rms_norm_params, fields are only ever appended. */
#define RMS_NORM_GATE_VERSION 1

/* Activations of a gate. */
enum { RMS_NORM_SIGMOID = 0, RMS_NORM_SILU = 1 };

/* What it multiplies. */
enum { RMS_NORM_GATED_FIRST = 0, RMS_NORM_GATED_NORMALISED = 1, RMS_NORM_GATED_LAST = 2 };

typedef struct rms_norm_gate {
  uint32_t version;   /* RMS_NORM_GATE_VERSION of the header that the caller was compiled with */
  int32_t type;       /* element type of gate: that of x, or float32 */
  int32_t activation; /* RMS_NORM_SIGMOID or RMS_NORM_SILU */
  int32_t place;      /* RMS_NORM_GATED_* */
  const void* gate;   /* of x's shape, contiguous; y may be exactly it where it has x's type */
} rms_norm_gate;

/*
 * Run one norm with a gate on the calling thread, as rmsnorm_deploy_cpu_run does. `params` has neither residual nor
 * bias, all features in the mean, and nothing that its version 2 added. A wrong activation or place is
 * RMS_NORM_BAD_VALUE, what has no place here RMS_NORM_BAD_POINTER, RMS_NORM_BAD_PARTIAL or RMS_NORM_BAD_TYPE.
 */
RMS_NORM_EXPORT int rmsnorm_deploy_cpu_run_gated(const rms_norm_params* params, const rms_norm_gate* gate);

#ifdef __cplusplus
}
#endif

#endif /* RMSNORM_DEPLOY_RMS_NORM_GATED_H_ */
