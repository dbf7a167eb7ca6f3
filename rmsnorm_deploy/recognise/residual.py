"""The residual: the addition in front of a norm that an operator takes in."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rmsnorm_deploy.op import Op
from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.facts import Facts, is_op
from rmsnorm_deploy.recognise.match import Match


def with_residual(facts: Facts, match: Match) -> Match:
    """The match with the addition in front of it taken in, where AddRMSNorm has what it needs.

    That is an RMSNorm of a sum of two values of one shape, in the operator's type.
    """
    if match.parameters.op is not Op.RMS_NORM or match.cast_x:
        return match
    end = match.output.producer()
    adds = _addition(match.x)
    if end is None or any(add.graph is not end.graph for add in adds) or not adds:
        return match
    left, right = (_narrow(facts, v, match.x) if len(adds) > 1 else v for v in adds[0].inputs)
    if left is None or right is None or not facts.same_shape(left, right):
        return match
    if any(facts.is_constant_expression(v) for v in (left, right)):
        return match
    # a scale computed at run time might depend on the sum, and the operator would then wait for itself
    scale = match.scale
    if scale is not None and scale.producer() is not None and not facts.is_constant_expression(scale):
        return match
    parameters = dataclasses.replace(match.parameters, op=Op.ADD_RMS_NORM)
    return dataclasses.replace(
        match,
        parameters=parameters,
        x=left,
        residual=right,
        sum=match.x,
        nodes=(*adds, *match.nodes),
        spelling=" > ".join(add.op_type for add in adds) + " > " + match.spelling,
        plain=match,
    )


def _addition(value: ir.Value) -> list[ir.Node]:
    """The addition that gives ``value``, and the Cast behind it where it is computed in a wider type; else nothing."""
    last = value.producer()
    if last is None:
        return []
    before = last.inputs[0] if is_op(last, "Cast", "CastLike") else None
    add = last if before is None else before.producer()
    if add is None or not is_op(add, "Add", "Sum") or len(add.inputs) != 2:
        return []
    return [add] if add is last else [add, last]


def _narrow(facts: Facts, value: ir.Value | None, total: ir.Value) -> ir.Value | None:
    """The operand of a wider addition in the type of the sum, which is exact where it is a Cast that only widens.

    The sum of two numbers is then rounded as if it were computed in that type: float32 has more than twice the digits
    of 16 bits, and float64 of float32.
    """
    cast = None if value is None else value.producer()
    if cast is None or not is_op(cast, "Cast", "CastLike") or not checks.is_exact_cast(facts, cast):
        return None
    own = cast.inputs[0]
    return own if facts.dtype(own) == facts.dtype(total) else None
