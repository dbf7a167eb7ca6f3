"""Norms that are one operator already: RMSNormalization, SimplifiedLayerNormalization and its residual form."""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from rmsnorm_deploy.model.graphs import AI_ONNX
from rmsnorm_deploy.op import FLOAT_TYPES, NormParameters, Op
from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.facts import Facts, int_attribute, is_op, node_name
from rmsnorm_deploy.recognise.match import Match, Miss, Site, Stage
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.state import Source, State

_STANDARD = {"RMSNormalization": 1e-5, "SimplifiedLayerNormalization": 1e-5}
"""Default epsilon of each operator."""
_CONTRIB = "com.microsoft"
_RESIDUAL = "SkipSimplifiedLayerNormalization"
_RESIDUAL_EPSILON = 1e-12

OPERATORS = frozenset((*_STANDARD, _RESIDUAL))
"""Operators that are a norm by themselves."""


def open_fused(facts: Facts, site: Site, node: ir.Node) -> State | Match | Miss | None:
    """What an already fused node stands for; None if ``node`` is not one.

    A state after the scale for the plain forms (a Cast may follow), a finished Match for the residual form.
    """
    try:
        if node.op_type in _STANDARD and node.domain in (*AI_ONNX, _CONTRIB):
            return _plain(facts, node)
        if node.op_type == _RESIDUAL and node.domain == _CONTRIB:
            return _residual(facts, site, node)
    except Refusal as refusal:
        return Miss(
            site, Stage.NORMALISED, refusal.reason, node_name(node), refusal.expected, refusal.found, refusal.hint
        )
    return None


def _epsilon(facts: Facts, node: ir.Node, default: float) -> float:
    attribute = facts.attribute(node, "epsilon")
    if attribute is None:
        return default
    if attribute.is_ref():
        raise Refusal("epsilon is an attribute of the function that holds it", expected="a constant epsilon")
    epsilon = float(attribute.value)
    if not 0.0 <= epsilon < math.inf:
        raise Refusal("epsilon is negative or not finite", expected="epsilon >= 0", found=f"{epsilon:g}")
    return epsilon


def _types(facts: Facts, node: ir.Node, scale: ir.Value | None) -> tuple[ir.DataType, ir.DataType]:
    """Types of x and scale; where one of them is unknown, what the operator's contract says."""
    x_type, scale_type = facts.dtype(node.inputs[0]), facts.dtype(scale)
    if node.op_type != "SimplifiedLayerNormalization":
        x_type, scale_type = x_type or scale_type, scale_type or x_type  # of one type, or its own body is not valid
    elif x_type is None and scale_type == ir.DataType.FLOAT:
        x_type = scale_type  # of 32 or 16 bits: as it is, once it is cast to float32
    if x_type not in FLOAT_TYPES or x_type is None or scale_type not in FLOAT_TYPES or scale_type is None:
        raise Refusal("the type of x or scale is unknown", expected="a float type")
    return x_type, scale_type


def _axes(facts: Facts, node: ir.Node, x: ir.Value) -> tuple[int, ...]:
    axis, rank = int_attribute(facts, node, "axis", -1), facts.rank(x)
    if rank is not None and not -rank <= axis < rank:
        raise Refusal(
            f"axis {axis} is outside the rank of its input", expected="an axis of x", found=f"an x of rank {rank}"
        )
    return checks.canonical_axes(range(axis, 0) if axis < 0 else range(axis, rank or axis + 1), rank)


def _scale_by_contract(facts: Facts, scale: ir.Value, x: ir.Value) -> None:
    """The operator's contract says that the scale never enlarges x: what is not known is taken from it."""
    inner, outer = facts.shape(scale), facts.shape(x)
    if inner is not None and outer is not None and checks.enlarges(inner, outer):
        raise Refusal(
            f"'{scale.name}' enlarges the normalised value, which the operator forbids",
            expected="a scale that broadcasts into x",
            found=f"shape {list(inner)} beside {list(outer)}",
        )


def _is_all_ones(facts: Facts, scale: ir.Value, x: ir.Value) -> bool:
    """Whether the scale is a ConstantOfShape of ones in x's shape."""
    node = checks.strip(facts, scale).producer()
    if not is_op(node, "ConstantOfShape") or node is None or not facts.has_shape_of(node.inputs[0], x):
        return False
    fill = facts.attribute(node, "value")
    return fill is not None and not fill.is_ref() and bool((fill.value.numpy() == 1).all())


def _no_other_outputs(node: ir.Node, allowed: tuple[int, ...]) -> None:
    for i, output in enumerate(node.outputs):
        if i not in allowed and (output.uses() or output.is_graph_output()):
            raise Refusal(f"its output {i} ('{output.name}') is used", expected="statistics that nobody reads")


def _plain(facts: Facts, node: ir.Node) -> State:
    x, scale = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    if x is None or scale is None:
        raise Refusal("has no scale")
    _no_other_outputs(node, (0,))
    x_type, scale_type = _types(facts, node, scale)
    if int_attribute(facts, node, "stash_type", 1) != 1:
        raise Refusal("has a stash_type other than float", expected="stash_type = 1")
    axes = _axes(facts, node, x)
    if _is_all_ones(facts, scale, x):
        scale = None  # exporters write a norm without scale so
    else:
        _scale_by_contract(facts, scale, x)
    double = ir.DataType.DOUBLE
    wide = double if x_type == double else ir.DataType.FLOAT
    roundings: tuple[ir.DataType | str, ...]
    if scale is None:
        roundings = (wide,) if scale_type == wide else (wide, scale_type)
    elif node.op_type == "RMSNormalization" and x_type == scale_type:
        # the operator's text: cast to x's type, then multiplied by the scale
        roundings = (wide, "scale", wide) if x_type == wide else (wide, x_type, "scale", x_type)
    else:
        # mixed types: exporters write the multiplication in float32, followed by a Cast; the output has scale's type
        roundings = (wide, "scale", wide) if scale_type == wide else (wide, "scale", wide, scale_type)
    return State(
        stage=Stage.OUTPUT,
        value=node.outputs[0],
        source=Source(x, x, axes, None),
        power=-1,
        attributes={"epsilon": _epsilon(facts, node, _STANDARD[node.op_type])},
        statistics=(wide,),
        x=x,
        scale=scale,
        roundings=roundings,
        nodes=(node,),
        path=(node.op_type,),
    )


def _residual(facts: Facts, site: Site, node: ir.Node) -> Match:
    inputs = [*node.inputs, None, None, None, None][:5]
    x, residual, scale, bias = inputs[:4]
    if x is None or residual is None or scale is None:
        raise Refusal("lacks an input")
    if bias is not None:
        raise Refusal("adds a bias to the sum before the norm", expected="no bias input", found=f"'{bias.name}'")
    _no_other_outputs(node, (0, 3))
    x_type, scale_dtype = _types(facts, node, scale)
    if x_type == ir.DataType.DOUBLE:
        raise Refusal("is of type float64", expected="float32, float16 or bfloat16")
    other = facts.dtype(residual)
    if other not in (None, x_type):
        raise Refusal(f"its skip is of type {other.name}", expected=x_type.name, found=other.name)
    if scale_dtype not in (x_type, ir.DataType.FLOAT):
        raise Refusal(
            f"its scale is of type {scale_dtype.name}", expected=f"{x_type.name} or FLOAT", found=scale_dtype.name
        )
    total = node.outputs[3] if len(node.outputs) > 3 else None
    parameters = NormParameters(
        op=Op.RMS_NORM, output_type=int(x_type), epsilon=_epsilon(facts, node, _RESIDUAL_EPSILON)
    )
    shape = facts.shape(x)
    plain = Match(
        site=site,
        parameters=parameters,
        x=x,
        output=node.outputs[0],
        scale=scale,
        scale_dtype=scale_dtype,
        scale_rank=facts.rank(scale),
        residual=residual,
        sum=total,
        size=shape[-1] if shape and isinstance(shape[-1], int) else None,
        rank=None if shape is None else len(shape),
        nodes=(node,),
        spelling=node.op_type,
        add_outside=True,  # one node did both: the addition has to be written out
    )
    if not facts.same_shape(x, residual):
        return plain
    parameters = dataclasses.replace(parameters, op=Op.ADD_RMS_NORM)
    return dataclasses.replace(plain, parameters=parameters, add_outside=False, plain=plain)
