"""Operators that take more than one rounding: with 16-bit tensors they are calculated in float32, and rounded once.

TVM's kernels calculate in the tensor's type, so that a softmax of float16, for instance, sums in float16; some refuse
bfloat16 altogether.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from rmsnorm_deploy.tvm.importer.dtypes import SIXTEEN, as_dtype, dtype_of, wide
from rmsnorm_deploy.tvm.importer.table import Convert

_NAMES = """
    Acos Acosh Asin Asinh Atan Atanh AveragePool BatchNormalization BiasGelu Celu Conv ConvTranspose Cos Cosh CumSum
    Einsum Elu Erf Exp FastGelu Gelu GlobalAveragePool GlobalLpPool GroupNormalization HardSigmoid HardSwish
    InstanceNormalization LRN LayerNormalization Log LogSoftmax LpPool Mean MeanVarianceNormalization Mish Mod Pow
    Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceProd ReduceSum ReduceSumSquare Resize
    Selu Sigmoid Sin Sinh SkipLayerNormalization Softmax Softplus Softsign Sqrt Sum Tan Tanh
"""
SEVERAL_ROUNDINGS = frozenset(_NAMES.split())
"""Operators whose results have the type of their inputs."""


def calculated_wide(name: str, convert: Convert) -> Convert:
    """``convert`` for the operator ``name``, in float32 where a tensor has 16 bits."""
    if name not in SEVERAL_ROUNDINGS:
        return convert

    def wrapped(bb: Any, inputs: Any, attr: dict[str, Any]) -> Any:
        narrow = next((dtype_of(i) for i in inputs if _is_tensor(i) and dtype_of(i) in SIXTEEN), None)
        if narrow is None:
            return convert(bb, inputs, attr)
        widened = [as_dtype(bb, i, wide(narrow)) if _is_tensor(i) and dtype_of(i) == narrow else i for i in inputs]
        result = convert(bb, widened, attr)
        if isinstance(result, relax.Tuple):
            return relax.Tuple([_narrowed(bb, field, narrow) for field in result.fields])
        return _narrowed(bb, result, narrow)

    return wrapped


def _is_tensor(value: Any) -> bool:
    return value is not None and isinstance(value.ty, relax.TensorType)


def _narrowed(bb: Any, value: Any, dtype: str) -> Any:
    value = bb.normalize(value)
    return as_dtype(bb, value, dtype) if _is_tensor(value) and dtype_of(value) == wide(dtype) else value
