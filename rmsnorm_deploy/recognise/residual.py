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
    addition = _addition(facts, match.x)
    if addition is None or end is None or any(node.graph is not end.graph for node in addition.nodes):
        return match
    left, right = addition.left, addition.right
    if not facts.same_shape(left, right):
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
        nodes=(*addition.nodes, *match.nodes),
        spelling="Add > " + match.spelling,
        plain=match,
    )


@dataclasses.dataclass(frozen=True)
class _Addition:
    """``left + right``, rounded to their type, which ``nodes`` compute."""

    left: ir.Value
    right: ir.Value
    nodes: tuple[ir.Node, ...]


def _addition(facts: Facts, total: ir.Value) -> _Addition | None:
    """The addition that ``total`` is, or None.

    Also one of 16-bit values that is done in float32 and rounded then: float32 has more than twice their digits, so
    that rounding twice is rounding once. Function bodies and runtimes without 16-bit additions write it so.
    """
    node = total.producer()
    nodes: tuple[ir.Node, ...] = ()
    if is_op(node, "Cast", "CastLike") and node is not None and node.inputs[0] is not None:
        if facts.dtype(total) not in _SIXTEEN_BIT or facts.dtype(node.inputs[0]) not in _WIDE:
            return None
        nodes, node = (node,), node.inputs[0].producer()
    if not is_op(node, "Add", "Sum") or node is None or len(node.inputs) != 2:
        return None
    left, right = node.inputs
    if left is None or right is None:
        return None
    if nodes:
        left, right = checks.strip(facts, left), checks.strip(facts, right)
        if facts.dtype(left) != facts.dtype(total) or facts.dtype(right) != facts.dtype(total):
            return None
    return _Addition(left, right, (node, *nodes))


_SIXTEEN_BIT = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
