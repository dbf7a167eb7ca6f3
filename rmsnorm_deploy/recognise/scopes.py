"""The graphs of a model: main graph, subgraphs and local functions, each with the path that names it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from rmsnorm_deploy.model.graphs import ir_subgraphs, scope_part
from rmsnorm_deploy.op import DOMAIN, Op


@dataclasses.dataclass(frozen=True)
class Scope:
    """One graph.

    Attributes:
        name: "" for the main graph; else the function and the nodes and attributes that lead to it.
        graph: the graph, or the local function.
        nodes: its nodes, in order.
        root: the main graph, or the local function, that it belongs to.
        holder: the node that carries it, attribute: under which name, index: at which place of a list.
    """

    name: str
    graph: ir.Graph | ir.Function
    nodes: tuple[ir.Node, ...]
    root: ir.Graph | ir.Function
    holder: ir.Node | None = None
    attribute: str = ""
    index: int = 0


def scopes(model: ir.Model) -> list[Scope]:
    """Every graph of the model, outer ones first; our own function bodies excepted."""
    ours = {op.value for op in Op}
    found = list(_nested("", model.graph, model.graph))
    for function in model.functions.values():
        if function.domain != DOMAIN or function.name not in ours:
            name = f"{function.domain}::{function.name}" if function.domain else function.name
            found.extend(_nested(name, function, function))
    return found


def _nested(
    name: str,
    graph: ir.Graph | ir.Function,
    root: ir.Graph | ir.Function,
    holder: ir.Node | None = None,
    attribute: str = "",
    index: int = 0,
) -> Iterator[Scope]:
    scope = Scope(name, graph, tuple(graph), root, holder, attribute, index)
    yield scope
    for node in scope.nodes:
        if not node.attributes:
            continue
        for attribute_name, i, count, inner in ir_subgraphs(node):
            outputs = (o.name or "" for o in node.outputs)
            part = scope_part(node.name or "", outputs, node.op_type, attribute_name, i, count)
            yield from _nested(f"{name}/{part}" if name else part, inner, root, node, attribute_name, i)
