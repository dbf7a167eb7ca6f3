"""Types of Relax values, and the type to calculate in."""

from __future__ import annotations

from typing import Any

from tvm import relax

from rmsnorm_deploy.op.dtypes import SIXTEEN_BIT, float_type

SIXTEEN = tuple(float_type(number).name for number in SIXTEEN_BIT)


def dtype_of(value: Any) -> str:
    """TVM's name of a tensor's type."""
    return str(value.ty.dtype.dtype)


def wide(dtype: str) -> str:
    """The type to calculate in: 16 bits are for storing only."""
    return "float32" if dtype in SIXTEEN else dtype


def as_dtype(bb: Any, value: Any, dtype: str) -> Any:
    """``value`` in ``dtype``."""
    return value if dtype_of(value) == dtype else bb.emit(relax.op.astype(value, dtype))
