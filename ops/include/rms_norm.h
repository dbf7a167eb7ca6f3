/*
 * The kernels' C contract: what a caller hands over and what the kernels promise. No onnxruntime, CUDA or STL types, so
 * that a test can drive it through a foreign-function interface and every backend can share it.
 *
 * With c the arithmetic type (`stash_type`) and T the type of x:
 *
 *     s    = T(c(x) + c(residual))                     where `residual` is given; written to `sum`; then x is s
 *     ms   = mean of c(x)^2 over the normalised dimensions, or over the first `partial_size` entries of the only one
 *     rms  = max(sqrt(ms + epsilon) + epsilon_outside, rms_floor)                              a NaN stays a NaN
 *     n    = round_type(c(x) / rms)
 *     y    = round_type(c(n) * c(round_type(scale)))
 *     y    = round_type(c(y) + c(round_type(bias)))    where `bias` is given
 *     y    = Y(y)                                      Y is T, or `y_type`
 *     q    = saturated(quotient_type(c(y) / c(quantised_scale)) rounded to Q + zero_point)
 *                                                      where `quantised` is given; Q is `quantised_type`
 *
 * Every rounding is to nearest, ties to even. q is what QuantizeLinear of ONNX makes of y, bit for bit: a division, not
 * a product with a reciprocal; rounded to a whole number before zero_point is added, and only then held to the range of
 * Q. A NaN becomes the least value of an 8-bit integer, as in onnxruntime on x86-64 (ONNX says nothing), and stays a
 * NaN in float8; an infinity becomes the end of the range.
 *
 * float32 kernels multiply by the reciprocal of rms (wherever that is a
 * normal number) and keep the mean in a wider sum, so a result differs from exact arithmetic by about one unit in the
 * last place of the largest value of its row. Sums of up to 64 squares are floats before they go into a wider one, so a
 * row overflows to infinity, and its y is zero, somewhere from |x| of 2.3e18 (all values that large) to 1.8e19 (one),
 * as float32 arithmetic spelled out does.
 *
 * Rounding errors apart, nothing here depends on alignment, on how the work is divided, or on neighbouring rows.
 */
#ifndef RMSNORM_DEPLOY_RMS_NORM_H_
#define RMSNORM_DEPLOY_RMS_NORM_H_

#include <stdint.h>

/* For the library's own build, which may say something else. */
#ifndef RMS_NORM_EXPORT
#if defined(__GNUC__) && !defined(_WIN32)
#define RMS_NORM_EXPORT __attribute__((visibility("default")))
#else
#define RMS_NORM_EXPORT
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Version of the layout of `rms_norm_params` below, for its first field. New fields are only ever appended, and raise
 * it. A caller that was compiled with an older version of this header goes on working: its shorter struct is read as
 * far as it goes, and every newer field has its neutral value.
 */
#define RMS_NORM_PARAMS_VERSION 2

/* Most dimensions that x can have. */
#define RMS_NORM_MAX_RANK 16

/* Element types. The numbers are those of ONNX. Those of the second line are types of `quantised` only. */
enum {
  RMS_NORM_FLOAT32 = 1,
  RMS_NORM_FLOAT16 = 10,
  RMS_NORM_FLOAT64 = 11,
  RMS_NORM_BFLOAT16 = 16,
  RMS_NORM_UINT8 = 2,
  RMS_NORM_INT8 = 3,
  RMS_NORM_FLOAT8E4M3FN = 17
};

/* Tensors that do not lie one row behind the other: bits of `strided`. */
enum {
  RMS_NORM_STRIDED_X = 1,
  RMS_NORM_STRIDED_RESIDUAL = 2,
  RMS_NORM_STRIDED_Y = 4,
  RMS_NORM_STRIDED_SUM = 8,
  RMS_NORM_STRIDED_QUANTISED = 16
};

/* What a call can return. */
enum {
  RMS_NORM_OK = 0,
  RMS_NORM_BAD_VERSION = 1,   /* `version` is 0, or newer than the library */
  RMS_NORM_BAD_TYPE = 2,      /* an element type is unknown, or the combination is not supported */
  RMS_NORM_BAD_SHAPE = 3,     /* rank, a dimension, or the run of axes is outside its range */
  RMS_NORM_BAD_POINTER = 4,   /* a pointer is missing, or has no place; or two tensors must not be the same */
  RMS_NORM_BAD_PARTIAL = 5,   /* partial_size is below 1, or below the dimension with several axes */
  RMS_NORM_BAD_VALUE = 6,     /* a float attribute is negative or not finite, or quantised_by_row neither 0 nor 1 */
  RMS_NORM_BAD_STRIDE = 7,    /* a stride is negative, or `strided` tensors do not lie as they have to */
  RMS_NORM_BAD_ISA = 8,       /* the instruction set asked for is unknown, or this machine lacks it */
  RMS_NORM_OUT_OF_MEMORY = 9, /* no memory for the converted scale and bias */
  RMS_NORM_BAD_STREAMING = 10 /* the environment variable RMSNORM_DEPLOY_STREAMING holds no number */
};

/*
 * The attributes that are floats, each finite and not negative: name, neutral value (what the formula is like without
 * the attribute), and the version of `rms_norm_params` that brought it. The struct's fields, their check, and what the
 * kernels are handed all follow from these lists. A new attribute is appended to the last list, whose fields end the
 * struct, and the version above is raised. A field of another kind closes that list: it goes behind the struct's last
 * field, and later floats into a list behind it.
 */
#define RMS_NORM_FLOAT_ATTRIBUTES_1(ATTRIBUTE)                       \
  ATTRIBUTE(epsilon, 0.0f, 1)         /* added to the mean square */ \
  ATTRIBUTE(epsilon_outside, 0.0f, 1) /* added to the root */        \
  ATTRIBUTE(rms_floor, 0.0f, 1)       /* least rms */

/* Behind the fields of version 2; none so far. */
#define RMS_NORM_FLOAT_ATTRIBUTES_3(ATTRIBUTE)

#define RMS_NORM_FLOAT_ATTRIBUTES(ATTRIBUTE) \
  RMS_NORM_FLOAT_ATTRIBUTES_1(ATTRIBUTE)     \
  RMS_NORM_FLOAT_ATTRIBUTES_3(ATTRIBUTE)

/*
 * One call. All tensors of x's shape (x, residual, y, sum, quantised) are contiguous, in row-major order, unless
 * `strided` says otherwise.
 *
 * Aliasing: y may be x or residual where it has x's type, and sum may be x or residual, each only as exactly the same
 * address with the same strides; y and sum must not overlap, quantised, least and most must overlap nothing, and
 * nothing that is written may overlap scale, bias, quantised_scale or zero_point. Tensors of one larger tensor that
 * share no byte, such as the queries and the keys in rows of both, do not overlap. Bytes between strided rows are
 * neither read nor written. No pointer needs any alignment beyond that of its element type.
 */
typedef struct rms_norm_params {
  uint32_t version; /* RMS_NORM_PARAMS_VERSION of the header that the caller was compiled with */

  /*
   * Element types. The operators' attribute scale_type is called `round_type` here, since it says how to round;
   * `scale_type` here says only how scale and bias lie in memory.
   */
  int32_t x_type;     /* T: of x, residual and sum in memory, and of y unless y_type says otherwise */
  int32_t scale_type; /* of scale and bias in memory: T or float32 */
  int32_t round_type; /* n and y are rounded to it: T, float32, or float64 with stash_type float64 */
  int32_t stash_type; /* c, the arithmetic: float32 or float64; always float64 where x_type is float64 */

  int32_t rank;       /* number of dimensions of x, 1 to RMS_NORM_MAX_RANK */
  int32_t axis_begin; /* first normalised dimension, from 0 */
  int32_t axis_count; /* number of normalised dimensions, all adjacent, at least 1 */

  const void* x;
  const void* residual; /* or NULL; comes together with sum */
  const void* scale;
  const void* bias; /* or NULL */
  void* y;          /* or NULL, where quantised, least or most is given */
  void* sum;        /* or NULL */

  int64_t shape[RMS_NORM_MAX_RANK];         /* of x, in elements; a zero makes the call a no-op */
  int64_t scale_strides[RMS_NORM_MAX_RANK]; /* in elements, one for each dimension of x; 0 where scale is broadcast */
  int64_t bias_strides[RMS_NORM_MAX_RANK];  /* the same for bias; ignored without one */

  int64_t partial_size; /* leading entries of the normalised dimension in the mean; INT64_MAX, or >= size, is all */

#define RMS_NORM_FIELD(name, neutral, since) float name;
  RMS_NORM_FLOAT_ATTRIBUTES_1(RMS_NORM_FIELD) /* float epsilon; float epsilon_outside; and so on */

  /*
   * Since version 2; a field that is 0 or NULL asks for nothing, and fields that belong to nothing asked for are not
   * read. All of this is for rows: no dimension behind the normalised ones has more than one element. All but strides
   * need arithmetic in float32.
   */
  int32_t y_type;               /* Y: T; float32; or, where T is float32, float16 or bfloat16. 0 is T */
  int32_t quantised_type;       /* Q: int8, uint8 or float8e4m3fn; 0 where there is no `quantised` */
  int32_t quantised_scale_type; /* of quantised_scale in memory: float32, float16 or bfloat16 */
  int32_t quotient_type;    /* y / quantised_scale is rounded to it: float32 (or 0); or Y, if that is quantised_scale's
                               type too */
  int32_t quantised_by_row; /* 1: quantised_scale and zero_point have one value a row, in order; 0: one in all */
  int32_t strided;          /* bits RMS_NORM_STRIDED_*: tensors whose strides, below, are read */
  void* quantised;
  const void* quantised_scale;
  const void* zero_point; /* of quantised_type, or NULL for 0; NULL for float8e4m3fn, which has none */

  /*
   * The least and the greatest y of each row, in row-major order, NaNs left out: infinity and -infinity where a row has
   * nothing else. Both, and not the largest magnitude, which follows from them: a scale with a zero point, such as
   * DynamicQuantizeLinear's, needs the two ends. Each may be NULL.
   */
  float* least;
  float* most;

  /*
   * In elements of the tensor, one for each dimension of x, not negative; those of dimensions of one element are not
   * read. The normalised dimensions lie as in a contiguous tensor. No two rows of an output overlap: by size, each of
   * its strides is at least what the smaller ones span.
   */
  int64_t x_strides[RMS_NORM_MAX_RANK];
  int64_t residual_strides[RMS_NORM_MAX_RANK];
  int64_t y_strides[RMS_NORM_MAX_RANK];
  int64_t sum_strides[RMS_NORM_MAX_RANK];
  int64_t quantised_strides[RMS_NORM_MAX_RANK];

  RMS_NORM_FLOAT_ATTRIBUTES_3(RMS_NORM_FIELD)
#undef RMS_NORM_FIELD
} rms_norm_params;

/*
 * Run one norm on the calling thread. Safe to call from several threads at once; keeps no state between calls.
 *
 * Returns RMS_NORM_OK or one of the codes above; on any other code nothing has been written.
 */
RMS_NORM_EXPORT int rmsnorm_deploy_cpu_run(const rms_norm_params* params);

/* The sentence that belongs to a code; never NULL, never to be freed. */
RMS_NORM_EXPORT const char* rmsnorm_deploy_error_text(int code);

/*
 * Name of the instruction set whose kernels run: "avx512" (F, BW, DQ and VL), "avx2" (with FMA and F16C), "neon" (of
 * 64-bit ARM) or "portable". It is chosen once, at the first use: the best that this machine has, or what the
 * environment variable RMSNORM_DEPLOY_ISA names. NULL where that variable names one that is unknown or that this
 * machine lacks; every run then returns RMS_NORM_BAD_ISA.
 */
RMS_NORM_EXPORT const char* rmsnorm_deploy_cpu_isa(void);

/*
 * Choose the instruction set for all later runs of this process; for tests and measurements. NULL or "" chooses again
 * as at the first use. Returns RMS_NORM_OK, or RMS_NORM_BAD_ISA and changes nothing.
 */
RMS_NORM_EXPORT int rmsnorm_deploy_cpu_set_isa(const char* name);

/*
 * Names of the instruction sets that this library has kernels for, best first, by index; NULL past the last. `usable`,
 * where not NULL, receives 1 where this machine can run it, else 0.
 */
RMS_NORM_EXPORT const char* rmsnorm_deploy_cpu_isa_at(int index, int* usable);

#ifdef __cplusplus
}
#endif

#endif /* RMSNORM_DEPLOY_RMS_NORM_H_ */
