"""The statistic: how the mean square becomes the RMS or its inverse.

To add a spelling: one function, and its row in the table at the end. It gets a :class:`Step` and returns the next
:class:`State`, or raises a :class:`Refusal`. Operand order, Casts that lose nothing, Identity and other noise, Constant
nodes and initializers are the engine's business and never part of an alternative.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from rmsnorm_deploy.op import FLOAT_TYPES
from rmsnorm_deploy.op.dtypes import float_type
from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.match import Stage
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.state import State
from rmsnorm_deploy.recognise.step import STATISTIC, Alternative, Step


def _unscaled(step: Step) -> State:
    """The state of a value that no scale has met yet: with one it is another number for each feature, of any sign."""
    if step.state.scale is not None:
        raise Refusal(
            "is applied to the product of the scale and the inverse of the RMS", expected="the product with x"
        )
    return step.state


# ---------------------------------------------------------------------------------------------------------------------
# Constants: factors, signs, epsilon


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
    return _offset(_unscaled(step), step.constant())


def minus_negative_epsilon(step: Step) -> State:
    """Epsilon, subtracted with the other sign; or the value subtracted from a constant."""
    state, number = _unscaled(step), step.constant()
    return _offset(state, -number) if step.index == 0 else _offset(state.moved(factor=-state.factor), number)


def _offset(state: State, offset: float) -> State:
    """``offset`` added to the value: epsilon inside or outside the root."""
    if not offset:
        return state
    factor = state.factor.value(state.source.size)
    if factor is None:
        raise Refusal(
            "adds epsilon to a sum over an unknown number of elements",
            expected="a mean, or a known size",
            hint="export with a fixed hidden size",
        )
    offset = offset / factor
    if not 0.0 <= offset < math.inf:
        raise Refusal("epsilon is negative or not finite", expected="epsilon >= 0", found=f"{offset:g}")
    if state.power not in (1, 2):
        raise Refusal("adds a constant to the inverse of the RMS")
    name = "epsilon_outside" if state.power == 1 else "epsilon"
    floor = state.attribute("rms_floor")
    if floor:  # max(a, floor) + offset is max(a + offset, floor + offset)
        state = state.having("rms_floor", floor + offset if state.power == 1 else math.sqrt(floor * floor + offset))
    return state.having(name, state.attribute(name) + offset)


def negated(step: Step) -> State:
    """The value with the other sign."""
    return step.state.moved(factor=-step.state.factor)


def absolute(step: Step) -> State:
    """The absolute value; the RMS is never negative."""
    state = _unscaled(step)
    return state.moved(factor=abs(state.factor))


# ---------------------------------------------------------------------------------------------------------------------
# Bounds


def at_least(step: Step) -> State:
    """Max with a constant."""
    return _bounded(step, _unscaled(step), step.constant(), upper=False)


def at_most(step: Step) -> State:
    """Min with a constant."""
    return _bounded(step, _unscaled(step), step.constant(), upper=True)


def clipped(step: Step) -> State:
    """Clip: Max with the one bound, then Min with the other. A bound that is not there is the end of the type."""
    if step.index != 0:
        raise Refusal("is the bound of a Clip")
    least, most = (_bound(step, i, name) for i, name in ((1, "min"), (2, "max")))
    end = _end_of_type(step)
    state = _bounded(step, _unscaled(step), -end if least is None else least, upper=False)
    return _bounded(step, state, end if most is None else most, upper=True)


def _bound(step: Step, index: int, name: str) -> float | None:
    """A bound of a Clip, from its attribute (up to opset 10) or its input."""
    attribute = step.node.attributes.get(name)
    if attribute is not None and not attribute.is_ref():
        return float(attribute.value)
    value = step.node.inputs[index] if len(step.node.inputs) > index else None
    return None if value is None else checks.scalar_constant(step.facts, value, step.state.value)


def _end_of_type(step: Step) -> float:
    """The largest finite number of the value's type."""
    dtype = step.facts.dtype(step.state.value)
    return float_type(ir.DataType.FLOAT if dtype is None else dtype).largest


def _bounded(step: Step, state: State, bound: float, upper: bool) -> State:
    """The value is at most ``bound`` (``upper``), or at least.

    A bound of ``factor * S ** power`` is one of S, from above or from below as the signs of factor and power say. The
    operator has a least RMS and no greatest one.
    """
    if math.isnan(bound):
        raise Refusal("clamps at NaN")
    found = f"{'at most' if upper else 'at least'} {bound:g}"
    if state.factor.number < 0:
        bound, upper = -bound, not upper
    # from here on the value is not negative
    if bound <= 0 and not upper:
        return state
    if bound <= 0:
        raise Refusal("clamps to a constant: the RMS is never negative", expected="a clamp of the RMS", found=found)
    if upper and (bound == math.inf or (state.power > 0 and bound >= _end_of_type(step))):
        return state  # the end of the type is no bound but where its numbers overflow
    if upper == (state.power > 0) or bound == math.inf:
        raise Refusal("the RMS has an upper bound", expected="no upper bound", found=found)
    factor = (abs(state.factor)).value(state.source.size)
    if factor is None:
        raise Refusal("clamps a sum over an unknown number of elements", expected="a mean, or a known size")
    try:
        floor = (bound / factor) ** (1 / state.power)
    except ArithmeticError:
        raise Refusal("clamps at a bound that is out of range", found=found) from None
    return state if floor <= state.least else state.having("rms_floor", floor)


# ---------------------------------------------------------------------------------------------------------------------
# Powers


def root(step: Step) -> State:
    """The square root of the mean square or of its inverse, or of a positive multiple."""
    return _raised(_unscaled(step), 0.5)


def inverse(step: Step) -> State:
    """One divided by the value, as Reciprocal."""
    return _raised(_unscaled(step), -1)


def divisor_of_constant(step: Step) -> State:
    """One, or another constant, divided by the value."""
    if step.index != 1:
        raise Refusal("is not the divisor")
    state = _raised(_unscaled(step), -1)
    return state.moved(factor=step.factor() * state.factor)


def power(step: Step) -> State:
    """A root or an inverse, or both, written as a power."""
    state, exponent = _unscaled(step), step.node.inputs[1]
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
    return _raised(state, number)


def _raised(state: State, exponent: float) -> State:
    """The value raised to 0.5, -0.5 or -1."""
    raised = state.power * exponent
    if abs(raised) not in (1, 2):
        raise Refusal("takes the root of a root", expected="the mean square")
    if exponent < 0 and state.factor.number < 0 and state.power > 0 and not state.least:
        # the inverse of 0 is infinite with the zero's sign, and 0 - v has another one than -v
        raise Refusal("is the inverse of a negative value that may be zero", expected="an epsilon, or a positive value")
    stage = Stage.RMS if abs(raised) == 1 else state.stage
    return state.moved(stage=stage, power=int(raised), factor=state.factor**exponent)


def cast(step: Step) -> State:
    """A Cast of the statistic to another float type."""
    dtype = step.facts.dtype(step.output)
    if step.index != 0 or dtype is None or dtype not in FLOAT_TYPES:
        raise Refusal("casts the statistic to something that is not a float")
    return step.state.moved(casts=(*step.state.casts, (dtype, step.state.power)))


ALTERNATIVES = (
    Alternative("Mul(s,c)", STATISTIC, ("Mul",), times_constant),
    Alternative("Div(s,c)", STATISTIC, ("Div",), divided_by_constant),
    Alternative("Add eps", STATISTIC, ("Add", "Sum"), plus_epsilon),
    Alternative("Sub -eps", STATISTIC, ("Sub",), minus_negative_epsilon),
    Alternative("Neg", STATISTIC, ("Neg",), negated),
    Alternative("Abs", STATISTIC, ("Abs",), absolute),
    Alternative("Max eps", STATISTIC, ("Max",), at_least),
    Alternative("Min eps", STATISTIC, ("Min",), at_most),
    Alternative("Clip", STATISTIC, ("Clip",), clipped),
    Alternative("Sqrt", STATISTIC, ("Sqrt",), root),
    Alternative("Reciprocal", STATISTIC, ("Reciprocal",), inverse),
    Alternative("Div(c,.)", STATISTIC, ("Div",), divisor_of_constant),
    Alternative("Pow", STATISTIC, ("Pow",), power),
    Alternative("Cast(s)", STATISTIC, ("Cast", "CastLike"), cast),
)
"""In the order in which they are tried."""
