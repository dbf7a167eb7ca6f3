"""QuantizeLinear and DynamicQuantizeLinear of ai.onnx in NumPy: what the norms that quantise do to their result."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from rmsnorm_deploy.op.dtypes import float_type

Array = NDArray[Any]

_LARGEST_FLOAT8 = 448.0


def quantize_linear(y: Array, scale: Array, zero_point: Array, precision: int = TensorProto.FLOAT) -> Array:
    """``y`` in the type of ``zero_point``: int8, uint8 or float8e4m3fn.

    Rounded half to even, then moved by the zero point, then held to the range of the type. A NaN becomes the least
    value of an integer type, as in onnxruntime on x86-64, and stays one in float8.

    Args:
        y: any shape and float type.
        scale: one number; cast to ``precision``, as ``y`` is.
        zero_point: one number.
        precision: data type of the quotient.

    Returns:
        The quantised values, of y's shape.
    """
    kind = float_type(precision).dtype
    with np.errstate(all="ignore"):
        quotient = np.asarray(y.astype(kind) / scale.astype(kind).reshape(())).astype(np.float32)
    to = zero_point.dtype
    if to == ml_dtypes.float8_e4m3fn:
        return np.clip(quotient, -_LARGEST_FLOAT8, _LARGEST_FLOAT8).astype(to)
    limits = np.iinfo(to)
    zero = int(zero_point.reshape(()))
    # both bounds are whole numbers, so that the order does not matter
    whole = np.rint(np.clip(quotient, limits.min - zero, limits.max - zero))
    return np.where(np.isnan(quotient), limits.min, np.nan_to_num(whole) + zero).astype(to)


def dynamic_quantize_linear(y: Array) -> tuple[Array, Array, Array]:
    """``y`` in uint8 by the scale and zero point of its own range, which 0 is always in.

    NaNs have no part in the range. Zeros alone have the scale 1, as in onnxruntime.

    Args:
        y: float32, any shape.

    Returns:
        The quantised values, of y's shape; scale and zero point, without dimensions.
    """
    numbers = y[~np.isnan(y)]
    least = np.float32(numbers.min(initial=np.float32(0)))
    most = np.float32(numbers.max(initial=np.float32(0)))
    with np.errstate(all="ignore"):
        scale = np.float32(1) if most == least else np.float32((most - least) / np.float32(255))
        zero = np.float32(0) - least / scale
    zero = np.float32(255) if np.isnan(zero) else np.clip(zero, np.float32(0), np.float32(255))
    point = np.array(np.rint(zero), np.uint8)
    return quantize_linear(y, np.array(scale), point), np.array(scale), point
