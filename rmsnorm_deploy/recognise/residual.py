"""The residual: the addition in front of a norm that an operator takes in."""

from __future__ import annotations

import dataclasses

from rmsnorm_deploy.op import Op
from rmsnorm_deploy.recognise.facts import Facts, is_op
from rmsnorm_deploy.recognise.match import Match


def with_residual(facts: Facts, match: Match) -> Match:
    """The match with the addition in front of it taken in, where AddRMSNorm has what it needs.

    That is an RMSNorm of a sum of two values of one shape, in the operator's type.
    """
    if match.parameters.op is not Op.RMS_NORM or match.cast_x:
        return match
    add, end = match.x.producer(), match.output.producer()
    if add is None or end is None or add.graph is not end.graph:
        return match
    if not is_op(add, "Add", "Sum") or len(add.inputs) != 2:
        return match
    left, right = add.inputs
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
        nodes=(add, *match.nodes),
        spelling="Add > " + match.spelling,
        plain=match,
    )
