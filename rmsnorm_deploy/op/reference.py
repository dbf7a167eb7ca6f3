"""The meaning of the operators in NumPy, with float64 arithmetic: what kernels, bodies and schedules are judged by."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from rmsnorm_deploy.op.definition import ALL_FEATURES, GATED_FIRST, GATED_LAST, GATED_NORMALISED, SILU, NormParameters
from rmsnorm_deploy.op.dtypes import float_type
from rmsnorm_deploy.op.quantising import dynamic_quantize_linear, quantize_linear

Array = NDArray[Any]


def _rounded(value: Array, data_type: int, stash_type: int) -> Array:
    """``value`` rounded to ``data_type`` and back where that is narrower than the arithmetic; else left exact."""
    if data_type == stash_type or data_type == TensorProto.DOUBLE:
        return value
    return value.astype(float_type(data_type).dtype).astype(np.float64)


def activated(gate: Array, activation: int) -> Array:
    """The gate after its activation, in float64: ``sigmoid(z)``, or ``z * sigmoid(z)``; -infinity gives a NaN there."""
    z = gate.astype(np.float64)
    with np.errstate(all="ignore"):
        small = np.exp(-np.abs(z))  # cannot overflow
        sigmoid = np.where(z < 0, small, 1.0) / (1.0 + small)
        return z * sigmoid if activation == SILU else sigmoid


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
    gate: Array | None = None,
    activation: int = SILU,
    gate_at: int = GATED_FIRST,
    exact: bool = False,
) -> tuple[Array, Array]:
    """Any of the operators, by the formula in :mod:`rmsnorm_deploy.op.definition`.

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
        gate: of x's shape, of any float type; multiplies what ``gate_at`` says after its ``activation``.
        activation: of the gate.
        gate_at: what it multiplies.
        exact: return Y in float64 before the last rounding to T.

    Returns:
        ``(Y, x + residual)``; the second is ``x`` itself without a residual. Of x's shape and, unless ``exact``, type.
    """
    with np.errstate(all="ignore"):
        if residual is not None:
            total = x.astype(np.float64) + residual.astype(np.float64)
            x = total.astype(x.dtype)
        wide = x.astype(np.float64)
        factor = 1.0 if gate is None else activated(gate, activation)
        if gate is not None and gate_at == GATED_FIRST:
            wide = wide * factor
        measured = wide
        if partial_size is not None and partial_size != ALL_FEATURES:
            measured = np.take(wide, range(min(partial_size, wide.shape[axes[0]])), axis=axes[0])
        square = measured * measured
        if stash_type == TensorProto.FLOAT:
            square = np.where(square > np.finfo(np.float32).max, np.inf, square)
        rms = np.sqrt(square.mean(axis=tuple(axes), keepdims=True) + epsilon) + epsilon_outside
        normalised = _rounded(wide / np.maximum(rms, rms_floor), scale_type, stash_type)
        if gate is not None and gate_at == GATED_NORMALISED:
            normalised = _rounded(normalised * factor, scale_type, stash_type)
        y = normalised * _rounded(scale.astype(np.float64), scale_type, stash_type)
        if bias is not None:
            y = _rounded(y, scale_type, stash_type) + _rounded(bias.astype(np.float64), scale_type, stash_type)
        y = _rounded(y, scale_type, stash_type)
        if gate is not None and gate_at == GATED_LAST:
            y = y * factor
        return (y if exact else y.astype(x.dtype)), x


def evaluate(parameters: NormParameters, *inputs: Array, exact: bool = False) -> tuple[Array, ...]:
    """What a node computes.

    Args:
        parameters: of the node.
        *inputs: of the node, in the operator's order; X of any shape.
        exact: return Y in float64 before the last rounding.

    Returns:
        The outputs of the node, in the operator's order; the optional ones, too. Those that are not quantised are of
        X's shape and, unless ``exact``, type.
    """
    if parameters.op.quantises:
        return _quantised(parameters, *inputs, exact=exact)
    given: dict[str, Any] = dict(zip(parameters.op.inputs, inputs, strict=True))
    made = rms_norm(given.pop("X"), given.pop("scale"), exact=exact, **given, **norm_attributes(parameters))
    return made[: len(parameters.op.outputs)]


def norm_attributes(parameters: NormParameters) -> dict[str, Any]:
    """The keywords of :func:`rms_norm` that ``parameters`` have: all but what types and quantising are about."""
    of_others = ("op", "output_type", "precision")
    return {f.name: getattr(parameters, f.name) for f in dataclasses.fields(parameters) if f.name not in of_others}


def _quantised(parameters: NormParameters, *inputs: Array, exact: bool) -> tuple[Array, ...]:
    op = parameters.op
    given = dict(zip(op.inputs, inputs, strict=True))
    alone = dataclasses.replace(parameters, op=op.norm, precision=TensorProto.FLOAT)
    operands = [given[name] for name in op.norm.inputs]
    found = dict(zip(op.norm.outputs, evaluate(alone, *operands), strict=True))
    if op.is_dynamic:
        made = dynamic_quantize_linear(found["Y"])
        found |= dict(zip(("quantized", "y_scale", "y_zero_point"), made, strict=True))
    else:
        found["quantized"] = quantize_linear(found["Y"], given["y_scale"], given["y_zero_point"], parameters.precision)
    if exact:
        found["Y"] = evaluate(alone, *operands, exact=True)[0]
    return tuple(found[name] for name in op.outputs)
