"""The meaning of the operators in NumPy, with float64 arithmetic: what kernels, bodies and schedules are judged by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from rmsnorm_deploy.op import ALL_FEATURES
from rmsnorm_deploy.op.dtypes import float_type

Array = NDArray[Any]


def dtype_of(data_type: int) -> np.dtype[Any]:
    """The NumPy type of an ``onnx.TensorProto`` data type."""
    return float_type(data_type).dtype


def _rounded(value: Array, data_type: int, stash_type: int) -> Array:
    """``value`` rounded to ``data_type`` and back where that is narrower than the arithmetic; else left exact."""
    if data_type == stash_type or data_type == TensorProto.DOUBLE:
        return value
    return value.astype(dtype_of(data_type)).astype(np.float64)


def rms_norm(
    x: Array,
    scale: Array,
    *,
    axes: Sequence[int] = (-1,),
    epsilon: float = 0.0,
    stash_type: int = TensorProto.FLOAT,
    scale_type: int = TensorProto.FLOAT,
    residual: Array | None = None,
    bias: Array | None = None,
    epsilon_outside: float = 0.0,
    rms_floor: float = 0.0,
    partial_size: int | None = None,
    exact: bool = False,
) -> tuple[Array, Array]:
    """RMSNorm, AddRMSNorm or GeneralRMSNorm, by the formula in :mod:`rmsnorm_deploy.op`.

    Args:
        x: any shape and float type T.
        scale: broadcasts into ``x``.
        axes: the normalised dimensions.
        epsilon: inside the root.
        stash_type: 1 or 11; float32 arithmetic overflows where float64 does not, so the square is checked against it.
        scale_type: type to which the normalised value is rounded before the scale, where narrower than ``stash_type``.
        residual: of x's shape and type; added first, and the sum rounded to T.
        bias: broadcasts into ``x``.
        epsilon_outside: outside the root.
        rms_floor: least value of the RMS.
        partial_size: number of leading features in the statistic, along the one axis; None for all.
        exact: return Y in float64 before the last rounding to T.

    Returns:
        ``(Y, x + residual)``; the second is ``x`` itself without a residual. Of x's shape and, unless ``exact``, type.
    """
    with np.errstate(all="ignore"):
        if residual is not None:
            total = x.astype(np.float64) + residual.astype(np.float64)
            x = total.astype(x.dtype)
        wide = x.astype(np.float64)
        measured = wide
        if partial_size is not None and partial_size != ALL_FEATURES:
            measured = np.take(wide, range(min(partial_size, wide.shape[axes[0]])), axis=axes[0])
        square = measured * measured
        if stash_type == TensorProto.FLOAT:
            square = np.where(square > np.finfo(np.float32).max, np.inf, square)
        rms = np.sqrt(square.mean(axis=tuple(axes), keepdims=True) + epsilon) + epsilon_outside
        normalised = _rounded(wide / np.maximum(rms, rms_floor), scale_type, stash_type)
        y = normalised * _rounded(scale.astype(np.float64), scale_type, stash_type)
        if bias is not None:
            y = _rounded(y, scale_type, stash_type) + _rounded(bias.astype(np.float64), scale_type, stash_type)
        y = _rounded(y, scale_type, stash_type)
        return (y if exact else y.astype(x.dtype)), x
