"""One norm while a form writes it: names, casts, constants and the nodes so far."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from rmsnorm_deploy.model.graphs import opset_in
from rmsnorm_deploy.recognise.match import Match, Quantised

METADATA = "rmsnorm_deploy."
"""Prefix of what we write into metadata."""

FLOAT, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE
SIXTEEN_BIT = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

Attributes = Mapping[str, int | float | list[int]]

_MOST_FEATURES = 2**17
"""A scale is written for each feature up to so many; a file may declare a dimension of 2^62."""
_NORM = "_rmsnorm"
"""The end of the name of every node that is a norm."""
_WRITTEN = re.compile(rf"{_NORM}(_\d+)?$")
"""The same, with the number that tells it from others of its name."""


@dataclasses.dataclass(frozen=True)
class Emission:
    """The nodes that replace one norm.

    Attributes:
        nodes: in topological order; the last one gives ``y``.
        norm: the one among them that is the norm.
        y: replaces ``Match.output``.
        sum: replaces ``Match.sum``; None without a visible sum.
        quantised: replace each of ``Match.quantised.outputs``; empty where the form does not quantise.
    """

    nodes: tuple[ir.Node, ...]
    norm: ir.Node
    y: ir.Value
    sum: ir.Value | None
    quantised: tuple[ir.Value, ...] = ()


class Draft:
    """What all forms need while they write one norm.

    Attributes:
        dtype: element type of X and Y.
        scale_type: element type of the scale as it is written.
        unique: gives a name that the model does not use yet, from a wish.
        constant: gives a value that holds an array, from a name and the array; equal arrays are shared.
        imports: the versions of domains that the model imports.
    """

    def __init__(
        self,
        match: Match,
        unique: Callable[[str], str],
        constant: Callable[[str, ir.Tensor[Any]], ir.Value],
        imports: Mapping[str, int],
    ) -> None:
        self.dtype = ir.DataType(match.parameters.output_type)
        self.scale_type = match.scale_dtype
        self.unique = unique
        self.constant = constant
        self.imports = imports
        self._match = match
        name = match.end.name or match.output.name or "norm"
        # a norm that was written before keeps its name: its node goes, whatever it was
        self._own_name = name if _WRITTEN.search(name) and name == match.end.name else ""
        self._name = _WRITTEN.sub("", name) or "norm"
        self._nodes: list[ir.Node] = []

    @property
    def opset(self) -> int:
        """Of ai.onnx, as the nodes have to be written."""
        return opset_in(self.imports)

    def operands(self) -> tuple[ir.Value, ir.Value | None, ir.Value | None]:
        """x, residual and the sum, with the addition or the Cast in front of them written out where it has to be."""
        match = self._match
        x, residual, total = match.x, match.residual, None
        if match.add_outside:
            assert residual is not None
            x = total = self.arithmetic("Add", x, residual, "residual", like=match.x, dtype=self.dtype)
            residual = None
        if match.cast_x:
            x = self.cast(x, self.dtype, "cast")
        if match.grouping is not None and match.grouping.of_x:
            x = self._grouped(x, "groups")
        return x, residual, total

    def gate(self) -> ir.Value:
        """The gate, in groups where x is."""
        assert self._match.gate is not None
        return self._grouped(self._match.gate, "gate_groups")

    def like(self, value: ir.Value | None) -> ir.Value | None:
        """``value``, where the norm has its shape; None where it is in groups."""
        return value if self._match.grouping is None else None

    def turned_back(self, y: ir.Value) -> ir.Value:
        """Y as the model has it: no longer in groups."""
        grouping = self._match.grouping
        if grouping is None or grouping.back is None:
            return y
        y.name = self.unique(f"{self._name}_of_groups")
        return self._like_reshape(y, grouping.back, "whole")

    def _grouped(self, value: ir.Value, name: str) -> ir.Value:
        grouping = self._match.grouping
        return value if grouping is None else self._like_reshape(value, grouping.into, name)

    def _like_reshape(self, value: ir.Value, node: ir.Node, name: str) -> ir.Value:
        """``value`` reshaped as ``node`` reshapes another value."""
        shape = node.inputs[1]
        assert shape is not None
        attributes: Attributes = {n: a.value for n, a in node.attributes.items()}
        dtype = value.dtype or self.dtype
        result = self.node("Reshape", [value, shape], name, dtype=dtype, attributes=attributes)
        result.shape = node.outputs[0].shape
        return result

    def value(self, dtype: ir.DataType, like: ir.Value | None) -> ir.Value:
        """A new value without a name, of ``like``'s shape; None leaves the shape open."""
        return ir.Value(type=ir.TensorType(dtype), shape=None if like is None else like.shape)

    def node(
        self,
        op_type: str,
        inputs: list[ir.Value],
        name: str,
        *,
        dtype: ir.DataType,
        like: ir.Value | None = None,
        attributes: Attributes | None = None,
        parameter: str = "",
    ) -> ir.Value:
        """A standard node; returns its output. ``parameter``: the norm's, of which an attribute holds the value."""
        output = self.value(dtype, like)
        output.name = self.unique(f"{self._name}_{name}")
        reference = self._match.references.get(parameter)
        given = [_attribute(k, v, reference) for k, v in (attributes or {}).items()]
        node = ir.Node("", op_type, inputs, given, outputs=[output], name=self.unique(f"{output.name}_node"))
        self._nodes.append(node)
        return output

    def append(self, op_type: str, inputs: list[ir.Value], outputs: list[ir.Value]) -> None:
        """A standard node with these outputs."""
        name = self.unique(f"{self._name}_{op_type}")
        self._nodes.append(ir.Node("", op_type, inputs, outputs=outputs, name=name))

    def arithmetic(
        self, op_type: str, left: ir.Value, right: ir.Value, name: str, *, dtype: ir.DataType, like: ir.Value | None
    ) -> ir.Value:
        """A sum or product of two values of type ``dtype``.

        In bfloat16 it is computed in float32 and rounded, which gives the same number: onnxruntime has no such kernels
        on the CPU.
        """
        if dtype != ir.DataType.BFLOAT16:
            return self.node(op_type, [left, right], name, dtype=dtype, like=like)
        pair = [self.cast(left, FLOAT, f"{name}_left"), self.cast(right, FLOAT, f"{name}_right")]
        return self.cast(self.node(op_type, pair, f"{name}_wide", dtype=FLOAT, like=like), dtype, name)

    def cast(self, value: ir.Value, to: ir.DataType, name: str) -> ir.Value:
        """``value`` cast to ``to``."""
        return self.node("Cast", [value], name, like=value, dtype=to, attributes={"to": int(to)})

    def as_type(self, scale: ir.Value, to: ir.DataType) -> ir.Value:
        """The scale in the type ``to``."""
        if self.scale_type == to:
            return scale
        self.scale_type = to
        return self.cast(scale, to, "scale_cast")

    def sum_output(self) -> ir.Value:
        """The output that is x + residual; named even where nobody has seen the sum before."""
        total = self.value(self.dtype, self._match.sum or self._match.x)
        if self._match.sum is None:
            total.name = self.unique(f"{self._name}_sum")
        return total

    def narrowed(self, y: ir.Value) -> ir.Value:
        """The norm's output in the type of x: followed by a Cast where it has another type."""
        if y.dtype == self.dtype:
            return y
        y.name = self.unique(f"{self._name}_wide")
        return self.cast(y, self.dtype, "narrow")

    def scale(self) -> ir.Value:
        """The scale: ones where there is none, times the factor where there is one."""
        match = self._match
        if match.factor == 1.0:
            if match.scale is not None:
                return self._of_groups(self._with_features(match.scale))
            return self.ones(self.scale_type)
        # a factor is not rounded to 16 bits, nor is its product with a scale
        wide = DOUBLE if self.dtype == DOUBLE else FLOAT
        if match.scale is None:
            self.scale_type = wide
            return self.constant(f"{self._name}_scale", full(self._shape_of_one(), match.factor, wide))
        number, shape = number_in(match.scale), self._shape_of_one()
        if number is not None and shape:  # one number, written for each feature as :meth:`_with_features` does
            self.scale_type = wide
            product = number.astype(wide.numpy()) * wide.numpy().type(match.factor)
            return self.constant(f"{self._name}_scale", full(shape, product, wide))
        scale = self.as_type(self._with_features(match.scale), wide)
        factor = self.constant("rmsnorm_factor", full([], match.factor, wide))
        return self.node("Mul", [scale, factor], "scale", like=scale, dtype=wide)

    def _of_groups(self, scale: ir.Value) -> ir.Value:
        grouping = self._match.grouping
        if grouping is None or grouping.scale is None:
            return scale
        shape = self.constant("rmsnorm_groups", ir.Tensor(np.array(grouping.scale, np.int64)))
        return self.node("Reshape", [scale, shape], "scale_groups", dtype=self.scale_type)

    def ones(self, dtype: ir.DataType) -> ir.Value:
        """A scale of type ``dtype`` that changes nothing."""
        return self.constant("rmsnorm_ones", full(self._shape_of_one(), 1.0, dtype))

    def _with_features(self, scale: ir.Value) -> ir.Value:
        """The scale; one number is written for each feature instead, as a constant or by an Expand where it is none."""
        number, shape = number_in(scale), self._shape_of_one()
        if not shape:
            return scale
        if number is not None and ir.DataType.from_numpy(number.dtype) == self.scale_type:
            return self.constant(f"{self._name}_scale", ir.Tensor(np.full(shape, number), dtype=self.scale_type))
        # onnxruntime has no Expand of bfloat16 on the CPU, nor bodies that its optimizer could take for a norm
        if self._match.scale_rank != 0 or self.scale_type == ir.DataType.BFLOAT16:
            return scale
        sizes = self.constant(f"{self._name}_scale_shape", ir.Tensor(np.array(shape, np.int64)))
        features = self.node("Expand", [scale, sizes], "scale_features", dtype=self.scale_type)
        features.shape = ir.Shape(shape)
        return features

    def bias(self) -> ir.Value:
        """The bias, in the type that the scale is written in: the neutral one where there is none."""
        bias = self._match.bias
        if bias is None:
            # -0.0 is the number that changes nothing when added, not even the sign of a zero
            return self.constant("rmsnorm_no_bias", full([], -0.0, self.scale_type))
        return bias if self._match.scale_dtype == self.scale_type else self.cast(bias, self.scale_type, "bias_cast")

    def zero_point(self, quantised: Quantised) -> ir.Value:
        """The given zero point, or a constant that is none."""
        if quantised.zero_point is not None:
            return quantised.zero_point
        kind = quantised.dtype
        zero = ir.Tensor(np.zeros([], kind.numpy()), dtype=kind)
        return self.constant(f"rmsnorm_no_zero_point_{kind.name.lower()}", zero)

    def quantised_outputs(self, quantised: Quantised) -> tuple[ir.Value, ...]:
        """What is made of the norm's result: its values in 8 bits and, where they are not given, scale and zero point.

        The last two have names, whether anybody reads them or not.
        """
        values = self.value(quantised.dtype, self._match.output)
        if quantised.scale is not None:
            return (values,)
        one = ir.Shape([])
        scale = ir.Value(type=ir.TensorType(FLOAT), shape=one, name=self.unique(f"{self._name}_y_scale"))
        kind = ir.TensorType(quantised.dtype)
        point = ir.Value(type=kind, shape=one, name=self.unique(f"{self._name}_y_zero_point"))
        return values, scale, point

    def _shape_of_one(self) -> list[int]:
        """Of a scale that is one number: [d] behind the last axis; [d, 1, 1] for channels in front of two dimensions.

        It has no dimension where d is unknown, or larger than any model's. Such a scale is right, but onnxruntime's
        optimizer (1.32) fuses no norm with it, and removes one of float16 by half: "Invalid model. Node input ... is
        not an output of a previous node".
        """
        match, axes = self._match, self._match.parameters.axes
        if match.size is None or match.size > _MOST_FEATURES or len(axes) != 1 or (axes[0] >= 0 and match.rank is None):
            return []  # not [1], which onnxruntime 1.20 would fuse and then refuse
        behind = -axes[0] - 1 if axes[0] < 0 else (match.rank or 0) - axes[0] - 1
        return [match.size] + [1] * behind

    def norm(
        self, domain: str, op_type: str, inputs: list[ir.Value], attributes: Attributes, outputs: list[ir.Value]
    ) -> ir.Node:
        """The node that is the norm, named after the last node that it replaces, with its history as metadata."""
        held = [_attribute(k, v, self._match.references.get(k)) for k, v in attributes.items()]
        node = ir.Node(domain, op_type, inputs, held, outputs=outputs)
        self._nodes.append(node)
        return self._as_norm(node)

    def written(self, y: ir.Value, total: ir.Value | None) -> Emission:
        """All that was written, where the last node stands for the norm, whichever that is.

        Args:
            y: the norm's output, which the last node gives.
            total: x + residual, where there is a value of it.
        """
        return self.done(self._as_norm(self._nodes[-1]), y, total)

    def _as_norm(self, node: ir.Node) -> ir.Node:
        last = self._match.end
        history = {
            METADATA + "replaces": ",".join(n.name for n in self._match.nodes if n.name),
            METADATA + "spelling": self._match.spelling,
        }
        node.name = self._own_name or self.unique(f"{self._name}{_NORM}")
        node.doc_string = last.doc_string
        # one that was written before knows what it stands for
        node.metadata_props.update(
            {**history, **last.metadata_props} if self._own_name else {**last.metadata_props, **history}
        )
        return node

    def as_declared(self, made: Emission) -> Emission:
        """``made``, followed by a Cast where it ends in an output of the graph that is declared as another type.

        Such a model is invalid: its exporter thought that the norm has x's type, where the rule gives the scale's.
        """
        declared = self._match.output.dtype
        if self._match.quantised is not None and not self._match.quantised.keeps_y:
            return made
        if not self._match.output.is_graph_output() or declared in (None, ir.DataType.UNDEFINED, made.y.dtype):
            return made
        made.y.name = self.unique(f"{self._name}_own_type")
        y = self.cast(made.y, declared, "declared")
        return dataclasses.replace(made, nodes=tuple(self._nodes), y=y)

    def done(self, norm: ir.Node, y: ir.Value, total: ir.Value | None) -> Emission:
        """All that was written.

        Args:
            norm: the node that is the norm.
            y: its output, narrowed where that was needed.
            total: x + residual, where there is a value of it.
        """
        return Emission(tuple(self._nodes), norm, y, total if self._match.sum is not None else None)


def _attribute(name: str, value: int | float | list[int], reference: str | None = None) -> ir.Attr:
    if reference is not None:
        return ir.RefAttr(name, reference, ir.AttributeType.FLOAT)
    if isinstance(value, list):
        return ir.AttrInt64s(name, value)
    return ir.AttrFloat32(name, value) if isinstance(value, float) else ir.AttrInt64(name, value)


def number_in(value: ir.Value) -> NDArray[Any] | None:
    """The number that a value without dimensions always is, in its own type; None where that is not known."""
    tensor = value.const_value
    producer = value.producer()
    if producer is not None and producer.op_type == "Constant" and "value" in producer.attributes:
        attribute = producer.attributes["value"]
        tensor = None if attribute.is_ref() else attribute.value
    if tensor is None or value.is_graph_input() or isinstance(tensor, ir.ExternalTensor) or tuple(tensor.shape) != ():
        return None
    try:
        return np.asarray(tensor.numpy())
    except (ValueError, TypeError):  # data that do not fit the type
        return None


def full(shape: list[int], value: float, dtype: ir.DataType) -> ir.Tensor[Any]:
    """An array of one value."""
    return ir.Tensor(np.full(shape, value, dtype.numpy()), dtype=dtype)
