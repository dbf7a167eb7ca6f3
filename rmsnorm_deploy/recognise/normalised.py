"""The normalised value: where x meets the RMS or its inverse.

A spelling is one function and its row in the table at the end, as in statistic.py.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rmsnorm_deploy.op import FLOAT_TYPES
from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.factor import ONE, Factor
from rmsnorm_deploy.recognise.facts import Facts, is_op
from rmsnorm_deploy.recognise.magnitude import magnitude
from rmsnorm_deploy.recognise.match import Stage
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.state import Source, State
from rmsnorm_deploy.recognise.step import STATISTIC, Alternative, Step


def divided_by_rms(step: Step) -> State:
    """X / rms."""
    if step.index != 1 or step.state.power != 1:
        raise Refusal("is not x divided by the RMS", expected="Div(x, rms)")
    return _normalised(step, step.other, ONE / step.state.factor)


def times_inverse_rms(step: Step) -> State:
    """X * (1 / rms)."""
    if step.state.power != -1:
        raise Refusal(
            "is multiplied by the RMS itself, not by its inverse",
            expected="x / rms, or x * (1 / rms)",
            found=f"a product with '{step.other.name}'",
            weight=2 if step.state.stage is Stage.RMS and step.facts.constant(step.other) is None else 0,
        )
    return _normalised(step, step.other, step.state.factor)


def scale_times_inverse_rms(step: Step) -> State:
    """X * (W * (1 / rms)): the scale meets the factor before x does."""
    state, facts = step.state, step.facts
    if state.power != -1 or state.scale is not None:
        raise Refusal("is not a scale times the inverse of the RMS")
    scale = step.other
    if _as_x(facts, state.source, scale) is not None:
        raise Refusal("is x itself")
    if not state.restored:
        raise Refusal("the reduced dimension is gone (keepdims=0), so the statistic would meet other rows")
    # of a partial norm the whole x comes later: what fits there is looked at again then
    checks.scale_broadcasts(facts, scale, state.source.partial_base or state.source.cast, state.source.axes)
    return state.moved(scale=scale)


def _normalised(step: Step, other: ir.Value, factor: Factor) -> State:
    """The state after the product of ``other``, which has to be made of x, and ``factor`` / rms."""
    state, facts = step.state, step.facts
    if state.stage is not Stage.RMS:
        raise Refusal("is applied to x before the root", expected="Sqrt, or Pow with 0.5 or -0.5")
    numerator = _numerator(facts, state.source, other)
    if numerator is None:
        raise Refusal(
            "is applied to a value other than the one that was squared",
            expected=f"'{(state.source.partial_base or state.source.base).name}'",
            found=f"'{checks.strip(facts, other).name}'",
            weight=2,
        )
    if not state.restored:
        raise Refusal(
            "the reduced dimension is gone (keepdims=0), so the statistic would meet other rows",
            expected="keepdims=1, or an Unsqueeze after the reduction",
            found="keepdims=0",
            weight=2,
        )
    if state.scale is not None and numerator.scale is not None:
        raise Refusal("has two scales")
    types = tuple(t for n in numerator.nodes for t in (facts.dtype(n.outputs[0]),) if t is not None)
    dtype = facts.dtype(step.output)
    if dtype not in FLOAT_TYPES or dtype is None:
        raise Refusal(f"the type of '{step.output.name}' is unknown", expected="a float type")
    scale = state.scale if numerator.scale is None else numerator.scale
    if scale is not None:
        checks.scale_broadcasts(facts, scale, numerator.x, state.source.axes)
    return state.moved(
        stage=Stage.NORMALISED,
        source=numerator.source,
        x=numerator.x,
        whole=numerator.whole,
        scale=scale,
        factor=factor * numerator.factor,
        roundings=(*types, dtype, *(("scale",) if scale is not None else ())),
        nodes=(*numerator.nodes, *state.nodes),
        path=state.path if numerator.scale is None else (*state.path, "Mul(x,W)"),
    )


@dataclasses.dataclass(frozen=True)
class _Numerator:
    """What is divided by the RMS: ``factor * x * scale``.

    Attributes:
        x: x as it enters.
        source: what was squared, as this x says it: it may have another sign.
        whole: x is the whole of which the statistic measured a part.
        factor: a constant.
        scale: the scale, where it is applied to x first.
        nodes: the nodes that made this of x.
    """

    x: ir.Value
    source: Source
    whole: bool = False
    factor: Factor = ONE
    scale: ir.Value | None = None
    nodes: tuple[ir.Node, ...] = ()


def _numerator(facts: Facts, source: Source, value: ir.Value) -> _Numerator | None:
    """What ``value`` is made of, if that is x, perhaps times a scale or a constant; else None."""
    alone = _as_x(facts, source, value)
    if alone is not None:
        return alone
    unscaled = _constant_multiple(facts, source)
    inner = checks.strip(facts, value)
    if unscaled is not None and facts.same(inner, unscaled[0]):
        return _Numerator(source.cast, source, factor=ONE / unscaled[1])
    node = inner.producer()
    if not is_op(node, "Mul", "Div") or node is None or len(node.inputs) != 2:
        return None
    for i in (0, 1) if node.op_type == "Mul" else (0,):
        x, other = node.inputs[i], node.inputs[1 - i]
        if x is None or other is None or _as_x(facts, source, other) is not None:
            continue
        found = _as_x(facts, source, x)
        if found is None:
            continue
        try:
            factor = checks.constant_factor(facts, other, x, source)
        except Refusal:
            if node.op_type == "Mul":
                return dataclasses.replace(found, scale=other, nodes=(node,))
        else:
            return dataclasses.replace(found, factor=factor if node.op_type == "Mul" else ONE / factor, nodes=(node,))
    return None


def _as_x(facts: Facts, source: Source, value: ir.Value) -> _Numerator | None:
    """``value`` as the x of a norm: what was squared, whatever its sign, or the whole of it; else None."""
    base = checks.strip(facts, value)
    if facts.same(base, source.base):
        return _Numerator(value, source)
    if facts.same(base, source.partial_base):
        return _Numerator(value, source, whole=True)
    of_sign = magnitude(facts, value)
    if not facts.same(of_sign.root, source.base):
        return None
    if of_sign.sign != (False, False):
        source = dataclasses.replace(source, base=base, cast=value)
    return _Numerator(value, source)


def _constant_multiple(facts: Facts, source: Source) -> tuple[ir.Value, Factor] | None:
    """If what was squared is a constant times another value: that value and the constant (a guard against overflow)."""
    node = source.base.producer()
    if not is_op(node, "Mul", "Div") or node is None or len(node.inputs) != 2:
        return None
    for value, other in (node.inputs, node.inputs[::-1])[: 2 if node.op_type == "Mul" else 1]:
        number = None if other is None or other.is_graph_input() else facts.scalar(other)
        if value is not None and number is not None and number > 0:
            return checks.strip(facts, value), Factor(number if node.op_type == "Mul" else 1.0 / number)
    return None


ALTERNATIVES = (
    Alternative("Div(x,rms)", STATISTIC, ("Div",), divided_by_rms),
    Alternative("Mul(x,1/rms)", STATISTIC, ("Mul",), times_inverse_rms),
    Alternative("Mul(W,1/rms)", frozenset({Stage.RMS}), ("Mul",), scale_times_inverse_rms),
)
"""In the order in which they are tried."""
