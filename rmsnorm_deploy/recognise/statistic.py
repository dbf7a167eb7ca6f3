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
        raise Refusal(f"adds epsilon after a clamp of the {'RMS' if state.power == 1 else 'mean square'}")
    name = "epsilon_outside" if state.power == 1 else "epsilon"
    return state.having(name, state.attribute(name) + offset)


def at_least(step: Step) -> State:
    """Max with a constant."""
    return _clamp(step.state, step.constant())


def clipped(step: Step) -> State:
    """Clip with a lower bound, and an upper one only where it is the end of the type."""
    if step.index != 0:
        raise Refusal("is the bound of a Clip")
    low, high = (_bound(step, i, name) for i, name in ((1, "min"), (2, "max")))
    dtype = step.facts.dtype(step.state.value)
    greatest = 65504.0 if dtype == ir.DataType.FLOAT16 else float(np.finfo(np.float32).max) * 0.99
    if high is not None and high < greatest:
        raise Refusal("the RMS has an upper bound", expected="no upper bound", found=f"{high:g}")
    return step.state if low is None else _clamp(step.state, low)


def _bound(step: Step, index: int, name: str) -> float | None:
    """A bound of a Clip, from its attribute (up to opset 10) or its input."""
    attribute = step.node.attributes.get(name)
    if attribute is not None and not attribute.is_ref():
        return float(attribute.value)
    value = step.node.inputs[index] if len(step.node.inputs) > index else None
    return None if value is None else checks.scalar_constant(step.facts, value, step.state.value)


def _clamp(state: State, least: float) -> State:
    """The value is at least ``least``."""
    return state.having("rms_floor", max(state.attribute("rms_floor"), _bound_of_rms(state, least)))


def _bound_of_rms(state: State, bound: float) -> float:
    """What a bound of the value means for the RMS."""
    if state.power not in (1, 2):
        raise Refusal("clamps the inverse of the RMS")
    factor = state.factor.value(state.source.size)
    if factor is None:
        raise Refusal("clamps a sum over an unknown number of elements", expected="a mean, or a known size")
    if not math.isfinite(bound):
        raise Refusal("clamps at a bound that is not finite", found=f"{bound:g}")
    # below zero a clamp does nothing to a square or a root
    bound = max(bound, 0.0) / factor
    return bound if state.power == 1 else math.sqrt(bound)


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
        scalar = step.facts.scalar(exponent)
        raise Refusal(
            "is raised to another power",
            expected="0.5, -0.5 or -1",
            found="not one constant number" if scalar is None else f"{scalar}",
        )
    checks.scalar_constant(step.facts, exponent, state.value)
    raised = state.power * number
    if raised not in (1.0, -1.0, 2.0, -2.0):
        raise Refusal("takes the root of a root", expected="the mean square")
    stage = Stage.RMS if abs(raised) == 1 else state.stage
    return state.moved(stage=stage, power=int(raised), factor=state.factor**number)


def cast(step: Step) -> State:
    """A Cast of the statistic to another float type."""
    if step.index != 0 or step.facts.dtype(step.output) not in FLOAT_TYPES:
        raise Refusal("casts the statistic to something that is not a float")
    return step.state


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
)
"""In the order in which they are tried."""
