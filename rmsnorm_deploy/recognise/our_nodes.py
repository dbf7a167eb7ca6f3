"""Norms that are one of our nodes already: what they mean, or why they mean nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from rmsnorm_deploy.op import FLOAT_TYPES, NormParameters, Op, following, op_named, version_of
from rmsnorm_deploy.op.dtypes import QUANTISED_TYPES
from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.facts import Facts, node_name
from rmsnorm_deploy.recognise.match import Match, Miss, Quantised, Site, Stage
from rmsnorm_deploy.recognise.scopes import Scope


def op_of(node: ir.Node) -> Op | None:
    """The operator that ``node`` may be, whatever prefix a tool has put before its name; None for any other node."""
    return op_named(node.domain, node.op_type, len(node.inputs), len(node.outputs))


def read_all(facts: Facts, graphs: Iterable[Scope], imports: Mapping[str, int]) -> tuple[list[Match], list[Miss]]:
    """Every node of ours in ``graphs``, and every one that means nothing, with the reason; both in graph order.

    Args:
        facts: what is known about the model.
        graphs: the graphs to look at.
        imports: the version that the model imports of each domain.
    """
    matches: list[Match] = []
    misses: list[Miss] = []
    for scope in graphs:
        for node in scope.nodes:
            found = read(facts, scope.name, node, imports)
            if isinstance(found, Match):
                matches.append(found)
            elif found is not None:
                misses.append(found)
    return matches, misses


def read(facts: Facts, scope: str, node: ir.Node, imports: Mapping[str, int]) -> Match | Miss | None:
    """The norm that a node of ours is, or why it is none; None for any other node.

    The types are those that the values have: where a converter of types left the node's attributes behind, the
    parameters follow X, as the library's kernels do (:func:`rmsnorm_deploy.op.following`).

    Args:
        facts: what is known about the model.
        scope: the name of the graph in which the node stands.
        node: the node.
        imports: the version that the model imports of each domain.

    Returns:
        A Match whose ``nodes`` is this one node. Its bias is None where it is the constant -0.0, which changes nothing.
        That of an AddRMSNorm has ``residual``, ``sum`` and, as ``plain``, the norm with the addition left outside.
    """
    op = op_of(node)
    if op is None:
        return None
    site = Site(node_name(node), node.op_type, scope)

    def refused(reason: str) -> Miss:
        return Miss(
            site,
            Stage.OUTPUT,
            reason,
            site.node,
            expected=f"a valid {op.value}",
            hint="fuse the original model again",
        )

    given = dict(zip(op.inputs, node.inputs, strict=False))
    missing = [name for name in op.inputs if given.get(name) is None]
    if missing or len(node.inputs) != len(op.inputs):
        found = f"it has no input {missing[0]}" if missing else f"it has {len(node.inputs)} inputs"
        return refused(f"{found}, and {op.value} has {len(op.inputs)}: {', '.join(op.inputs)}")
    if not node.outputs or len(node.outputs) > len(op.outputs):
        return refused(f"it has {len(node.outputs)} outputs, and {op.value} has {len(op.outputs)}")
    stated = {name: facts.attribute(node, name) for name in node.attributes}
    if unknown := [name for name, a in stated.items() if a is None or a.is_ref()]:
        return refused(f"{', '.join(unknown)} is an attribute of the function that holds it, and no call gives it")
    x, scale = given["X"], given["scale"]
    assert x is not None
    assert scale is not None
    x_type = facts.dtype(x)
    if x_type is not None and int(x_type) not in FLOAT_TYPES:
        return refused(f"X is of type {x_type.name}")
    try:
        values = {name: a.value for name, a in stated.items() if a is not None}
        meant = following(values, None if x_type is None else int(x_type))
        parameters = NormParameters.from_attributes(
            op, meant, version=version_of(imports, values), x_type=None if x_type is None else int(x_type)
        )
    except ValueError as error:
        return refused(str(error))
    bias = given.get("bias")
    if bias is not None and _is_neutral(facts, bias):
        bias = None
    made = dict(zip(op.outputs, node.outputs, strict=False))
    y, quantised = made.get("Y"), _quantised(facts, op, given, made, parameters)
    if y is None or not y.name:
        y = made.get("quantized", node.outputs[0])  # of the same shape
    if y.type is not None and not isinstance(y.type, ir.TensorType):
        return refused("its Y is said to be no tensor")
    if quantised is not None and int(quantised.dtype) not in QUANTISED_TYPES:
        return refused(f"its y_zero_point is of type {quantised.dtype.name}")
    shape = facts.shape(x)
    if shape is not None and any(not -len(shape) <= axis < len(shape) for axis in parameters.axes):
        return refused(f"its axes {list(parameters.axes)} are outside X, which has {len(shape)} dimensions")
    for name, value in given.items():
        larger = "" if name in ("X", "y_scale", "y_zero_point") else checks.enlarges(facts.shape(value), shape)
        if larger:
            return refused(f"its {name} has {larger}")
    residual = given.get("residual")
    if x_type is not None and residual is not None and facts.dtype(residual) not in (None, x_type):
        return refused(f"its residual is of another type than X, which is of type {x_type.name}")
    match = Match(
        site=site,
        parameters=parameters,
        x=x,
        output=y,
        scale=scale,
        scale_dtype=facts.dtype(scale) or ir.DataType(parameters.output_type),
        scale_rank=facts.rank(scale),
        bias=bias,
        gate=given.get("gate"),
        gate_dtype=facts.dtype(given.get("gate")),
        size=facts.size(x, parameters.axes),
        rank=None if shape is None else len(shape),
        nodes=(node,),
        spelling=op.value,
        references={a.name: a.ref_attr_name for a in node.attributes.values() if a.is_ref() and a.ref_attr_name},
        quantised=quantised,
    )
    if residual is None:
        return match
    match = dataclasses.replace(match, residual=residual, sum=made.get("sum"))
    if op is not Op.ADD_RMS_NORM:
        return match
    alone = dataclasses.replace(parameters, op=Op.RMS_NORM)
    return dataclasses.replace(match, plain=dataclasses.replace(match, parameters=alone, add_outside=True))


def _quantised(
    facts: Facts,
    op: Op,
    given: Mapping[str, ir.Value | None],
    made: Mapping[str, ir.Value],
    parameters: NormParameters,
) -> Quantised | None:
    """How a node of ours quantises; None where it does not."""
    if not op.quantises:
        return None
    y = made.get("Y")
    scale, zero_point = given.get("y_scale"), given.get("y_zero_point")
    names = ("quantized", "y_scale", "y_zero_point") if op.is_dynamic else ("quantized",)
    return Quantised(
        outputs=(tuple(made[name] for name in names if name in made),),
        scale=scale,
        scale_dtype=facts.dtype(scale) or ir.DataType.FLOAT,
        zero_point=zero_point,
        dtype=facts.dtype(zero_point) or (ir.DataType.UINT8 if op.is_dynamic else ir.DataType.UNDEFINED),
        precision=ir.DataType(parameters.precision),
        keeps_y=y is not None and bool(y.name) and bool(y.uses() or y.is_graph_output()),
    )


def _is_neutral(facts: Facts, bias: ir.Value) -> bool:
    constant = facts.constant(bias)
    return (
        constant is not None and constant.ndim == 0 and bool(constant == 0 and np.signbit(constant.astype(np.float32)))
    )
