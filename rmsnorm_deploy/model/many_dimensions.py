"""A bound on the dimensions that onnx's inference writes down: a shape as long as a vector gives a value as many.

``Expand(x, s)`` has as many dimensions as ``s`` has elements, and a file of 200 bytes can say that those are 2^40. Such
a node is left out of the copy that inference reads, unless its shape is seen to be short.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from rmsnorm_deploy.model.graphs import AI_ONNX, elements, graphs_of, keep_nodes, nodes_of

_MOST = 4096
"""Longer shapes are not followed; those of real models have a handful of elements."""
_OF_VECTORS = frozenset(("Cast", "Identity", "Slice", "Split"))
"""Operators that leave a vector one."""
_WHOLE = 2**31 - 1
"""An end from which on a slice goes to the end."""
_MOST_STEPS = 64
"""Nodes between a shape and what it was made of; a guard against degenerate graphs."""
_SHAPE_AT = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0, "Col2Im": 1, "MaxUnpool": 2}
"""The operators whose output has as many dimensions as an input has elements, and which input."""
_ELEMENTWISE = frozenset(
    (
        *("Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div", "Equal", "Floor", "Greater", "Identity", "Less", "Max"),
        *("Min", "Mod", "Mul", "Neg", "Not", "Or", "Relu", "Round", "Sub", "Where"),
    )
)
_LIKE_FIRST = frozenset(
    ("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "ScatterElements", "ScatterND", "Split", "Squeeze")
)
"""Operators of vectors whose output is at most as long as their first input."""


def leave_out(model: ModelProto) -> None:
    """Remove the nodes of ``model``, which is changed, whose output might have more dimensions than any value has."""
    shaped = _shaped(model)
    if not shaped:
        return
    lengths = _Lengths(model)
    long = {id(n) for n in shaped if lengths.of_input(n, _SHAPE_AT[n.op_type]) > _MOST}
    if not long:
        return
    for holder in (*graphs_of(model), *model.functions):
        keep_nodes(holder, lambda node: id(node) not in long)


def forget(model: ModelProto) -> None:
    """Drop what ``model``, which is changed, says of the lengths of shapes where they are long: no model has such ones.

    For the version converter, which needs every node, and infers by itself.
    """
    shapes = {name for n in _shaped(model) for name in n.input[_SHAPE_AT[n.op_type] :][:1]}
    if not shapes:
        return
    for graph in graphs_of(model):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.name in shapes and any(d.dim_value > _MOST for d in value.type.tensor_type.shape.dim):
                value.type.tensor_type.ClearField("shape")


def _shaped(model: ModelProto) -> list[NodeProto]:
    return [n for n in nodes_of(model) if n.op_type in _SHAPE_AT and n.domain in AI_ONNX]


class _Lengths:
    """How many elements vectors have at most; infinite where that is not seen."""

    def __init__(self, model: ModelProto) -> None:
        self._producers = {name: node for node in nodes_of(model) for name in node.output}
        self._declared: dict[str, float] = {}
        self._weights: dict[str, TensorProto] = {}
        # a name that graphs beside each other both use is as long as the longest one
        for graph in graphs_of(model):
            for name, length in _declared(graph):
                self._declared[name] = max(length, self._declared.get(name, 0))
            self._weights.update((t.name, t) for t in graph.initializer)
        self._known: dict[str, float] = {}

    def of_input(self, node: NodeProto, at: int) -> float:
        return self._of(node.input[at], 0) if len(node.input) > at else 0

    def _of(self, name: str, steps: int) -> float:
        known = self._known.get(name)
        if known is None:
            if steps > _MOST_STEPS:
                return math.inf
            self._known[name] = math.inf  # a graph in which it comes round again
            known = self._known[name] = max(self._made(name, steps), self._declared.get(name, 0))
        return known

    def _made(self, name: str, steps: int) -> float:
        """Of what a node gives, which has one dimension at most; nothing where none does: what the file says counts."""
        node = self._producers.get(name)
        if node is None:
            return 0
        op_type = node.op_type
        if op_type == "Constant":
            return max((_elements(a.t.dims) if a.HasField("t") else _in_list(a) for a in node.attribute), default=0)
        if op_type in ("Shape", "Size"):
            return _MOST_STEPS
        if op_type == "ConstantOfShape":
            return self._filled(node, steps)
        lengths = [self._of(i, steps + 1) for i in node.input if i]
        if not lengths:
            return 0
        if op_type in _ELEMENTWISE:
            return max(lengths)
        if op_type == "Concat":
            return sum(lengths)
        if op_type == "Slice":
            return min(lengths[0], self._slice(node))
        if op_type in _LIKE_FIRST:
            return lengths[0]
        if op_type in ("Gather", "GatherElements"):
            return lengths[-1]
        if op_type == "Unsqueeze":  # a row and a column make a matrix
            return lengths[0] if lengths[0] <= 1 or self._is_number(node.input[0]) else math.inf
        if op_type == "Reshape":
            numbers = self._numbers(node.input[1] if len(node.input) > 1 else "")
            if numbers is None or len(numbers) > 1:
                return math.inf
            return max([lengths[0], *numbers])  # onnx believes the number
        return math.inf

    def _slice(self, node: NodeProto) -> float:
        """Between a constant beginning and a constant end on the same side of a vector; steps leave more out."""
        given = {a.name: list(a.ints) for a in node.attribute}
        starts, ends = (
            self._numbers(node.input[at]) if len(node.input) > at else given.get(name)
            for at, name in ((1, "starts"), (2, "ends"))
        )
        if starts is None or ends is None or len(starts) != 1 or len(ends) != 1:
            return math.inf
        start, end = starts[0], ends[0]
        if start < 0 <= end and end >= _WHOLE:  # from so many before the end
            return -start
        return max(end - start, 0) if (start < 0) == (end < 0) and start <= end else math.inf

    def _is_number(self, name: str) -> bool:
        """Whether a vector has lost its dimension, as exporters do with the one size that they cut out of a shape."""
        node = self._producers.get(name)
        if node is None or node.op_type != "Squeeze" or not node.input:
            return False
        axes = self._numbers(node.input[1]) if len(node.input) > 1 else None
        if not axes and not any(a.name == "axes" and a.ints for a in node.attribute):
            return False
        for _ in range(_MOST_STEPS):
            node = self._producers.get(node.input[0]) if node.input else None
            if node is None or node.op_type not in _OF_VECTORS:
                break
        return node is not None and node.op_type == "Shape"

    def _filled(self, node: NodeProto, steps: int) -> float:
        """Of ConstantOfShape: the product of its shape, which is a number in the file, or the length of a vector."""
        shape = node.input[0] if node.input else ""
        made = self._producers.get(shape)
        if made is not None and made.op_type == "Shape" and made.input:
            return self._of(made.input[0], steps + 1)
        numbers = self._numbers(shape)
        return math.inf if numbers is None else math.prod(numbers)

    def _numbers(self, name: str) -> list[int] | None:
        """The constant that a value is, where it is a short vector of one."""
        tensor = self._weights.get(name)
        made = self._producers.get(name)
        if made is not None and made.op_type == "Constant":
            tensor = next((a.t for a in made.attribute if a.HasField("t")), None)
        if tensor is None or math.prod(tensor.dims) > _MOST_STEPS:
            return None
        try:
            return [int(n) for n in numpy_helper.to_array(tensor).flat]
        except (ValueError, TypeError):
            return None


def _declared(graph: GraphProto) -> Iterator[tuple[str, float]]:
    for tensor in graph.initializer:
        yield tensor.name, _elements(tensor.dims)
    for value in (*graph.input, *graph.value_info, *graph.output):
        yield value.name, _elements([d.dim_value for d in value.type.tensor_type.shape.dim])


def _elements(dims: Sequence[int]) -> float:
    """Of a vector; what has more dimensions is none."""
    count = elements(dims)
    return count if len(dims) <= 1 or count == 1 else math.inf


def _in_list(attribute: AttributeProto) -> int:
    return max(len(attribute.ints), len(attribute.floats), len(attribute.strings), 1)
