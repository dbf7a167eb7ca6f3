"""The forms in which a norm can be written: from a Match to the nodes that stand for it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_deploy.op import DOMAIN, Op
from rmsnorm_deploy.recognise.match import Match

METADATA = "rmsnorm_deploy."
"""Prefix of what we write into metadata."""


class Form(str, enum.Enum):
    """What the fused norms are written as."""

    PLUGIN = "plugin"


@dataclasses.dataclass(frozen=True)
class Emission:
    """The nodes that replace one norm.

    Attributes:
        nodes: in topological order; the last one is the norm.
        y: replaces ``Match.output``.
        sum: replaces ``Match.sum``; None without a visible sum.
    """

    nodes: tuple[ir.Node, ...]
    y: ir.Value
    sum: ir.Value | None


class Emitter:
    """Writes norms in one form into one model.

    Args:
        unique: gives a name that the model does not use yet, from a wish.
        constant: gives a value of the model that holds an array, from a name and the array; equal arrays are shared.
    """

    def __init__(self, unique: Callable[[str], str], constant: Callable[[str, ir.Tensor[Any]], ir.Value]) -> None:
        self._unique = unique
        self._constant = constant

    def plugin(self, match: Match) -> Emission:
        """The norm as a node of our own domain."""
        parameters = match.parameters
        nodes: list[ir.Node] = []
        base = match.nodes[-1].name or match.output.name or "norm"
        x, residual = match.x, match.residual
        total: ir.Value | None = None
        if match.add_outside:
            assert residual is not None
            add = self._node(nodes, "Add", [x, residual], f"{base}_residual", like=match.x)
            total = x = add
            residual = None
        if match.cast_x:
            x = self._cast(nodes, x, parameters.output_type, f"{base}_cast")
        scale = self._scale(nodes, match, base)
        inputs = [x, scale]
        if parameters.op is Op.ADD_RMS_NORM:
            assert residual is not None
            inputs = [x, residual, scale]
        elif parameters.op is Op.GENERAL_RMS_NORM:
            bias = match.bias
            if bias is None:
                # -0.0 is the number that changes nothing when added, not even the sign of a zero
                bias = self._constant("rmsnorm_no_bias", _full([1], -0.0, self._type(scale, match)))
            inputs = [x, scale, bias]
        outputs = [ir.Value(type=ir.TensorType(ir.DataType(parameters.output_type)), shape=match.output.shape)]
        if parameters.op is Op.ADD_RMS_NORM:
            shape = match.sum.shape if match.sum is not None else match.x.shape
            outputs.append(ir.Value(type=ir.TensorType(ir.DataType(parameters.output_type)), shape=shape))
            total = outputs[1]
            if match.sum is None:
                total.name = self._unique(f"{base}_sum")  # every output has a name: onnxruntime 1.20 aborts without
        last = match.nodes[-1]
        norm = ir.Node(
            DOMAIN,
            parameters.op.value,
            inputs,
            [ir.convenience.convert_attribute(k, v) for k, v in parameters.to_attributes().items()],
            outputs=outputs,
            name=self._unique(f"{base}_rmsnorm"),
            doc_string=last.doc_string,
            metadata_props={
                **last.metadata_props,
                METADATA + "replaces": ",".join(n.name for n in match.nodes if n.name),
                METADATA + "spelling": match.spelling,
            },
        )
        nodes.append(norm)
        return Emission(tuple(nodes), outputs[0], total if match.sum is not None else None)

    def _node(self, nodes: list[ir.Node], op_type: str, inputs: list[ir.Value], name: str, like: ir.Value) -> ir.Value:
        output = ir.Value(name=self._unique(name), type=like.type, shape=like.shape)
        nodes.append(ir.Node("", op_type, inputs, outputs=[output], name=self._unique(f"{name}_node")))
        return output

    def _cast(self, nodes: list[ir.Node], value: ir.Value, to: int, name: str) -> ir.Value:
        output = ir.Value(name=self._unique(name), type=ir.TensorType(ir.DataType(to)), shape=value.shape)
        to_attribute = ir.AttrInt64("to", int(to))
        nodes.append(ir.Node("", "Cast", [value], [to_attribute], outputs=[output], name=self._unique(f"{name}_node")))
        return output

    def _type(self, value: ir.Value, match: Match) -> ir.DataType:
        return value.dtype or (value.const_value.dtype if value.const_value is not None else match.scale_dtype)

    def _scale(self, nodes: list[ir.Node], match: Match, base: str) -> ir.Value:
        """The scale as the operator takes it: ones where there is none, times the factor where there is one."""
        dtype = ir.DataType(match.parameters.output_type)
        if match.bias is not None and match.scale is None:
            dtype = self._type(match.bias, match)
        if match.scale is None:
            if match.factor != 1.0:
                wide = ir.DataType(match.parameters.stash_type) if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
                return self._constant(f"{base}_scale", _full([1], match.factor, wide))
            shape = [1] if match.size is None or len(match.parameters.axes) != 1 else [match.size]
            if shape != [1] and match.parameters.axes[0] != -1:
                behind = (
                    -match.parameters.axes[0] - 1
                    if match.parameters.axes[0] < 0
                    else (match.rank or 0) - match.parameters.axes[0] - 1
                )
                shape += [1] * behind
            return self._constant("rmsnorm_ones", _full(shape, 1.0, dtype))
        if match.factor == 1.0:
            return match.scale
        scale, scale_type = match.scale, match.scale_dtype
        if scale_type in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
            scale = self._cast(nodes, scale, int(ir.DataType.FLOAT), f"{base}_scale_float")
            scale_type = ir.DataType.FLOAT
        factor = self._constant("rmsnorm_factor", _full([], match.factor, scale_type))
        like = ir.Value(type=ir.TensorType(scale_type), shape=scale.shape)
        return self._node(nodes, "Mul", [scale, factor], f"{base}_scale", like=like)


def _full(shape: list[int], value: float, dtype: ir.DataType) -> ir.Tensor[Any]:
    return ir.Tensor(np.full(shape, value, dtype.numpy()), dtype=dtype)
