"""A bound on what onnx's data propagation writes down: the shapes that a graph computes, but not its long vectors.

onnx follows the elements of every one-dimensional value through some operators, 70 bytes for each. A shape has a
handful of elements; but a file of 200 bytes can declare a vector of 2^62. What is longer than a shape ever is becomes
an input of the graph here, of the type and shape that inference without data has found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, TypeProto, numpy_helper

from rmsnorm_deploy.model.graphs import AI_ONNX, graphs_of, nodes_of

MOST_ELEMENTS = 4096
"""Longer vectors are not followed."""
_MOST_FLAT = 2**20
"""Values with more elements, flattened, would be long vectors."""
_MOST_TILES = 64
"""A vector that is repeated more often may be long."""
_FOLLOWED = frozenset(("Add", "Cast", "Concat", "Gather", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"))
"""The operators through which onnx follows the elements of their inputs."""
_MAKERS = frozenset(
    ("Add", "Concat", "ConstantOfShape", "Expand", "Mul", "OneHot", "Pad", "Range", "Resize", "Sub", "Tile", "Upsample")
)
"""Operators that make a vector as long as a number says, and those that make such a number of another."""

Number = TensorProto | int | list[int]
Numbers = Sequence[tuple[str, Number]]


def is_safe(model: onnx.ModelProto) -> bool:
    """Whether nothing in the model looks like a long vector; a quick look, which is enough for nearly every model."""
    graphs, nodes = _looked_at(model)
    numbers = list(_numbers(graphs, nodes))
    return not _declares_long_vectors(graphs, numbers) and not _makes_long_vectors(nodes, numbers)


def _looked_at(model: onnx.ModelProto) -> tuple[list[GraphProto], list[NodeProto]]:
    """The graphs of a model, and those of its nodes that constants and makers of vectors are among."""
    looked_at = _MAKERS | {"Constant", "Reshape"}
    return list(graphs_of(model)), [n for n in nodes_of(model) if n.op_type in looked_at]


def _declares_long_vectors(graphs: Iterable[GraphProto], numbers: Numbers) -> bool:
    followed: set[str] = set()
    flattened: set[str] = set()
    single = {name for name, number in numbers if isinstance(number, list) and len(number) == 1}
    for graph in graphs:
        for value in (*graph.input, *graph.value_info, *graph.output):
            sizes = [d.dim_value for d in value.type.tensor_type.shape.dim]
            if _product(sizes) > (MOST_ELEMENTS if len(sizes) == 1 else _MOST_FLAT):
                return True
        vectors = {t.name for t in graph.initializer if len(t.dims) == 1 and t.dims[0] > MOST_ELEMENTS}
        single |= {t.name for t in graph.initializer if list(t.dims) == [1]}
        for node in graph.node:
            op_type = node.op_type
            if vectors and op_type in _FOLLOWED:
                followed.update(vectors.intersection(node.input))
            elif op_type == "Reshape" and len(node.input) > 1 and node.input[1] in single:
                flattened.add(node.input[0])
        if followed or any(t.name in flattened for t in graph.initializer):
            return True
    return False


def _product(sizes: list[int]) -> int:
    return math.prod(max(size, 1) for size in sizes)


def _makes_long_vectors(nodes: Iterable[NodeProto], found_numbers: Numbers) -> bool:
    """Whether constants, or vectors put together, may become a longer vector than one that is followed."""
    numbers = dict(found_numbers)
    large = {name for name, number in numbers.items() if _is_large(number, MOST_ELEMENTS)}
    tiles = 0
    for node in nodes:
        if node.op_type == "Reshape" and len(node.input) > 1 and node.input[1] in large:
            if _is_single(numbers[node.input[1]]):
                return True  # to one dimension, of so many elements
            continue
        if node.op_type not in _MAKERS:
            continue
        if not large.isdisjoint(node.input):
            return True
        if node.op_type == "Tile":
            tiles += 1
            times = [numbers.get(name, _MOST_TILES + 1) for name in node.input[1:]]
            found = tiles > 1 or any(_is_large(number, _MOST_TILES) for number in times)
        elif node.op_type == "Mul":
            found = all(name in numbers and _is_large(numbers[name], 1) for name in node.input)
        else:
            found = node.op_type == "Concat" and len(set(node.input)) < len(node.input)
        if found:
            return True
    return False


def _numbers(graphs: Iterable[GraphProto], nodes: Iterable[NodeProto]) -> Iterator[tuple[str, Number]]:
    """The constants of a model by name, which need not be unique: graphs beside each other may use one twice."""
    for graph in graphs:
        yield from ((t.name, t) for t in graph.initializer)
    for node in nodes:
        if node.op_type == "Constant" and node.output:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield node.output[0], attribute.t
                elif attribute.HasField("i"):
                    yield node.output[0], attribute.i
                elif attribute.ints:
                    yield node.output[0], list(attribute.ints)


def _is_single(number: Number) -> bool:
    if isinstance(number, TensorProto):
        return list(number.dims) == [1]
    return not isinstance(number, list) or len(number) == 1


def _is_large(number: Number, most: int) -> bool:
    if isinstance(number, TensorProto):
        whole = number.data_type in (TensorProto.INT64, TensorProto.INT32)
        if not whole or number.data_location == TensorProto.EXTERNAL or _product(list(number.dims)) > 64:
            return False
        try:
            return bool((np.abs(numpy_helper.to_array(number)) > most).any())
        except (ValueError, TypeError):
            return True
    return any(abs(n) > most for n in ([number] if isinstance(number, int) else number))


def shortened(model: onnx.ModelProto, inferred: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model without the nodes through which onnx would follow long vectors, or vectors that may be long.

    Args:
        model: the model; it is not changed.
        inferred: the same with the types and shapes that inference without data finds.

    Returns:
        None where functions might make long vectors, which nothing is known of.
    """
    if any(node.op_type in _MAKERS for f in model.functions for node in nodes_of(f)):
        return None
    graphs, nodes = _looked_at(model)
    unknown_may_be_long = _makes_long_vectors(nodes, list(_numbers(graphs, nodes)))
    types: dict[str, TypeProto] = {}
    for graph in graphs_of(inferred):
        types.update((v.name, v.type) for v in (*graph.input, *graph.value_info, *graph.output))
        types.update((t.name, onnx.helper.make_tensor_type_proto(t.data_type, t.dims)) for t in graph.initializer)

    def may_be_long(name: str) -> bool:
        kind = types.get(name)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return unknown_may_be_long
        dims = kind.tensor_type.shape.dim
        if len(dims) != 1:
            return False
        return not dims[0].HasField("dim_value") or dims[0].dim_value > MOST_ELEMENTS

    def is_followed(node: NodeProto) -> bool:
        return node.op_type in _FOLLOWED and node.domain in AI_ONNX and any(map(may_be_long, node.input))

    result = onnx.ModelProto()
    result.CopyFrom(inferred)
    for graph in graphs_of(result):
        kept = [node for node in graph.node if not is_followed(node)]
        if len(kept) < len(graph.node):
            del graph.node[:]
            graph.node.extend(kept)
    return result
