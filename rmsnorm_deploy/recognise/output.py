"""The output: what follows the normalised value and still belongs to the norm: Casts, constants, scale and bias.

A spelling is one function and its row in the table at the end, as in statistic.py.
"""

from __future__ import annotations

import onnx_ir as ir

from rmsnorm_deploy.op import FLOAT_TYPES
from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.factor import ONE, Factor
from rmsnorm_deploy.recognise.facts import Facts, is_op
from rmsnorm_deploy.recognise.match import Stage
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.state import State
from rmsnorm_deploy.recognise.step import PRODUCT, Alternative, Step

BELONGS = "rmsnorm_deploy.bias"
"""In the ``metadata_props`` of an Add: that it adds the bias of the norm in front of it, and is to be part of that."""


def cast(step: Step) -> State:
    """A Cast of the normalised value, which rounds it or widens it again."""
    dtype = step.facts.dtype(step.output)
    if step.index != 0 or dtype is None or dtype not in FLOAT_TYPES:
        raise Refusal("casts the norm to something that is not a float")
    return step.state.moved(roundings=(*step.state.roundings, dtype))


def times_constant(step: Step) -> State:
    """A constant that makes a norm of a multiple: sqrt(n) after an L2 norm."""
    return _completed(step, step.factor())


def divided_by_constant(step: Step) -> State:
    """The same, written as a division."""
    if step.index != 0:
        raise Refusal("divides by the norm")
    return _completed(step, ONE / step.factor())


def _completed(step: Step, constant: Factor) -> State:
    """The state after a product with ``constant``, which has to turn another factor into one of 1."""
    state, size = step.state, step.state.source.size
    if state.bias is not None:
        raise Refusal("is a constant factor behind the bias, which it would multiply, too")
    types = [step.facts.dtype(step.output) or ir.DataType.FLOAT]
    if state.factor.is_one(size, types) or not (state.factor * constant).is_one(size, types):
        raise Refusal("is a constant factor, which stays outside the norm")
    return state.moved(factor=ONE, roundings=_rounded(step, "factor"))


def times_scale(step: Step) -> State:
    """The scale."""
    state, facts = step.state, step.facts
    if state.scale is not None:
        raise Refusal("has a scale already")
    scale = step.other
    base = checks.strip(facts, scale)
    xs = (state.source.base, state.source.partial_base)
    if base.producer() in state.nodes or any(facts.same(base, x) for x in xs):
        raise Refusal("is multiplied by a value of its own chain", expected="a scale from elsewhere")
    assert state.x is not None
    roundings = _rounded(step, "scale")
    scale = _without_expand(facts, scale, state.x)
    checks.scale_broadcasts(facts, scale, state.x, state.source.axes)
    return state.moved(stage=Stage.OUTPUT, scale=scale, roundings=roundings)


def times_scale_in_einsum(step: Step) -> State:
    """The scale, by ``...i,i->...i``: each element times the one of the scale at its place, and nothing added up."""
    attribute, index = step.node.attributes.get("equation"), step.index
    if attribute is None or attribute.is_ref() or len(step.node.inputs) != 2:
        raise Refusal("is no product of two values", expected="Einsum of the norm and a scale")
    equation = str(attribute.value).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != 2 or not _is_product(terms[index], terms[1 - index], right):
        raise Refusal("does not multiply features by a scale", expected="'...i,i->...i'", found=equation)
    return times_scale(step)


def _is_product(term: str, scale: str, result: str) -> bool:
    """Whether the dimensions of the result are those of the one operand, and the last of them those of the scale."""
    letters = term.removeprefix("...")
    one_each = letters.isalpha() and len(set(letters)) == len(letters)
    return term == result and one_each and bool(scale) and letters.endswith(scale)


def _without_expand(facts: Facts, scale: ir.Value, x: ir.Value) -> ir.Value:
    """The scale before an Expand that does no more than broadcasting does."""
    node = checks.strip(facts, scale, casts=False).producer()
    if not is_op(node, "Expand") or node is None or node.inputs[0] is None:
        return scale
    idle = facts.has_shape_of(node.inputs[1], x) or facts.broadcasts_into(node.outputs[0], x)
    return node.inputs[0] if idle else scale


def plus_bias(step: Step) -> State:
    """The bias of a norm that needs GeneralRMSNorm anyway, or of one that was a LayerNorm, whose bias came with it."""
    state, facts = step.state, step.facts
    if not (state.needs_general or step.node.metadata_props.get(BELONGS)):
        raise Refusal("a bias alone stays an Add after the norm")
    if state.bias is not None:
        raise Refusal("has a bias already")
    bias = step.other
    if checks.strip(facts, bias).producer() in state.nodes or state.x is None:
        raise Refusal("adds a value of its own chain")
    if not facts.is_constant_expression(bias):
        raise Refusal("adds a value that is not a parameter: a residual, not a bias")
    checks.scale_broadcasts(facts, bias, state.x, state.source.axes)
    if state.scale is not None and facts.dtype(bias) != facts.dtype(state.scale):
        raise Refusal("bias and scale are of different types")
    return state.moved(stage=Stage.OUTPUT, bias=bias, roundings=_rounded(step, "bias"))


def _rounded(step: Step, mark: str = "") -> tuple[ir.DataType | str, ...]:
    """The roundings with that of this node, and what it applied."""
    dtype = step.facts.dtype(step.output)
    if dtype is None or dtype not in FLOAT_TYPES:
        raise Refusal(f"the type of '{step.output.name}' is unknown", expected="a float type")
    return (*step.state.roundings, *((mark,) if mark else ()), dtype)


ALTERNATIVES = (
    Alternative("Cast", PRODUCT, ("Cast", "CastLike"), cast),
    Alternative("Mul const", PRODUCT, ("Mul",), times_constant),
    Alternative("Div const", PRODUCT, ("Div",), divided_by_constant),
    Alternative("Mul(.,W)", frozenset({Stage.NORMALISED}), ("Mul",), times_scale),
    Alternative("Einsum(.,W)", frozenset({Stage.NORMALISED}), ("Einsum",), times_scale_in_einsum),
    Alternative("Add bias", PRODUCT, ("Add",), plus_bias),
)
"""In the order in which they are tried."""
