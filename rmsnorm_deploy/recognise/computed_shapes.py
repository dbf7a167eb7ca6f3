"""Constants that a graph computes before it pads, slices, repeats or reshapes: written down for onnx's inference.

Exporters compute what is constant, too: TorchScript's turns the two numbers of a padding into those that Pad takes with
fifteen nodes. onnx's inference follows few of the operators in between, and knows nothing of the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from rmsnorm_deploy.model.graphs import AI_ONNX
from rmsnorm_deploy.recognise import folding

_MAX_ELEMENTS = 64
"""Most elements of a constant: a shape has a handful."""
_MAX_DEPTH = 32
"""Longest chain of nodes that is followed."""
_READ: Mapping[str, Sequence[int]] = {
    "Pad": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Tile": (1,),
    "Expand": (1,),
    "Reshape": (1,),
}
"""The operators whose outputs' shapes depend on what inputs hold, and which inputs."""

Array = NDArray[Any]


def state_constants(graph: GraphProto) -> None:
    """Put a Constant, in a copy of a graph, where a node computes from constants what a shape depends on."""
    asked = dict.fromkeys(
        node.input[i]
        for node in graph.node
        if node.op_type in _READ and node.domain in AI_ONNX
        for i in _READ[node.op_type]
        if i < len(node.input) and node.input[i]
    )
    if not asked:
        return
    constants = _Constants(graph)
    for name in asked:
        node = constants.producers.get(name)
        if node is None or node.op_type == "Constant" or len(node.output) != 1:
            continue
        held = constants.held(name)
        if held is not None and held.dtype in (np.int64, np.int32):
            tensor = numpy_helper.from_array(np.ascontiguousarray(held))
            node.CopyFrom(NodeProto(op_type="Constant", output=[name], name=node.name))
            node.attribute.add(name="value", type=ir.AttributeType.TENSOR.value, t=tensor)


class _Constants:
    """The small constants of one graph."""

    def __init__(self, graph: GraphProto) -> None:
        self.producers: Mapping[str, NodeProto] = {o: n for n in graph.node for o in n.output if o}
        given = {v.name for v in graph.input}  # a caller may give another one
        self._tensors = {t.name: t for t in graph.initializer if t.name not in given}
        self._known: dict[str, Array | None] = {}

    def held(self, name: str, depth: int = 0) -> Array | None:
        """What a value holds, or None where it is not a small constant."""
        if name not in self._known:
            self._known[name] = None  # guards against cycles in broken graphs
            self._known[name] = self._evaluated(name, depth)
        return self._known[name]

    def _evaluated(self, name: str, depth: int) -> Array | None:
        if name in self._tensors:
            return _small(self._tensors[name])
        node = self.producers.get(name)
        if node is None or node.domain not in AI_ONNX or depth > _MAX_DEPTH or len(node.output) != 1:
            return None
        if any(a.HasField("g") or a.graphs or a.ref_attr_name for a in node.attribute):
            return None
        if node.op_type == "Constant":
            return self._constant(node)
        if node.op_type == "CastLike" or not node.input:
            return None
        arrays: list[Array] = []
        for given in node.input:
            array = self.held(given, depth + 1) if given else None
            if array is None:
                return None
            arrays.append(array)
        attributes = {a.name: ir.serde.deserialize_attribute(a) for a in node.attribute}
        found = folding.fold(folding.Operands(node.op_type, attributes, arrays))
        return None if found is None or found.size > _MAX_ELEMENTS else found

    def _constant(self, node: NodeProto) -> Array | None:
        for attribute in node.attribute:
            if attribute.name == "value":
                return _small(attribute.t)
            if attribute.name in ("value_int", "value_ints"):
                numbers = attribute.i if attribute.name == "value_int" else attribute.ints
                return np.array(numbers, np.int64)
        return None


def _small(tensor: TensorProto) -> Array | None:
    """A small tensor of numbers that is in the file; None for any other."""
    if tensor.data_location == TensorProto.EXTERNAL or tensor.data_type not in _KINDS:
        return None
    if any(not 0 <= d <= _MAX_ELEMENTS for d in tensor.dims) or len(tensor.dims) > 2:
        return None
    try:
        array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError):  # its data do not fit its type
        return None
    return array if array.size <= _MAX_ELEMENTS else None


_KINDS = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
