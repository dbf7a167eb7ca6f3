"""What is known about the values of a model: types, shapes, constants. Nothing here knows what a norm is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from rmsnorm_deploy.model.graphs import AI_ONNX
from rmsnorm_deploy.recognise import folding
from rmsnorm_deploy.recognise.inference import Dim, Inferred, Known, Shape, dim, read_value_info

Array = NDArray[Any]

_MAX_CONSTANT = 4096
"""Constants with more elements are weights: they are never read."""
_MAX_EXTERNAL_CONSTANT = 64
"""In an external file even small tensors cost a read; a parameter of a norm has a handful of elements."""
_MAX_DEPTH = 24
"""Longest chain of constant expressions that is followed."""


def is_op(node: ir.Node | None, *op_types: str) -> bool:
    """Whether ``node`` is one of these standard operators."""
    return node is not None and node.domain in AI_ONNX and node.op_type in op_types


def node_name(node: ir.Node) -> str:
    """The node's name, or that of its first output where it has none."""
    if node.name:
        return node.name
    return next((o.name for o in node.outputs if o.name), node.op_type)


class Facts:
    """Types, shapes and constants of every value of one model.

    The model is not changed.

    Args:
        model: the model.
        inferred: what shape inference says of it.
        declared: the value_info of the main graph, where ``model`` was made without it.
    """

    def __init__(self, model: ir.Model, inferred: Inferred, declared: Iterable[onnx.ValueInfoProto] = ()) -> None:
        self._graph = model.graph
        self._inferred = inferred
        self._declared = {info.name: info for info in declared}
        self._known: dict[ir.Value, Known] = {}
        self._constants: dict[ir.Value, Array | None] = {}
        self._expressions: dict[ir.Value, bool] = {}

    # -- types and shapes ---------------------------------------------------------------------------------------------

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """Element type, or None where it is unknown."""
        if value is None:
            return None
        if value not in self._known and value.const_value is None:
            declared, _ = self._in_file(value)
            if declared is not None:
                return declared  # what the shape may need is not asked for
        return self._of(value)[0]

    def correct(self, value: ir.Value, dtype: ir.DataType) -> None:
        """Take note that the element type of a value is another one than the file says."""
        self._known[value] = dtype, self._of(value)[1]

    def shape(self, value: ir.Value | None) -> Shape | None:
        """Dimensions, or None where even the rank is unknown."""
        return None if value is None else self._of(value)[1]

    def _of(self, value: ir.Value) -> Known:
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = self._look_up(value)
        return known

    def _look_up(self, value: ir.Value) -> Known:
        """What the tensor says, else the file, else inference."""
        if value.const_value is not None:
            tensor = value.const_value
            return tensor.dtype, tuple(int(d) for d in tensor.shape)  # type: ignore[arg-type]
        declared_type, declared = self._in_file(value)
        if declared_type is not None and declared is not None and all(isinstance(d, int) for d in declared):
            return declared_type, declared  # nothing is left to infer
        inferred_type, inferred = self._inferred.of(value)
        dtype = declared_type if declared_type is not None else inferred_type
        if declared is None or inferred is None or len(declared) != len(inferred):
            return dtype, declared if declared is not None else inferred
        # each of the two may know a dimension that the other does not
        pairs = zip(declared, inferred, strict=True)
        return dtype, tuple(i if d is None or (isinstance(i, int) and isinstance(d, str)) else d for d, i in pairs)

    def _in_file(self, value: ir.Value) -> Known:
        if self._declared and value.name in self._declared:
            producer = value.producer()
            if producer is not None and producer.graph is self._graph:
                return read_value_info(self._declared[value.name])
        dtype = None if value.dtype is ir.DataType.UNDEFINED else value.dtype
        return dtype, None if value.shape is None else tuple(dim(d) for d in value.shape)

    def rank(self, value: ir.Value | None) -> int | None:
        """Number of dimensions, or None."""
        shape = self.shape(value)
        return None if shape is None else len(shape)

    def same_shape(self, a: ir.Value | None, b: ir.Value | None) -> bool:
        """Whether both shapes are known and equal, dimension by dimension."""
        if a is b:
            return True
        left, right = self.shape(a), self.shape(b)
        return left is not None and left == right and None not in left

    def broadcasts_into(self, small: ir.Value, large: ir.Value) -> bool:
        """Whether ``small`` provably broadcasts into ``large`` without enlarging it."""
        inner, outer = self.shape(small), self.shape(large)
        if inner is None:
            return False
        if outer is None:
            return len(inner) == 0
        if len(inner) > len(outer):
            return False
        # rank 0 and 1 with one element broadcast into anything; so does a dimension of 1
        return all(d == 1 or (d is not None and d == o) for d, o in zip(inner[::-1], outer[::-1], strict=False))

    # -- constants ----------------------------------------------------------------------------------------------------

    def constant(self, value: ir.Value | None, depth: int = 0) -> Array | None:
        """The value of a small constant expression in its own type, or None.

        Followed are initializers that no caller can override, Constant nodes, and arithmetic on those. Never weights.
        """
        if value is None:
            return None
        if value not in self._constants:
            self._constants[value] = None  # guards against cycles in broken graphs
            self._constants[value] = self._evaluate(value, depth)
        return self._constants[value]

    def scalar(self, value: ir.Value | None) -> float | None:
        """A constant with one element, as a Python float; None for anything else."""
        found = self.constant(value)
        if found is None or found.size != 1 or found.dtype.kind in "OSUb":
            return None
        return float(found.reshape(-1)[0])

    def is_constant_expression(self, value: ir.Value | None, depth: int = 0) -> bool:
        """Whether the value is made of initializers and Constant nodes alone, however large."""
        if value is None or depth > _MAX_DEPTH:
            return False
        known = self._expressions.get(value)
        if known is None:
            known = self._expressions[value] = self._is_constant_expression(value, depth)
        return known

    def _is_constant_expression(self, value: ir.Value, depth: int) -> bool:
        if value.is_initializer():
            return True
        node = value.producer()
        if node is None:
            return False
        # nearly every value ends here, at what the model computes from its inputs
        if not all(i is None or self.is_constant_expression(i, depth + 1) for i in node.inputs):
            return False
        if not node.inputs and not is_op(node, "Constant"):
            return False
        if node.op_type.startswith("Random") or node.op_type in ("Bernoulli", "Multinomial"):
            return False
        return not any(isinstance(a, ir.Attr) and a.type in _GRAPH_TYPES for a in node.attributes.values())

    def _evaluate(self, value: ir.Value, depth: int) -> Array | None:
        if depth > _MAX_DEPTH:
            return None
        if value.is_initializer():
            return None if value.is_graph_input() else _small(value.const_value)
        node = value.producer()
        if node is None or node.domain not in AI_ONNX or node.graph is None:
            return None
        if node.op_type == "Constant":
            return folding.constant_node(node, _small)
        if node.op_type in ("Shape", "Size"):
            shape = self.shape(node.inputs[0])
            if shape is None or not all(isinstance(d, int) for d in shape):
                return None
            dims = np.array(shape, np.int64)
            if node.op_type == "Size":
                return np.array(dims.prod(), np.int64)
            start, end = int_attribute(node, "start", 0), int_attribute(node, "end", len(shape))
            return dims[start:end]
        arrays = []
        for i, argument in enumerate(node.inputs):
            if node.op_type == "CastLike" and i == 1:
                continue
            folded = self.constant(argument, depth + 1)
            if folded is None:
                return None
            arrays.append(folded)
        like = self.dtype(node.inputs[1]) if node.op_type == "CastLike" else None
        result = folding.fold(folding.Operands(node, arrays, like))
        return None if result is None or result.size > _MAX_CONSTANT else result

    # -- sizes --------------------------------------------------------------------------------------------------------

    def dimension(self, value: ir.Value | None, depth: int = 0) -> Dim:
        """The dimension that a scalar holds at run time, where it is taken from a Shape, or None."""
        if value is None or depth > _MAX_DEPTH:
            return None
        folded = self.constant(value)
        if folded is not None:
            number = float(folded.reshape(-1)[0]) if folded.size == 1 else math.nan
            return int(number) if number.is_integer() else None
        node = value.producer()
        if node is None:
            return None
        if is_op(node, "Cast", "CastLike", "Identity", "Squeeze", "Unsqueeze", "Reshape"):
            return self.dimension(node.inputs[0], depth + 1)
        if is_op(node, "Gather", "Slice"):
            dims = self.dimensions(node.inputs[0])
            at = self.scalar(node.inputs[1]) if len(node.inputs) > 1 else None
            if dims is None or at is None or not -len(dims) <= at < len(dims):
                return None
            if node.op_type == "Slice":
                end = self.scalar(node.inputs[2])
                if end is None or len(range(*slice(int(at), int(end)).indices(len(dims)))) != 1:
                    return None
            return dims[int(at)]
        dims = self.dimensions(value)
        return dims[0] if dims is not None and len(dims) == 1 else None

    def dimensions(self, value: ir.Value | None, depth: int = 0) -> Shape | None:
        """The list of dimensions that a 1-D integer value holds at run time, or None."""
        if value is None or depth > _MAX_DEPTH:
            return None
        folded = self.constant(value)
        if folded is not None and folded.ndim <= 1 and folded.dtype.kind in "iu":
            return tuple(int(d) for d in folded.reshape(-1))
        node = value.producer()
        if is_op(node, "Identity", "Cast"):
            assert node is not None
            return self.dimensions(node.inputs[0], depth + 1)
        if is_op(node, "Shape"):
            assert node is not None
            shape = self.shape(node.inputs[0])
            if shape is None:
                return None
            return shape[int_attribute(node, "start", 0) : int_attribute(node, "end", len(shape))]
        if is_op(node, "Concat"):
            assert node is not None
            parts = [self.dimension(i, depth + 1) for i in node.inputs]
            return tuple(parts)
        return None

    def has_shape_of(self, shape_value: ir.Value | None, target: ir.Value) -> bool:
        """Whether the shape held by ``shape_value`` broadcasts into ``target``'s, so that an Expand changes nothing."""
        node = None if shape_value is None else shape_value.producer()
        if is_op(node, "Shape") and node is not None and len(node.attributes) == 0 and node.inputs[0] is target:
            return True
        dims, shape = self.dimensions(shape_value), self.shape(target)
        if dims is None or shape is None or len(dims) > len(shape):
            return False
        return all(d == 1 or (d is not None and d == s) for d, s in zip(dims[::-1], shape[::-1], strict=False))


def int_attribute(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute, or its default where the node does not carry it."""
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref():
        return default
    return int(attribute.value)


_GRAPH_TYPES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _small(tensor: ir.TensorProtocol | None) -> Array | None:
    if tensor is None or tensor.dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return None
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor.numpy() if tensor.size <= _MAX_CONSTANT else None
    if tensor.size > _MAX_EXTERNAL_CONSTANT or not str(tensor.base_dir):
        return None  # a model without a path has no folder: the current one may hold another model's file
    try:
        return tensor.numpy()
    except (OSError, ValueError):  # not there, or not what the model says
        return None
