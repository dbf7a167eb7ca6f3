"""What is known about the values of a model: types, shapes, constants. Nothing here knows what a norm is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from rmsnorm_deploy.op import DOMAIN

Array = NDArray[Any]
Dim = int | str | None
"""A dimension: its size, the symbol it is known by, or None."""
Shape = tuple[Dim, ...]

_MAX_CONSTANT = 4096
"""Constants with more elements are weights: they are never read."""
_MAX_EXTERNAL_CONSTANT = 64
"""In an external file even small tensors cost a read; a parameter of a norm has a handful of elements."""
_MAX_DEPTH = 24
"""Longest chain of constant expressions that is followed."""

AI_ONNX = ("", "ai.onnx")


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

    Shapes come from the file and from onnx's shape inference, which runs on a copy without weights; the model itself
    is not touched.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))
        self._inferred: dict[ir.Value, tuple[ir.DataType | None, Shape | None]] = {}
        self._constants: dict[ir.Value, Array | None] = {}
        _Inference(model, self._inferred).run()

    # -- types and shapes ---------------------------------------------------------------------------------------------

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """Element type, or None where it is unknown."""
        if value is None:
            return None
        if value.dtype is not None and value.dtype != ir.DataType.UNDEFINED:
            return value.dtype
        if value.const_value is not None:
            return value.const_value.dtype
        return self._inferred.get(value, (None, None))[0]

    def shape(self, value: ir.Value | None) -> Shape | None:
        """Dimensions, or None where even the rank is unknown."""
        if value is None:
            return None
        if value.const_value is not None:
            return tuple(int(d) for d in value.const_value.shape)  # type: ignore[arg-type]
        declared = None if value.shape is None else tuple(_dim(d) for d in value.shape)
        inferred = self._inferred.get(value, (None, None))[1]
        if declared is None or inferred is None or len(declared) != len(inferred):
            return declared if declared is not None else inferred
        # each of the two may know a dimension that the other does not
        return tuple(i if d is None or (isinstance(i, int) and isinstance(d, str)) else d for d, i in zip(declared, inferred, strict=True))

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
        if value.is_initializer():
            return True
        node = value.producer()
        if node is None or any(isinstance(a, ir.Attr) and a.type in _GRAPH_TYPES for a in node.attributes.values()):
            return False
        if node.op_type.startswith("Random") or node.op_type in ("Bernoulli", "Multinomial"):
            return False
        return is_op(node, "Constant") or (
            bool(node.inputs) and all(i is None or self.is_constant_expression(i, depth + 1) for i in node.inputs)
        )

    def _evaluate(self, value: ir.Value, depth: int) -> Array | None:
        if depth > _MAX_DEPTH:
            return None
        if value.is_initializer():
            return None if value.is_graph_input() else _small(value.const_value)
        node = value.producer()
        if node is None or node.domain not in AI_ONNX or node.graph is None:
            return None
        if node.op_type == "Constant":
            return _constant_node(node)
        if node.op_type in ("Shape", "Size"):
            shape = self.shape(node.inputs[0])
            if shape is None or not all(isinstance(d, int) for d in shape):
                return None
            dims = np.array(shape, np.int64)
            if node.op_type == "Size":
                return np.array(dims.prod(), np.int64)
            start, end = int_attribute(node, "start", 0), int_attribute(node, "end", len(shape))
            return dims[start:end]
        evaluate = _FOLD.get(node.op_type)
        if evaluate is None:
            return None
        arguments = []
        for i, argument in enumerate(node.inputs):
            if node.op_type == "CastLike" and i == 1:
                continue
            folded = self.constant(argument, depth + 1)
            if folded is None:
                return None
            arguments.append(folded)
        try:
            with np.errstate(all="ignore"):
                result = evaluate(self, node, arguments)
        except (ValueError, IndexError, TypeError, KeyError):
            return None
        return None if result is None or result.size > _MAX_CONSTANT else result

    # -- sizes --------------------------------------------------------------------------------------------------------

    def dimension(self, value: ir.Value | None, depth: int = 0) -> Dim:
        """The dimension that a scalar holds at run time, where it is taken from a Shape: a number, a symbol, or None."""
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


def _dim(dim: int | ir.SymbolicDim) -> Dim:
    return dim if isinstance(dim, int) else dim.value


def _small(tensor: ir.TensorProtocol | None) -> Array | None:
    if tensor is None or tensor.dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return None
    limit = _MAX_EXTERNAL_CONSTANT if isinstance(tensor, ir.ExternalTensor) else _MAX_CONSTANT
    return tensor.numpy() if tensor.size <= limit else None


def _constant_node(node: ir.Node) -> Array | None:
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            return None
        if name == "value":
            return _small(attribute.value)
        if name in ("value_float", "value_floats"):
            return np.array(attribute.value, np.float32)
        if name in ("value_int", "value_ints"):
            return np.array(attribute.value, np.int64)
    return None


_Fold = Callable[[Facts, ir.Node, list[Array]], "Array | None"]


def _cast(facts: Facts, node: ir.Node, inputs: list[Array]) -> Array | None:
    to = node.attributes["to"]
    return None if to.is_ref() else inputs[0].astype(ir.DataType(int(to.value)).numpy())


def _cast_like(facts: Facts, node: ir.Node, inputs: list[Array]) -> Array | None:
    dtype = facts.dtype(node.inputs[1])
    return None if dtype is None else inputs[0].astype(dtype.numpy())


def _axes_then(change: Callable[[Array, tuple[int, ...]], Array]) -> _Fold:
    def fold(facts: Facts, node: ir.Node, inputs: list[Array]) -> Array | None:
        axes = inputs[1] if len(inputs) > 1 else node.attributes["axes"].value
        return change(inputs[0], tuple(int(a) for a in np.reshape(axes, -1)))

    return fold


def _slice(facts: Facts, node: ir.Node, inputs: list[Array]) -> Array | None:
    if len(inputs) < 3 or inputs[0].ndim != 1:
        return None
    step = int(inputs[4].reshape(-1)[0]) if len(inputs) > 4 else 1
    return inputs[0][int(inputs[1].reshape(-1)[0]) : int(inputs[2].reshape(-1)[0]) : step]


def _plain(function: Callable[..., Array]) -> _Fold:
    """Arithmetic in the operands' own type, as the graph would do it."""

    def fold(facts: Facts, node: ir.Node, inputs: list[Array]) -> Array | None:
        return np.asarray(function(*inputs)).astype(inputs[0].dtype)

    return fold


def _div(a: Array, b: Array) -> Array:
    return a // b if a.dtype.kind in "iu" else a / b


_FOLD: dict[str, _Fold] = {
    "Identity": lambda f, n, i: i[0],
    "Cast": _cast,
    "CastLike": _cast_like,
    "Neg": _plain(np.negative),
    "Abs": _plain(np.abs),
    "Sqrt": _plain(np.sqrt),
    "Reciprocal": _plain(lambda a: 1 / a),
    "Add": _plain(np.add),
    "Sub": _plain(np.subtract),
    "Mul": _plain(np.multiply),
    "Div": _plain(_div),
    "Pow": _plain(np.power),
    "Max": _plain(lambda *a: np.max(np.broadcast_arrays(*a), axis=0)),
    "Min": _plain(lambda *a: np.min(np.broadcast_arrays(*a), axis=0)),
    "Reshape": lambda f, n, i: i[0].reshape([int(d) for d in i[1]]),
    "Unsqueeze": _axes_then(lambda v, axes: np.expand_dims(v, axes)),
    "Squeeze": _axes_then(lambda v, axes: np.squeeze(v, axes)),
    "Expand": lambda f, n, i: i[0] * np.ones([int(d) for d in i[1]], i[0].dtype),
    "Concat": lambda f, n, i: np.concatenate(i, axis=int_attribute(n, "axis", 0)),
    "Gather": lambda f, n, i: np.take(i[0], i[1], axis=int_attribute(n, "axis", 0)),
    "Slice": _slice,
    "ReduceProd": lambda f, n, i: np.asarray(i[0].prod()),
}


class _Inference:
    """Runs onnx's shape inference on a copy without weights and reads its results into a table."""

    def __init__(self, model: ir.Model, table: dict[ir.Value, tuple[ir.DataType | None, Shape | None]]) -> None:
        self.model = model
        self.table = table

    def run(self) -> None:
        skeleton = self.model.clone()
        for graph in _graphs(skeleton):
            for value in graph.initializers.values():
                _drop_weight(value)
        proto = ir.to_proto(skeleton)
        for function in [f for f in proto.functions if f.domain == DOMAIN]:
            proto.functions.remove(function)  # our own bodies carry nothing to recognise
        self._graph(self.model.graph, _infer(proto).graph)
        self._functions(proto)

    def _graph(self, graph: ir.Graph, proto: onnx.GraphProto) -> None:
        known = {v.name: v for v in [*proto.value_info, *proto.input, *proto.output]}
        for value in graph.inputs:
            self._record(value, known)
        self._nodes(graph, proto.node, known)

    def _nodes(self, nodes: Iterable[ir.Node], protos: Iterable[onnx.NodeProto], known: dict[str, Any]) -> None:
        for node, proto in zip(nodes, protos, strict=True):
            for value in node.outputs:
                self._record(value, known)
            inner = {a.name: a for a in proto.attribute}
            for name, attribute in node.attributes.items():
                if isinstance(attribute, ir.Attr) and attribute.type == ir.AttributeType.GRAPH:
                    self._graph(attribute.value, inner[name].g)

    def _record(self, value: ir.Value, known: dict[str, Any]) -> None:
        info = known.get(value.name or "")
        if info is None or not info.type.HasField("tensor_type"):
            return
        tensor = info.type.tensor_type
        dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
        shape: Shape | None = None
        if tensor.HasField("shape"):
            shape = tuple(
                d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in tensor.shape.dim
            )
        self.table[value] = (dtype, shape)

    def _functions(self, proto: onnx.ModelProto) -> None:
        """Types inside local functions, from their call sites where all of these agree."""
        bodies = {(f.domain, f.name, f.overload): f for f in proto.functions}
        for _ in range(len(bodies)):  # a function that calls another is reached in a later round
            changed = False
            for identifier, function in self.model.functions.items():
                body = bodies.get((function.domain, function.name, function.overload))
                if body is None:
                    continue
                calls = [n for n in self._all_nodes() if n.op_identifier() == identifier]
                if not calls or any(v in self.table for v in function.inputs):
                    continue
                inputs = [self._common(calls, i) for i in range(len(body.input))]
                if all(v is None for v in inputs):
                    continue
                changed = True
                graph = onnx.GraphProto(name=body.name, node=body.node)
                graph.output.extend(onnx.ValueInfoProto(name=n) for n in body.output)
                for name, value in zip(body.input, inputs, strict=True):
                    graph.input.append(_value_info(name, *(value or (None, None))))
                inferred = _infer(
                    onnx.ModelProto(
                        graph=graph,
                        ir_version=proto.ir_version,
                        opset_import=body.opset_import,
                        functions=proto.functions,
                    )
                )
                known = {v.name: v for v in [*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output]}
                for value_ in function.inputs:
                    self._record(value_, known)
                self._nodes(function, inferred.graph.node, known)
            if not changed:
                return

    def _all_nodes(self) -> Iterator[ir.Node]:
        yield from self.model.graph.all_nodes()
        for function in self.model.functions.values():
            yield from function.all_nodes()

    def _common(self, calls: list[ir.Node], index: int) -> tuple[ir.DataType | None, Shape | None] | None:
        seen = set()
        for call in calls:
            value = call.inputs[index] if index < len(call.inputs) else None
            if value is None:
                return None
            dtype = value.dtype or self.table.get(value, (None, None))[0]
            shape = (
                tuple(_dim(d) for d in value.shape) if value.shape is not None else self.table.get(value, (None, None))[1]
            )
            seen.add((dtype, shape))
        return seen.pop() if len(seen) == 1 else None


def _value_info(name: str, dtype: ir.DataType | None, shape: Shape | None) -> onnx.ValueInfoProto:
    if dtype is None:
        return onnx.ValueInfoProto(name=name)
    return onnx.helper.make_tensor_value_info(name, int(dtype), shape)


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    yield model.graph
    yield from model.graph.subgraphs()
    for function in model.functions.values():
        yield from function.subgraphs()


def _drop_weight(value: ir.Value) -> None:
    """Replace a large tensor of the copy by a reference that nobody follows."""
    tensor = value.const_value
    if tensor is None or isinstance(tensor, ir.ExternalTensor) or tensor.size <= _MAX_CONSTANT:
        return
    if tensor.dtype == ir.DataType.STRING:
        return
    value.const_value = ir.ExternalTensor(
        "weights", 0, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=tensor.name or value.name or ""
    )


def _infer(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Shape inference that gives what it can: a model that it rejects keeps the shapes of its file."""
    try:
        return onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except Exception:  # onnx raises half a dozen unrelated types here
        try:
            return onnx.shape_inference.infer_shapes(proto)
        except Exception:
            return proto
