"""A small notation for graphs: values with operators, so that a spelling reads like its formula."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F, H, B, D, I64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.INT64
NUMPY = {F: np.float32, H: np.float16, B: ml_dtypes.bfloat16, D: np.float64, I64: np.int64}


class V:
    """A value: a name and an element type."""

    def __init__(self, graph: Graph, name: str, dtype: int) -> None:
        self.graph, self.name, self.dtype = graph, name, dtype

    def _binary(self, op: str, other: V | float, swap: bool = False) -> V:
        right = other if isinstance(other, V) else self.graph.constant(other, self.dtype)
        pair = (right, self) if swap else (self, right)
        return self.graph.op(op, *pair)

    def __mul__(self, other: V | float) -> V:
        return self._binary("Mul", other)

    def __rmul__(self, other: float) -> V:
        return self._binary("Mul", other, swap=True)

    def __add__(self, other: V | float) -> V:
        return self._binary("Add", other)

    def __radd__(self, other: float) -> V:
        return self._binary("Add", other, swap=True)

    def __sub__(self, other: V | float) -> V:
        return self._binary("Sub", other)

    def __truediv__(self, other: V | float) -> V:
        return self._binary("Div", other)

    def __rtruediv__(self, other: float) -> V:
        return self._binary("Div", other, swap=True)

    def __pow__(self, other: float) -> V:
        return self._binary("Pow", other)


class Graph:
    """Collects nodes; constants become initializers or Constant nodes, as asked."""

    def __init__(self, opset: int = 18, constant_nodes: bool = False) -> None:
        self.opset, self.constant_nodes = opset, constant_nodes
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.value_info: list[onnx.ValueInfoProto] = []
        self.feeds: dict[str, tuple[int, list]] = {}
        self.count = 0

    def name(self, hint: str) -> str:
        self.count += 1
        return f"{hint}_{self.count}"

    def input(self, name: str, dtype: int, shape) -> V:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        self.feeds[name] = (dtype, list(shape))
        return V(self, name, dtype)

    def constant(self, value, dtype: int = F, name: str = "", shape=None) -> V:
        array = np.asarray(value).astype(NUMPY[dtype])
        if shape is not None:
            array = array.reshape(shape)
        name = name or self.name("c")
        tensor = numpy_helper.from_array(array, name)
        if self.constant_nodes:
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.initializers.append(tensor)
        return V(self, name, dtype)

    def weight(self, array, dtype: int, name: str = "") -> V:
        name = name or self.name("weight")
        self.initializers.append(numpy_helper.from_array(np.asarray(array).astype(NUMPY[dtype]), name))
        return V(self, name, dtype)

    def op(self, op_type: str, *inputs: V, dtype: int | None = None, domain: str = "", **attributes) -> V:
        output = self.name(op_type.lower())
        node = helper.make_node(
            op_type, [i.name for i in inputs], [output], name=f"node_{output}", domain=domain, **attributes
        )
        self.nodes.append(node)
        return V(self, output, inputs[0].dtype if dtype is None else dtype)

    def cast(self, value: V, to: int) -> V:
        return self.op("Cast", value, dtype=to, to=to)

    def reduce(self, op_type: str, value: V, axes, keepdims: int = 1, explicit_noop: bool = False) -> V:
        attributes = {"keepdims": keepdims}
        moved = 13 if op_type == "ReduceSum" else 18
        if self.opset < moved:
            return self.op(op_type, value, axes=list(axes), **attributes)
        if explicit_noop:
            attributes["noop_with_empty_axes"] = 0
        return self.op(op_type, value, self.constant(list(axes), I64), **attributes)

    def along(self, op_type: str, value: V, axes) -> V:
        """Squeeze or Unsqueeze."""
        if self.opset < 13:
            return self.op(op_type, value, axes=list(axes))
        return self.op(op_type, value, self.constant(list(axes), I64))

    def output(self, value: V, name: str, shape) -> None:
        self.nodes.append(helper.make_node("Identity", [value.name], [name], name=f"to_{name}")) if self._is_input(
            value
        ) else self._rename(value, name)
        self.outputs.append(helper.make_tensor_value_info(name, value.dtype, shape))

    def _is_input(self, value: V) -> bool:
        return any(i.name == value.name for i in self.inputs) or any(t.name == value.name for t in self.initializers)

    def _rename(self, value: V, name: str) -> None:
        for node in self.nodes:
            for names in (node.input, node.output):
                for i, n in enumerate(names):
                    if n == value.name:
                        names[i] = name
        value.name = name

    def model(self, functions=(), extra_opsets=(), ir_version: int | None = None) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, "g", self.inputs, self.outputs, self.initializers, value_info=self.value_info
        )
        version = ir_version or (10 if self.opset >= 21 else 8)
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", self.opset), *extra_opsets],
            ir_version=version,
            functions=list(functions),
        )
