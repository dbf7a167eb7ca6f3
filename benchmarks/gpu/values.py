"""float16, bfloat16 and float32 with NumPy alone: bfloat16 is the upper half of a float32. And the float64 truth."""

from __future__ import annotations

import dataclasses

import numpy as np

from benchmarks.gpu.contract import BFLOAT16, FLOAT16
from benchmarks.gpu.package import package_file

ulp = package_file("check/ulp.py")


@dataclasses.dataclass(frozen=True)
class Precision:
    """What the definition of an ULP needs to know of a type."""

    mantissa_bits: int
    smallest: float

    @classmethod
    def of(cls, data_type: int) -> Precision:
        """From what NumPy knows: bfloat16 lacks the lower 16 bits of float32's mantissa."""
        known = np.finfo(np.float16 if data_type == FLOAT16 else np.float32)
        cut = 16 if data_type == BFLOAT16 else 0
        return cls(known.nmant - cut, float(known.smallest_subnormal) * 2.0**cut)


def encode(values: np.ndarray, data_type: int) -> np.ndarray:
    """Values as they are stored in that type, rounded to nearest, ties to even; finite ones."""
    if data_type != BFLOAT16:
        return values.astype(np.float16 if data_type == FLOAT16 else np.float32)
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def decode(raw: bytes | np.ndarray, data_type: int) -> np.ndarray:
    """The float64 values of stored ones, as one long row."""
    data = raw if isinstance(raw, bytes) else raw.tobytes()
    if data_type == BFLOAT16:
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.frombuffer(data, np.float16 if data_type == FLOAT16 else np.float32).astype(np.float64)


def norm(
    x: np.ndarray,
    scale: np.ndarray,
    epsilon: float,
    *,
    axis: int = -1,
    bias: np.ndarray | None = None,
    measured: int | None = None,
) -> np.ndarray:
    """RMSNorm in float64; scale and bias broadcast into x."""
    part = np.take(x, range(measured), axis) if measured else x
    y = x / np.sqrt((part**2).mean(axis=axis, keepdims=True) + float(np.float32(epsilon))) * scale
    return y if bias is None else y + bias


def units(got: np.ndarray, truth: np.ndarray, data_type: int, axis: int = -1) -> float:
    """The largest error, in units in the last place of the largest value of its row."""
    return ulp.units(got, truth, Precision.of(data_type), axis)
