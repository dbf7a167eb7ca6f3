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
        seen = set()
        for call in calls:
            value = call.inputs[index] if index < len(call.inputs) else None
            if value is None:
                return None
            dtype = value.dtype or self.table.get(value, (None, None))[0]
            shape = (
                tuple(dim(d) for d in value.shape)
                if value.shape is not None
                else self.table.get(value, (None, None))[1]
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
    if tensor is None or isinstance(tensor, ir.ExternalTensor) or tensor.size <= _WEIGHT:
        return
    if tensor.dtype == ir.DataType.STRING:
        return
    value.const_value = ir.ExternalTensor(
        "weights",
        0,
        tensor.nbytes,
        tensor.dtype,
        shape=ir.Shape(list(tensor.shape)),
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
