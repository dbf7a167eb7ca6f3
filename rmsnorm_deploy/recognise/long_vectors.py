"""A bound on what onnx's data propagation writes down: the shapes that a graph computes, but not its long vectors.

onnx follows the elements of every one-dimensional value through some operators, 70 bytes for each. A shape has a
handful of elements; but a file of 200 bytes can declare a vector of 2^62. What is longer than a shape ever is becomes
an input of the graph here, of the type and shape that inference without data has found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from rmsnorm_deploy.model.graphs import AI_ONNX, elements, graphs_of, keep_nodes, nodes_of

MOST_ELEMENTS = 4096
"""Longer vectors are not followed."""
_MOST_IN_FUNCTIONS = 2**15
"""Longer vectors are not followed into functions, whose nodes stay together; scales of norms are shorter."""
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

_SIZES = frozenset(("Shape", "Size"))
_LOOKED_AT = _MAKERS | _SIZES | {"Constant", "Reshape"}
"""The operators that constants and makers of vectors are among."""

Number = TensorProto | int | list[int]
Numbers = Sequence[tuple[str, Number]]


def followable(model: onnx.ModelProto, inferred: onnx.ModelProto) -> onnx.ModelProto | None:
    """What data may be propagated through: the model itself, for nearly every one; else a shorter one.

    Args:
        model: the model; it is not changed.
        inferred: the same with the types and shapes that inference without data finds.

    Returns:
        ``model``, or ``inferred`` without the nodes through which onnx would follow long vectors, or vectors that may
        be long; None where functions might make them, of which nothing is known.
    """
    graphs = list(graphs_of(model))
    nodes = [n for n in nodes_of(model) if n.op_type in _LOOKED_AT]
    shapes = _shapes(inferred)
    unknown_may_be_long = _makes_long_vectors(nodes, list(_numbers(graphs, nodes))) or _flattens(nodes, shapes, graphs)
    unknown_size_may_be_large = unknown_may_be_long or _takes_large_sizes(nodes, shapes)

    def may_be_long(name: str, most: int) -> bool:
        # a name that graphs beside each other both use is as long as the longest one
        return any(
            unknown_may_be_long
            if dims is None
            else len(dims) == 1 and (unknown_size_may_be_large if dims[0] is None else dims[0] > most)
            for dims in shapes.get(name, _UNKNOWN)
        )

    functions = {(f.domain, f.name) for f in model.functions}

    def is_followed(node: NodeProto) -> bool:
        if node.op_type in _FOLLOWED and node.domain in AI_ONNX:
            return any(may_be_long(name, MOST_ELEMENTS) for name in node.input)
        is_call = (node.domain, node.op_type) in functions
        return is_call and any(may_be_long(name, _MOST_IN_FUNCTIONS) for name in node.input)

    shorter = any(is_followed(node) for graph in graphs_of(inferred) for node in graph.node)
    inside = [node for f in model.functions for node in nodes_of(f)]
    if any(map(_holds_long_vector, inside)) or (unknown_may_be_long and any(n.op_type in _MAKERS for n in inside)):
        return None
    if not shorter:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(inferred)
    for graph in graphs_of(result):
        keep_nodes(graph, lambda node: not is_followed(node))
    return result


Dims = tuple[int | None, ...]
_UNKNOWN: tuple[Dims | None, ...] = (None,)


def _shapes(inferred: onnx.ModelProto) -> dict[str, list[Dims | None]]:
    """Every shape that the model has of a name, in whatever graph; None where it is not known."""
    shapes: dict[str, list[Dims | None]] = {}
    for graph in graphs_of(inferred):
        for value in (*graph.input, *graph.value_info, *graph.output):
            tensor = value.type.tensor_type
            dims = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
            shapes.setdefault(value.name, []).append(tuple(dims) if tensor.HasField("shape") else None)
        for weight in graph.initializer:
            shapes.setdefault(weight.name, []).append(tuple(weight.dims))
    return shapes


def _holds_long_vector(node: NodeProto) -> bool:
    return any(elements(a.t.dims) > _MOST_IN_FUNCTIONS for a in node.attribute if a.HasField("t"))


def _flattens(
    nodes: Iterable[NodeProto], shapes: Mapping[str, Sequence[Dims | None]], graphs: Sequence[GraphProto]
) -> bool:
    """Whether something large may be reshaped to one dimension, by a shape that only data tell."""
    reshapes = [n for n in nodes if n.op_type == "Reshape" and n.output]
    if all(dims not in (None, (None,)) for n in reshapes for dims in shapes.get(n.output[0], _UNKNOWN)):
        return False
    # of weights, those that are reshaped themselves: every other large model has large ones
    weights = {t.name for graph in graphs for t in graph.initializer} - {n.input[0] for n in reshapes if n.input}
    return any(
        dims is not None and elements(dims) > _MOST_FLAT
        for name, found in shapes.items()
        if name not in weights
        for dims in found
    )


def _takes_large_sizes(nodes: Iterable[NodeProto], shapes: Mapping[str, Sequence[Dims | None]]) -> bool:
    """Whether a shape with a large number in it becomes a value, of which another one may then be made."""
    return any(
        size is not None and size > MOST_ELEMENTS
        for node in nodes
        if node.op_type in _SIZES and node.input
        for dims in shapes.get(node.input[0], ())
        for size in (dims or () if node.op_type == "Shape" else (elements(dims or ()),))
    )


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
        return list(number.dims) in ([], [1])
    return not isinstance(number, list) or len(number) == 1


def _is_large(number: Number, most: int) -> bool:
    if isinstance(number, TensorProto):
        whole = number.data_type in (TensorProto.INT64, TensorProto.INT32)
        if not whole or number.data_location == TensorProto.EXTERNAL or elements(list(number.dims)) > 64:
            return False
        try:
            return bool((np.abs(numpy_helper.to_array(number)) > most).any())
        except (ValueError, TypeError):
            return True
    return any(abs(n) > most for n in ([number] if isinstance(number, int) else number))
