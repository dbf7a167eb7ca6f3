"""What Reshapes give whose shape is put together while the model runs: the rank, and the sizes that are constants.

onnx's inference follows the elements of a shape from opset 15 on. Below, it knows nothing of such a Reshape, not even
the rank, nor of anything behind it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from rmsnorm_deploy.model.graphs import AI_ONNX

_MOST_DIMENSIONS = 16
_MAX_DEPTH = 16
"""Longest chain of nodes that is followed."""

_BY_ELEMENT = ("Add", "Sub", "Mul", "Div")

Sizes = list[int | None]
"""The elements of a shape, None where one is not constant."""


def state_shapes(graph: GraphProto) -> None:
    """Write down in a copy of a graph what its Reshapes give, where the file does not.

    A size that is not constant gets a name of its own: it is the same wherever that value goes, and nowhere else.
    """
    reshapes = [n for n in graph.node if n.op_type == "Reshape" and n.domain in AI_ONNX and len(n.input) == 2]
    if not reshapes:
        return
    stated = {v.name: v for v in (*graph.value_info, *graph.output)}
    made = _Vectors(graph)
    for node in (n for n in reshapes if len(n.output) == 1):
        name = node.output[0]
        known = stated.get(name)
        if known is not None and known.type.WhichOneof("value") not in (None, "tensor_type"):
            continue
        if known is not None and known.type.tensor_type.HasField("shape"):
            continue
        sizes = made.held(node.input[1])
        if sizes is None or len(sizes) > _MOST_DIMENSIONS or any(s is not None and s < -1 for s in sizes):
            continue
        if known is None:
            known = graph.value_info.add(name=name)
        shape = known.type.tensor_type.shape
        shape.SetInParent()
        for i, size in enumerate(sizes):
            if size is not None and size > 0:
                shape.dim.add(dim_value=size)
            else:  # 0 and -1 are taken from elsewhere
                shape.dim.add(dim_param=f"{name}//{i}")


class _Vectors:
    """The one-dimensional values that shapes are put together from."""

    def __init__(self, graph: GraphProto) -> None:
        self._producers: Mapping[str, NodeProto] = {o: n for n in graph.node for o in n.output if o}
        self._tensors = {t.name: t for t in graph.initializer}
        self._inputs = {v.name for v in graph.input}

    def held(self, name: str, depth: int = 0) -> Sizes | None:
        """The elements of a value that is a vector in every valid model; None where their number is not known."""
        tensor = self._tensor(name)
        if tensor is not None:
            array = _integers(tensor)
            if array is None or array.ndim != 1:
                return None
            # a caller may give another one, of the same length
            return [None] * len(array) if name in self._inputs else [int(n) for n in array]
        node = self._producers.get(name)
        if node is None or node.domain not in AI_ONNX or depth > _MAX_DEPTH or not node.input:
            return None
        if node.op_type == "Concat":
            found: Sizes = []
            for given in node.input:
                part = self.held(given, depth + 1)
                if part is None or len(found) > _MOST_DIMENSIONS:
                    return None
                found += part
            return found
        if node.op_type == "Unsqueeze":  # of a number, or else it would be no vector
            inner = self._tensor(node.input[0])
            number = None if inner is None or node.input[0] in self._inputs else _integers(inner)
            return [int(number)] if number is not None and number.ndim == 0 else [None]
        if node.op_type in ("Identity", "Cast"):
            part = self.held(node.input[0], depth + 1)
            return None if part is None else [None] * len(part)
        if node.op_type in _BY_ELEMENT and len(node.input) == 2:
            parts = [self.held(given, depth + 1) for given in node.input]
            counts = {len(part) for part in parts if part is not None} - {1}
            return None if None in parts or len(counts) > 1 else [None] * max(counts, default=1)
        if node.op_type == "Gather" and len(node.input) == 2:
            places = self.held(node.input[1], depth + 1)
            return None if places is None else [None] * len(places)
        if node.op_type == "Reshape" and len(node.input) == 2:
            target = self.held(node.input[1], depth + 1)
            count = target[0] if target is not None and len(target) == 1 else None
            return [None] * count if count is not None and 0 < count <= _MOST_DIMENSIONS else None
        return None

    def _tensor(self, name: str) -> TensorProto | None:
        tensor = self._tensors.get(name)
        node = self._producers.get(name)
        if tensor is not None or node is None or node.op_type != "Constant" or node.domain not in AI_ONNX:
            return tensor
        for attribute in node.attribute:
            if attribute.name == "value" and not attribute.ref_attr_name:
                held: TensorProto = attribute.t
                return held
            if attribute.name == "value_ints" and not attribute.ref_attr_name:
                return numpy_helper.from_array(np.array(attribute.ints, np.int64))
            if attribute.name == "value_int" and not attribute.ref_attr_name:
                return numpy_helper.from_array(np.array(attribute.i, np.int64))
        return None


def _integers(tensor: TensorProto) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None:
    """A small tensor of integers that is in the file; None for any other."""
    if tensor.data_type not in (TensorProto.INT64, TensorProto.INT32) or tensor.data_location == TensorProto.EXTERNAL:
        return None
    if len(tensor.dims) > 1 or any(not 0 <= d <= _MOST_DIMENSIONS for d in tensor.dims):
        return None
    try:
        return numpy_helper.to_array(tensor).astype(np.int64)
    except (ValueError, TypeError):  # its data do not fit its type
        return None
