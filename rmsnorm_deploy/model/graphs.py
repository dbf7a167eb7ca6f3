"""Walking a model: every graph and every node, those in subgraphs and local functions included."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import onnx_ir as ir
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

AI_ONNX = ("", "ai.onnx")
"""The two names of the standard domain."""

PLAIN = frozenset(
    AttributeProto.AttributeType.Value(name) for name in ("FLOAT", "INT", "STRING", "FLOATS", "INTS", "STRINGS")
)
"""Types of attributes that hold neither a tensor nor a graph."""


def opset_of(model: ModelProto | ir.Model | ir.Function) -> int:
    """The ai.onnx opset of a model or a local function; 0 where it names none."""
    if isinstance(model, ModelProto):
        return next((o.version for o in model.opset_import if o.domain in AI_ONNX), 0)
    return opset_in(model.opset_imports)


def opset_in(imports: Mapping[str, int]) -> int:
    """The ai.onnx opset among versions of domains; 0 where there is none."""
    return next((imports[name] for name in AI_ONNX if name in imports), 0)


def subgraphs(node: NodeProto) -> Iterator[tuple[str, int, GraphProto]]:
    """The graphs that a node carries: name of the attribute, place in its list (0 for a single one), graph."""
    for attribute in node.attribute:
        if attribute.type in PLAIN:
            continue
        # reading the field of an attribute that has none gives an empty graph
        for i, graph in enumerate([attribute.g] if attribute.HasField("g") else attribute.graphs):
            yield attribute.name, i, graph


def walk(root: ModelProto | GraphProto | FunctionProto) -> Iterator[GraphProto | NodeProto]:
    """Every graph and node: each graph before its nodes, each node before its subgraphs.

    Args:
        root: a graph or a local function; of a model the main graph, the training graphs and the local functions.
    """
    for part in _parts(root):
        if isinstance(part, GraphProto):
            yield part
        for node in part.node:
            yield node
            if node.attribute:
                for _, _, graph in subgraphs(node):
                    yield from walk(graph)


def _parts(root: ModelProto | GraphProto | FunctionProto) -> list[GraphProto | FunctionProto]:
    """The graphs and functions that :func:`walk` begins with."""
    if not isinstance(root, ModelProto):
        return [root]
    training = [graph for t in root.training_info for graph in (t.initialization, t.algorithm)]
    return [root.graph, *training, *root.functions]


def scope_part(name: str, outputs: Iterable[str], op_type: str, attribute: str, index: int, count: int) -> str:
    """What one of the graphs that a node carries is called in reports, such as "/loop.body".

    Args:
        name: of the node; without one it is called by its first output that has a name.
        outputs: of the node.
        op_type: of the node.
        attribute: that holds the graph.
        index: the graph's place in the attribute's list.
        count: the length of that list.
    """
    label = name or next((o for o in outputs if o), op_type)
    return f"{label}.{attribute}" + (f"[{index}]" if count > 1 else "")


def nodes_of(root: ModelProto | GraphProto | FunctionProto) -> Iterator[NodeProto]:
    """The nodes of :func:`walk`."""
    return (found for found in walk(root) if isinstance(found, NodeProto))


def graphs_of(root: ModelProto | GraphProto | FunctionProto) -> Iterator[GraphProto]:
    """The graphs of :func:`walk`, without a step for each node: most have no attribute that could hold one."""
    for part in _parts(root):
        if isinstance(part, GraphProto):
            yield part
        for node in part.node:
            if node.attribute:
                for _, _, graph in subgraphs(node):
                    yield from graphs_of(graph)


def keep_nodes(holder: GraphProto | FunctionProto, keeps: Callable[[NodeProto], bool]) -> None:
    """Remove every other node of ``holder`` itself, which is changed."""
    kept = [node for node in holder.node if keeps(node)]
    if len(kept) < len(holder.node):
        del holder.node[:]
        holder.node.extend(kept)


def elements(sizes: Iterable[int | None]) -> int:
    """How many elements a tensor of these sizes has; unknown, negative and empty dimensions count as one."""
    return math.prod(max(size or 1, 1) for size in sizes)


def forget_negative_sizes(model: ModelProto) -> None:
    """Make every negative declared dimension of ``model``, which is changed, one that is not known.

    Some exporters write -1 for it. onnx's inference takes it for a number, and a Slice of it ends the process.
    """
    for graph in graphs_of(model):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for size in value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ():
                if size.dim_value < 0:
                    size.Clear()


def ir_subgraphs(node: ir.Node) -> Iterator[tuple[str, int, int, ir.Graph]]:
    """The graphs that a node carries: name of the attribute, place in its list, length of the list, graph.

    The rest of the walk is onnx_ir's own: ``graph.all_nodes()``, ``model.graphs()``.
    """
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.name, 0, 1, attribute.value
        elif attribute.type == ir.AttributeType.GRAPHS:
            for i, graph in enumerate(attribute.value):
                yield attribute.name, i, len(attribute.value), graph
