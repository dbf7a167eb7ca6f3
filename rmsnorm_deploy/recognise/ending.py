"""Where a norm ends: from a recognised value to a Match with the operator's attributes, or a refusal."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from rmsnorm_deploy.op import SIXTEEN_BIT, NormParameters, Op, as_float32, attribute_names
from rmsnorm_deploy.op.dtypes import FLOAT32
from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.facts import Facts, is_op
from rmsnorm_deploy.recognise.match import LAYER_NORM, Match, Site
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.residual import with_residual
from rmsnorm_deploy.recognise.rounding import kept_rounding
from rmsnorm_deploy.recognise.state import LEAST_RMS, State
from rmsnorm_deploy.recognise.variance import is_centred

FLOAT, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE


def finish(facts: Facts, site: Site, state: State, cast_x: bool = False) -> Match:
    """The norm that ends at ``state.value``.

    Args:
        facts: what is known about the model.
        site: where the candidate stands.
        state: at stage NORMALISED or OUTPUT.
        cast_x: x may get a Cast of its own where no value of the output's type exists.

    Raises:
        Refusal: the operator cannot express it.
    """
    types = [t for t in state.roundings if isinstance(t, ir.DataType)]
    out_type = types[-1]
    whole = state.source.partial_base if state.whole else state.source.base
    assert whole is not None
    assert state.x is not None
    if is_centred(facts, state.source.base, state.source.axes):
        raise Refusal(
            "the mean is subtracted first: this is a LayerNormalization",
            expected="an x that is not centred",
            found="x - mean(x)",
            hint=LAYER_NORM if state.source.axes == (-1,) else "",
            weight=3,
        )
    if 0 in (facts.size(state.x, state.source.axes), *(facts.shape(state.scale) or ())):
        raise Refusal(
            "normalises a dimension of no elements, which onnxruntime's own norms refuse",
            expected="at least one feature",
            weight=3,
        )
    double = state.statistics[0] == DOUBLE
    if out_type == DOUBLE and not double:
        raise Refusal("float32 statistics become a float64 result", expected="statistics in float64")
    scale_type, fewer = kept_rounding(facts, state, out_type)
    candidates = [v for v in (whole, state.x, state.source.cast) if facts.dtype(v) == out_type]
    if state.whole:
        candidates = [v for v in candidates if v is not state.source.cast]
    if not candidates and not cast_x:
        raise Refusal(
            f"x of type {_name(facts, whole)} becomes a norm of type {out_type.name}",
            expected=f"x of type {out_type.name}",
            found=_name(facts, whole),
        )
    x = candidates[0] if candidates else whole
    scale, bias = (None if v is None else _parameter(facts, v, out_type) for v in (state.scale, state.bias))
    if scale is not None and bias is not None and facts.dtype(scale) != facts.dtype(bias):
        scale, bias = state.scale, state.bias  # as they are applied, both in one type
        if facts.dtype(scale) != FLOAT or facts.dtype(bias) != FLOAT:
            raise Refusal("bias and scale are of different types")
    factor = _factor(state, types)
    if factor != 1.0 and out_type in SIXTEEN_BIT:
        fewer = fewer or scale_type != FLOAT  # a factor is not rounded to 16 bits, nor what it multiplies
        scale_type = FLOAT
    notes = []
    if not any(state.attribute(name) for name in ("epsilon", "epsilon_outside", "rms_floor")):
        notes.append(
            "there is no epsilon: a row of zeros gives NaN (torch's dynamo exporter drops an epsilon of 1e-8 or less)"
        )
    if not double and 0.0 < state.least < LEAST_RMS:
        raise Refusal(
            "the least RMS is so small that squares underflow before it is reached",
            expected=f"{LEAST_RMS:g} or more",
            found=f"{state.least:g}",
        )
    source_size = facts.size(x, state.source.axes)
    values: dict[str, Any] = {
        n: state.attribute(n) for n in attribute_names(Op.GENERAL_RMS_NORM) if n in state.attributes
    }
    for name, value in values.items():
        _fits_float32(name, value)
        if double and as_float32(value) != value:
            notes.append(f"{name} {value!r} is stored as float32 {as_float32(value)!r}")
    general, because = bool(state.needs_general or state.bias is not None), ""
    if not general and scale is not None and facts.shape(scale) == (1,) and source_size != 1:
        general, because = True, "onnxruntime 1.20 fuses a body with a scale of shape [1] and fails"
    if not general and scale is None and _tempts_onnxruntime(facts, state.value, x):
        # GeneralRMSNorm is the one body that onnxruntime's optimizer never fuses
        general, because = True, "onnxruntime would mistake the enlarging factor after it for its scale"
    parameters = NormParameters(
        op=Op.GENERAL_RMS_NORM if general else Op.RMS_NORM,
        output_type=int(out_type),
        axes=state.source.axes,
        stash_type=int(DOUBLE if double else FLOAT),
        scale_type=int(scale_type),
        partial_size=state.source.partial_size if state.whole else None,
        **values,
    )
    shape = facts.shape(x)
    match = Match(
        site=site,
        parameters=parameters,
        x=x,
        output=state.value,
        scale=scale,
        scale_dtype=facts.dtype(scale if scale is not None else bias) or out_type,
        scale_rank=facts.rank(scale),
        factor=factor,
        bias=bias,
        size=source_size,
        rank=None if shape is None else len(shape),
        nodes=state.nodes,
        spelling=" > ".join(state.path),
        fewer_roundings=fewer,
        cast_x=not candidates,
        same=state.same,
        general_because=because,
        notes=tuple(notes),
    )
    return with_residual(facts, match)


def _tempts_onnxruntime(facts: Facts, value: ir.Value, x: ir.Value) -> bool:
    """Whether a product after a norm without scale may enlarge it.

    onnxruntime's SimplifiedLayerNormalization fusion takes any vector after a norm for its scale, also one that
    enlarges the result, and the session then fails at run time (microsoft/onnxruntime issue 31980).
    """
    for node, index in value.uses():
        if is_op(node, "Mul"):
            other = node.inputs[1 - index]
            if other is not None and facts.rank(other) in (None, 1) and not facts.broadcasts_into(other, x):
                return True
    return False


def _name(facts: Facts, value: ir.Value) -> str:
    dtype = facts.dtype(value)
    return "unknown" if dtype is None else dtype.name


def _factor(state: State, types: list[ir.DataType]) -> float:
    factor = state.factor.value(state.source.size)
    if factor is None:
        raise Refusal(
            "sums over an unknown number of elements",
            expected="a mean, or a known size",
            hint="export with a fixed hidden size",
        )
    if state.factor.is_one(state.source.size, types):
        return 1.0
    if types[-1] != DOUBLE:
        _fits_float32("the constant factor", abs(factor))
    return factor


def _fits_float32(name: str, value: float) -> None:
    """Whether a float32 holds ``value``, which must not be negative.

    Raises:
        Refusal: it does not.
    """
    stored = as_float32(value) if 0.0 <= value <= FLOAT32.largest else math.inf
    if not abs(stored - value) <= 1e-6 * value:
        raise Refusal(
            f"{name} {value:g} does not fit the float32 number that holds it",
            expected="a number that float32 has, not negative",
            found=f"{value!r}",
        )


def _parameter(facts: Facts, value: ir.Value, out_type: ir.DataType) -> ir.Value:
    """``value`` in a type that the operator takes: x's or float32."""
    stripped = checks.strip(facts, value)
    if facts.dtype(stripped) == out_type:
        return stripped
    if facts.dtype(value) in (out_type, FLOAT):
        return value
    if facts.dtype(stripped) == FLOAT:
        return stripped
    raise Refusal(
        f"the scale or bias '{value.name}' is of type {_name(facts, value)}",
        expected=f"{out_type.name} or FLOAT",
        found=_name(facts, value),
    )
