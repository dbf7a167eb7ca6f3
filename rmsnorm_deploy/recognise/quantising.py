"""What quantises a norm: QuantizeLinear or DynamicQuantizeLinear behind it, which an operator takes in."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from rmsnorm_deploy.model.graphs import AI_ONNX
from rmsnorm_deploy.op import FLOAT_TYPES
from rmsnorm_deploy.op.dtypes import QUANTISED_TYPES
from rmsnorm_deploy.recognise.facts import Facts, int_attribute
from rmsnorm_deploy.recognise.match import Match, Quantised
from rmsnorm_deploy.recognise.refusal import Refusal

FLOAT = ir.DataType.FLOAT
_CONTRIB = "com.microsoft"
_ON_CPUS = "onnxruntime has DynamicQuantizeLinear for CPUs only, and this operator likewise"


def with_quantising(facts: Facts, match: Match) -> Match:
    """The match with what quantises its result taken in, where that is all in 8 bits by one scale.

    Several nodes that quantise alike become one. What else reads the result goes on reading it.
    """
    found: list[tuple[ir.Node, Quantised]] = []
    for node, index in match.output.uses():
        if index != 0 or node.graph is not match.end.graph or node.domain not in (*AI_ONNX, _CONTRIB):
            continue
        try:
            quantised = _quantised(facts, match, node)
        except Refusal:  # an attribute of the function around it, which each call gives
            continue
        if quantised is not None:
            found.append((node, quantised))
    if not found:
        return match
    place = {node: i for i, node in enumerate(match.end.graph or ())}
    found.sort(key=lambda f: place.get(f[0], 0))
    groups = [[other for other in found if _alike(facts, one[1], other[1])] for one in found]
    group = max(groups, key=len)
    # of two outputs of the graph, one value can be only one
    group = [group[0], *(g for g in group[1:] if not any(o.is_graph_output() for o in g[0].outputs))]
    nodes, first = tuple(node for node, _ in group), group[0][1]
    op = match.parameters.op.quantised(dynamic=first.scale is None)
    if op is None:
        return match
    readers = {node for node, _ in match.output.uses()}
    quantised = dataclasses.replace(
        first,
        outputs=tuple(tuple(node.outputs) for node in nodes),
        keeps_y=match.output.is_graph_output() or bool(readers.difference(nodes)),
    )
    return dataclasses.replace(
        match,
        parameters=dataclasses.replace(match.parameters, op=op, precision=int(first.precision)),
        nodes=(*match.nodes, *nodes),
        spelling=f"{match.spelling} > {nodes[0].op_type}",
        notes=match.notes if first.scale is not None else (*match.notes, _ON_CPUS),
        quantised=quantised,
        plain=match,
    )


def _quantised(facts: Facts, match: Match, node: ir.Node) -> Quantised | None:
    """What ``node`` makes of the norm's result; None where no operator of ours does that."""
    p = match.parameters
    if p.op.quantises or p.stash_type != int(FLOAT) or p.axes[-1] != -1 or match.general_because:
        return None
    if node.op_type == "DynamicQuantizeLinear" and node.domain in AI_ONNX:
        return Quantised() if p.output_type == int(FLOAT) and len(node.outputs) == 3 else None
    if node.op_type != "QuantizeLinear" or len(node.inputs) < 2 or int_attribute(facts, node, "block_size", 0):
        return None
    scale, zero_point = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    kind = facts.dtype(zero_point)
    if zero_point is None:
        kind = ir.DataType(int_attribute(facts, node, "output_dtype", 0) or int(ir.DataType.UINT8))
    if scale is None or kind is None or int(kind) not in QUANTISED_TYPES:
        return None
    # what is calculated of the norm's result cannot go into the norm
    if not all(_is_given(facts, v) for v in (scale, zero_point) if v is not None):
        return None
    if kind == ir.DataType.FLOAT8E4M3FN and not (_is_zero(facts, zero_point) and _saturates(facts, node)):
        return None
    own, by = ir.DataType(p.output_type), facts.dtype(scale)
    if by not in (own, FLOAT) or int(by) not in FLOAT_TYPES:
        return None
    # onnxruntime's own operator divides in float32; that of ai.onnx in the type of the scale
    default = FLOAT if node.domain == _CONTRIB else by
    precision = ir.DataType(int_attribute(facts, node, "precision", 0) or int(default))
    if precision not in (FLOAT, by):
        return None
    return Quantised(scale=scale, scale_dtype=by, zero_point=zero_point, dtype=kind, precision=precision)


def _is_given(facts: Facts, value: ir.Value) -> bool:
    """Whether ``value`` is one number that depends on nothing that a node calculates of inputs."""
    shape = facts.shape(value)
    is_one = shape is not None and all(d == 1 for d in shape) and len(shape) <= 1
    return is_one and (value.producer() is None or facts.is_constant_expression(value))


def _is_zero(facts: Facts, value: ir.Value | None) -> bool:
    constant = facts.constant(value)
    return value is None or (constant is not None and not np.asarray(constant).astype(np.float32).any())


def _saturates(facts: Facts, node: ir.Node) -> bool:
    return int_attribute(facts, node, "saturate", 1) == 1


def _alike(facts: Facts, a: Quantised, b: Quantised) -> bool:
    if (a.scale is None) != (b.scale is None) or (a.dtype, a.precision, a.scale_dtype) != (
        b.dtype,
        b.precision,
        b.scale_dtype,
    ):
        return False
    if a.scale is None:
        return True
    zeros = _is_zero(facts, a.zero_point) and _is_zero(facts, b.zero_point)
    return facts.same(a.scale, b.scale) and (zeros or facts.same(a.zero_point, b.zero_point))
