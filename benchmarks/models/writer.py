"""Writes a model node by node, the way exporters do: plain standard operators of opset 18."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

OPSET = 18
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int64": TensorProto.INT64}


class Writer:
    """A graph that grows. Values are names; weights are small random numbers, the same in every run."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.weights: list[Any] = []
        self._count = itertools.count()
        self._random = np.random.default_rng(7)

    def input(self, name: str, shape: Sequence[int | str], dtype: str = "") -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TYPES[dtype or self.dtype], shape))
        return name

    def output(self, value: str, name: str, shape: Sequence[int | str]) -> None:
        self.nodes.append(helper.make_node("Identity", [value], [name]))
        self.outputs.append(helper.make_tensor_value_info(name, TYPES[self.dtype], shape))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{next(self._count)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=f"node_{name}", **attributes))
        return name

    def constant(self, value: Any, dtype: str = "") -> str:
        name = f"constant_{next(self._count)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype or self.dtype), name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(values, "int64")

    def weight(self, *shape: int) -> str:
        inner = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
        return self.constant(self._random.standard_normal(shape, np.float32) / np.sqrt(inner))

    def linear(self, x: str, inputs: int, outputs: int, *, bias: bool) -> str:
        """X W + b, W as (inputs, outputs): what exporters make of a linear layer."""
        y = self.op("MatMul", x, self.weight(inputs, outputs))
        return self.op("Add", self.constant(self._random.standard_normal(outputs) / 10), y) if bias else y

    def layer_norm(self, x: str, size: int) -> str:
        ones, zeros = self.constant(np.ones(size)), self.constant(np.zeros(size))
        return self.op("LayerNormalization", x, ones, zeros, axis=-1, epsilon=1e-5)

    def skip_layer_norm(self, x: str, y: str, bias: str, size: int) -> tuple[str, str]:
        """The sum of x, y and a bias, and the norm of that, as onnxruntime's own operator."""
        ones, zeros = self.constant(np.ones(size)), self.constant(np.zeros(size))
        total, normed = (f"{what}_{next(self._count)}" for what in ("total", "normed"))
        inputs, outputs = [x, y, ones, zeros, bias], [normed, "", "", total]
        node = helper.make_node("SkipLayerNormalization", inputs, outputs, domain="com.microsoft", epsilon=1e-5)
        node.name = f"node_{normed}"
        self.nodes.append(node)
        return total, normed

    def gelu(self, x: str) -> str:
        """X (1 + erf(x / sqrt 2)) / 2, as exporters write it."""
        inner = self.op("Erf", self.op("Div", x, self.constant(np.sqrt(2.0))))
        return self.op("Mul", self.op("Mul", x, self.op("Add", inner, self.constant(1.0))), self.constant(0.5))

    def heads(self, x: str, count: int, size: int) -> str:
        """(batch, sequence, count * size) as (batch, count, sequence, size)."""
        return self.op("Transpose", self.op("Reshape", x, self.ints(0, 0, count, size)), perm=[0, 2, 1, 3])

    def joined(self, x: str, width: int) -> str:
        """The inverse of :meth:`heads`."""
        return self.op("Reshape", self.op("Transpose", x, perm=[0, 2, 1, 3]), self.ints(0, 0, width))

    def model(self) -> ModelProto:
        graph = helper.make_graph(self.nodes, "benchmark", self.inputs, self.outputs, self.weights)
        opsets = [helper.make_opsetid("", OPSET)]
        if any(node.domain for node in self.nodes):
            opsets.append(helper.make_opsetid("com.microsoft", 1))
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)
