"""Types and shapes that a model's file does not spell out, from onnx's shape inference on a copy without weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx
import onnx_ir as ir

from rmsnorm_deploy.op import DOMAIN

Dim = int | str | None
"""A dimension: its size, the symbol it is known by, or None."""
Shape = tuple[Dim, ...]
Known = tuple[ir.DataType | None, Shape | None]

_WEIGHT = 4096
"""Tensors with more elements are left out of the copy."""


def infer(model: ir.Model) -> dict[ir.Value, Known]:
    """Type and shape of every value for which they could be inferred. ``model`` is not changed."""
    table: dict[ir.Value, Known] = {}
    _Inference(model, table).run()
    return table


def dim(dim: int | ir.SymbolicDim) -> Dim:
    """A dimension of an ``onnx_ir.Shape`` as we write it."""
    return dim if isinstance(dim, int) else dim.value


class _Inference:
    """Runs the inference and reads its results into a table."""

    def __init__(self, model: ir.Model, table: dict[ir.Value, Known]) -> None:
        self.model = model
        self.table = table
        self.same: dict[str, str] = {}

    def run(self) -> None:
        skeleton = self.model.clone()
        for graph in _graphs(skeleton):
            for value in graph.initializers.values():
                _drop_weight(value)
        proto = ir.to_proto(skeleton)
        _stand_in(proto.graph, self.same)
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
        name = value.name or ""
        info = known.get(name) or known.get(self.same.get(name, ""))
        if info is None or not info.type.HasField("tensor_type"):
            return
        tensor = info.type.tensor_type
        dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
        shape: Shape | None = None
        if tensor.HasField("shape"):
            shape = tuple(d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in tensor.shape.dim)
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

    def _common(self, calls: list[ir.Node], index: int) -> Known | None:
        """What all call sites agree on, dimension by dimension."""
        common: Known | None = None
        for call in calls:
            value = call.inputs[index] if index < len(call.inputs) else None
            if value is None:
                return None
            dtype, shape = self.table.get(value, (None, None))
            if value.const_value is not None:
                tensor = value.const_value
                dtype, shape = tensor.dtype, tuple(int(d) for d in tensor.shape)  # type: ignore[arg-type]
            dtype = value.dtype or dtype
            shape = tuple(dim(d) for d in value.shape) if value.shape is not None else shape
            common = (dtype, shape) if common is None else _merge(common, (dtype, shape))
        return common


def _merge(a: Known, b: Known) -> Known:
    dtype = a[0] if a[0] == b[0] else None
    if a[1] is None or b[1] is None or len(a[1]) != len(b[1]):
        return dtype, None
    return dtype, tuple(x if x == y else None for x, y in zip(a[1], b[1], strict=True))


_LIKE_FIRST = (
    "GroupQueryAttention",
    "MultiHeadAttention",
    "RotaryEmbedding",
    "Gelu",
    "FastGelu",
    "QuickGelu",
    "BiasGelu",
)
"""Operators of onnxruntime whose first output has the type and shape of their first input."""


def _stand_in(graph: onnx.GraphProto, same: dict[str, str]) -> None:
    """In the copy, put standard operators of equal type and shape where onnx does not know onnxruntime's own ones.

    A model that onnxruntime or its tools have optimised is full of these, and inference would end at the first.
    A second output of the first one's type goes into ``same``, and its readers read the first.
    """
    constants = {t.name: t for t in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                _stand_in(inner, same)
        contrib = node.domain == "com.microsoft"
        inputs: list[str] = []
        if node.op_type == "SimplifiedLayerNormalization":
            inputs = [node.input[1], node.input[0]]  # the output has the scale's type
            kind = "Mul"
        elif contrib and node.op_type in ("SkipSimplifiedLayerNormalization", "SkipLayerNormalization"):
            inputs, kind = list(node.input[:2]), "Add"
        elif contrib and node.op_type in _LIKE_FIRST:
            inputs, kind = [node.input[0]], "Identity"
        elif contrib and node.op_type == "MatMulNBits" and len(node.input) > 2 and node.input[2] in constants:
            sizes = {a.name: a.i for a in node.attribute}
            weight = f"{node.output[0]}//weight"
            graph.initializer.append(
                onnx.TensorProto(
                    name=weight,
                    data_type=constants[node.input[2]].data_type,
                    dims=[sizes.get("K", 0), sizes.get("N", 0)],
                    data_location=onnx.TensorProto.EXTERNAL,
                    external_data=[onnx.StringStringEntryProto(key="location", value="weights")],
                )
            )
            inputs, kind = [node.input[0], weight], "MatMul"
        if inputs:
            if kind == "Add" and len(node.output) > 3 and node.output[3]:
                same[node.output[3]] = node.output[0]
            node.CopyFrom(onnx.NodeProto(op_type=kind, input=inputs, output=[node.output[0]], name=node.name))
        for i, name in enumerate(node.input):
            node.input[i] = same.get(name, name)


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
    if tensor is None or isinstance(tensor, ir.ExternalTensor) or tensor.size <= _WEIGHT:
        return
    if tensor.dtype == ir.DataType.STRING:
        return
    value.const_value = ir.ExternalTensor(
        "weights",
        0,
        tensor.nbytes,
        tensor.dtype,
        shape=_plain_shape(tensor),
        name=tensor.name or value.name or "",
    )


def _plain_shape(tensor: ir.TensorProtocol) -> ir.Shape:
    return ir.Shape([int(d) for d in tensor.shape])  # type: ignore[arg-type]


def _infer(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Shape inference that gives what it can: a model that it rejects keeps the shapes of its file."""
    try:
        return onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except Exception:  # onnx raises half a dozen unrelated types here
        try:
            return onnx.shape_inference.infer_shapes(proto)
        except Exception:
            return proto
