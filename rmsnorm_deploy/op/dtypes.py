"""The element types that a norm can have: the one table of their numbers, names and precision."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto


@dataclasses.dataclass(frozen=True)
class FloatType:
    """One element type.

    Attributes:
        number: its ``onnx.TensorProto`` data type.
        name: what NumPy, ml_dtypes and TVM call it.
        onnx_name: what type constraints of ONNX and inputs of onnxruntime call it.
        dtype: its NumPy type.
        mantissa_bits: stored bits of the mantissa; 1.0 and the next number are ``2 ** -mantissa_bits`` apart.
        smallest: the least positive number (subnormal), and so the spacing of all subnormals.
        least_normal: the least positive number that has all bits of the mantissa.
    """

    number: int
    name: str
    onnx_name: str
    dtype: np.dtype[Any]
    mantissa_bits: int
    smallest: float
    least_normal: float

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return (2.0 - self.epsilon) * (2.0 / self.least_normal)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def epsilon(self) -> float:
        """The distance between 1.0 and the next number."""
        return 2.0**-self.mantissa_bits


def _row(number: int, onnx_name: str, scalar: Any, mantissa_bits: int, least_exponent: int) -> FloatType:
    """A row of the table; ``2 ** least_exponent`` is the least normal number (IEEE 754 emin)."""
    dtype = np.dtype(scalar)
    normal = 2.0**least_exponent
    smallest = 2.0 ** (least_exponent - mantissa_bits)
    return FloatType(int(number), dtype.name, f"tensor({onnx_name})", dtype, mantissa_bits, smallest, normal)


FLOAT32 = _row(TensorProto.FLOAT, "float", np.float32, 23, -126)
FLOAT16 = _row(TensorProto.FLOAT16, "float16", np.float16, 10, -14)
BFLOAT16 = _row(TensorProto.BFLOAT16, "bfloat16", ml_dtypes.bfloat16, 7, -126)
FLOAT64 = _row(TensorProto.DOUBLE, "double", np.float64, 52, -1022)

TYPES = (FLOAT32, FLOAT16, BFLOAT16, FLOAT64)
"""Every type that a norm can have."""
FLOAT_TYPES = tuple(t.number for t in TYPES)
"""Their ``onnx.TensorProto`` data types."""
SIXTEEN_BIT = tuple(t.number for t in TYPES if t.itemsize == 2)
"""The data types of those that are for storing only: nothing is computed in them."""

QUANTISED_TYPES = {
    int(TensorProto.INT8): "int8",
    int(TensorProto.UINT8): "uint8",
    int(TensorProto.FLOAT8E4M3FN): "float8e4m3fn",
}
"""The types of 8 bits in which a norm can end: their data types, and what type constraints of ONNX call them."""

_FOUND: dict[int | str, FloatType] = {key: t for t in TYPES for key in (t.number, t.name)}


def float_type(key: int | str | np.dtype[Any]) -> FloatType:
    """The row of a type, by its data type number, its name or its NumPy type.

    Raises:
        ValueError: no norm can have this type.
    """
    found = _FOUND.get(key.name if isinstance(key, np.dtype) else key)
    if found is None:
        raise ValueError(f"not float32, float16, bfloat16 or float64, but {key!r}")
    return found
