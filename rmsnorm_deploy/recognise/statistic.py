"""The statistic: how the mean square becomes the RMS or its inverse.

To add a spelling: one function, and its row in the table at the end. It gets a :class:`Step` and returns the next
:class:`State`, or raises a :class:`Refusal`. Operand order, Casts that lose nothing, Identity and other noise, Constant
nodes and initializers are the engine's business and never part of an alternative.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from rmsnorm_deploy.op import FLOAT_TYPES
from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.factor import ONE
from rmsnorm_deploy.recognise.facts import Facts
from rmsnorm_deploy.recognise.match import Stage
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.state import State
from rmsnorm_deploy.recognise.step import STATISTIC, Alternative, Step

# ---------------------------------------------------------------------------------------------------------------------
# Constants: factors, epsilon, bounds


def times_constant(step: Step) -> State:
    """A sum times 1/n, or another constant factor."""
    return step.state.moved(factor=step.state.factor * step.factor())


def divided_by_constant(step: Step) -> State:
    """A sum divided by n, or by another constant."""
    if step.index != 0:
        raise Refusal("divides a constant by the value")
    return step.state.moved(factor=step.state.factor / step.factor())


def plus_epsilon(step: Step) -> State:
    """Epsilon inside the root or outside it."""
    return _offset(step, step.constant())


def minus_negative_epsilon(step: Step) -> State:
    """Epsilon, subtracted with the other sign."""
    if step.index != 0:
        raise Refusal("subtracts the value from a constant")
    return _offset(step, -step.constant())


def _offset(step: Step, offset: float) -> State:
    """``offset`` added to the value: epsilon inside or outside the root."""
    state = step.state
    factor = state.factor.value(state.source.size)
    if offset and factor is None:
        raise Refusal(
            "adds epsilon to a sum over an unknown number of elements",
            expected="a mean, or a known size",
            hint="export with a fixed hidden size",
        )
    offset = offset / (factor or 1.0)
    if not 0.0 <= offset < math.inf:
        raise Refusal("epsilon is negative or not finite", expected="epsilon >= 0", found=f"{offset:g}")
    if state.power not in (1, 2):
        raise Refusal("adds a constant to the inverse of the RMS")
    if state.attribute("rms_floor"):
        raise Refusal(f"adds epsilon behind a clamp of the {'RMS' if state.power == 1 else 'mean square'}")
    name = "epsilon_outside" if state.power == 1 else "epsilon"
    return state.having(name, state.attribute(name) + offset)


def at_least(step: Step) -> State:
    """Max with a constant."""
    return _clamp(step, step.constant())


def clipped(step: Step) -> State:
    """Clip with a lower bound, and an upper one only where it is the end of the type."""
    if step.index != 0:
        raise Refusal("is the bound of a Clip")
    low, high = (_bound(step, i, name) for i, name in ((1, "min"), (2, "max")))
    dtype = step.facts.dtype(step.state.value)
    greatest = 65504.0 if dtype == ir.DataType.FLOAT16 else float(np.finfo(np.float32).max) * 0.99
    if high is not None and high < greatest:
        raise Refusal("the RMS has an upper bound", expected="no upper bound", found=f"{high:g}")
    return step.state if low is None else _clamp(step, low)


def _bound(step: Step, index: int, name: str) -> float | None:
    """A bound of a Clip, from its attribute (up to opset 10) or its input."""
    attribute = step.node.attributes.get(name)
    if attribute is not None and not attribute.is_ref():
        return float(attribute.value)
    value = step.node.inputs[index] if len(step.node.inputs) > index else None
    return None if value is None else checks.scalar_constant(step.facts, value, step.state.value)


def _clamp(step: Step, least: float) -> State:
    """The value is at least ``least``."""
    state = step.state
    if state.power not in (1, 2):
        raise Refusal("clamps the inverse of the RMS")
    factor = state.factor.value(state.source.size)
    if factor is None:
        raise Refusal("clamps a sum over an unknown number of elements", expected="a mean, or a known size")
    if not math.isfinite(least):
        raise Refusal("clamps at a bound that is not finite", found=f"{least:g}")
    # below zero a clamp does nothing to a square or a root
    floor = max(least, 0.0) / factor
    rms_floor = floor if state.power == 1 else math.sqrt(floor)
    return state.having("rms_floor", max(state.attribute("rms_floor"), rms_floor))


# ---------------------------------------------------------------------------------------------------------------------
# Powers


def root(step: Step) -> State:
    """The square root of the mean square or of its inverse."""
    state = step.state
    if abs(state.power) != 2:
        raise Refusal("takes the root of a root", expected="the mean square")
    return state.moved(stage=Stage.RMS, power=state.power // 2, factor=state.factor**0.5)


def inverse(step: Step) -> State:
    """One divided by the value, as Reciprocal."""
    return step.state.moved(power=-step.state.power, factor=ONE / step.state.factor)


def divisor_of_constant(step: Step) -> State:
    """One, or another constant, divided by the value."""
    if step.index != 1:
        raise Refusal("is not the divisor")
    return step.state.moved(power=-step.state.power, factor=step.factor() / step.state.factor)


def power(step: Step) -> State:
    """A root or an inverse, or both, written as a power."""
    state, exponent = step.state, step.node.inputs[1]
    if step.index != 0:
        raise Refusal("is the exponent")
    number = next((n for n in (0.5, -0.5, -1.0) if checks.exponent_is(step.facts, exponent, n)), None)
    if number is None:
        raise Refusal("is raised to another power", expected="0.5, -0.5 or -1", found=f"{step.facts.scalar(exponent)}")
    checks.scalar_constant(step.facts, exponent, state.value)
    raised = state.power * number
    if raised not in (1.0, -1.0, 2.0, -2.0):
        raise Refusal("takes the root of a root", expected="the mean square")
    stage = Stage.RMS if abs(raised) == 1 else state.stage
    return state.moved(stage=stage, power=int(raised), factor=state.factor**number)


# ---------------------------------------------------------------------------------------------------------------------
# Type and shape


def cast(step: Step) -> State:
    """A Cast of the statistic. What it loses is judged at the end, by the types of the product."""
    if step.index != 0 or step.facts.dtype(step.output) not in FLOAT_TYPES:
        raise Refusal("casts the statistic to something that is not a float")
    return step.state


def dimension_restored(step: Step) -> State:
    """The reduced dimension put back (keepdims=0 before), by Unsqueeze."""
    state = step.state
    if step.index != 0 or state.restored:
        raise Refusal("adds a dimension to the statistic", expected="the reduced dimension put back where it was")
    axes = _axes_of(step.facts, step.node)
    if checks.canonical_axes(axes, step.facts.rank(state.source.cast)) != state.source.axes:
        raise Refusal(
            "the reduced dimension is put back in another place",
            expected=f"axes {list(state.source.axes)}",
            found=f"axes {axes}",
        )
    return state.moved(restored=True)


def dimension_removed(step: Step) -> State:
    """The reduced dimension taken out, by Squeeze; it has to come back."""
    state = step.state
    if step.index != 0 or not state.restored:
        raise Refusal("removes a dimension of the statistic")
    axes = _axes_of(step.facts, step.node)
    if checks.canonical_axes(axes, step.facts.rank(state.source.cast)) != state.source.axes:
        raise Refusal("removes another dimension than the reduced one", found=f"axes {axes}")
    return state.moved(restored=False)


def _axes_of(facts: Facts, node: ir.Node) -> list[int]:
    """The constant axes of a Squeeze or Unsqueeze, from its attribute or its input."""
    attribute = node.attributes.get("axes")
    if attribute is not None and not attribute.is_ref():
        return [int(a) for a in attribute.value]
    given = node.inputs[1] if len(node.inputs) > 1 else None
    constant = None if given is None or given.is_graph_input() else facts.constant(given)
    if constant is None:
        raise Refusal("the axes are not constant", expected="constant axes")
    return [int(a) for a in constant.reshape(-1)]


def reshaped(step: Step) -> State:
    """The reduced dimension put back, by Reshape."""
    state, facts = step.state, step.facts
    shape, out = facts.shape(state.source.cast), facts.shape(step.output)
    if step.index != 0 or state.restored:
        raise Refusal("reshapes the statistic")
    if shape is None or out is None or len(out) != len(shape):
        raise Refusal("the shape of the reshaped statistic is unknown")
    axes = {a % len(shape) for a in state.source.axes}
    if any((o != 1) if i in axes else (o is None or o != s) for i, (o, s) in enumerate(zip(out, shape, strict=True))):
        raise Refusal("the reduced dimension is put back in another place", found=f"shape {list(out)}")
    return state.moved(restored=True)


def expanded(step: Step) -> State:
    """F.normalize expands the norm to x's shape; broadcasting does the same."""
    state, facts = step.state, step.facts
    if step.index != 0 or not state.restored:
        raise Refusal("expands the statistic")
    xs = [x for x in (state.source.cast, state.source.base, state.source.partial_base) if x is not None]
    if not any(facts.has_shape_of(step.node.inputs[1], x) or facts.broadcasts_into(step.output, x) for x in xs):
        raise Refusal("expands the statistic to another shape than x's", found="an Expand whose shape is not x's")
    return state


ALTERNATIVES = (
    Alternative("Mul(s,c)", STATISTIC, ("Mul",), times_constant),
    Alternative("Div(s,c)", STATISTIC, ("Div",), divided_by_constant),
    Alternative("Add eps", STATISTIC, ("Add", "Sum"), plus_epsilon),
    Alternative("Sub -eps", STATISTIC, ("Sub",), minus_negative_epsilon),
    Alternative("Max eps", STATISTIC, ("Max",), at_least),
    Alternative("Clip", STATISTIC, ("Clip",), clipped),
    Alternative("Sqrt", STATISTIC, ("Sqrt",), root),
    Alternative("Reciprocal", STATISTIC, ("Reciprocal",), inverse),
    Alternative("Div(c,.)", STATISTIC, ("Div",), divisor_of_constant),
    Alternative("Pow", STATISTIC, ("Pow",), power),
    Alternative("Cast(s)", STATISTIC, ("Cast", "CastLike"), cast),
    Alternative("Unsqueeze", STATISTIC, ("Unsqueeze",), dimension_restored),
    Alternative("Squeeze", STATISTIC, ("Squeeze",), dimension_removed),
    Alternative("Reshape", STATISTIC, ("Reshape",), reshaped),
    Alternative("Expand", STATISTIC, ("Expand",), expanded),
)
"""In the order in which they are tried."""
