"""Which parts of a model were changed, as :mod:`rmsnorm_deploy.model.splice` asks for them."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from rmsnorm_deploy.recognise.scopes import Scope


class Touched:
    """The changed parts so far.

    Args:
        graphs: every graph of the model.

    Attributes:
        nodes: nodes that were changed themselves or carry a changed subgraph.
        functions: local functions that were changed.
        roots: for each graph the main graph or local function that it belongs to.
    """

    def __init__(self, graphs: Iterable[Scope]) -> None:
        self.nodes: set[ir.Node] = set()
        self.functions: set[ir.Function] = set()
        self.roots: dict[ir.Graph | ir.Function, ir.Graph | ir.Function] = {}
        self._holders: dict[ir.Graph | ir.Function, ir.Node] = {}
        for scope in graphs:
            self.roots[scope.graph] = scope.root
            # nodes of a function name its inner graph as theirs
            self.roots.update({n.graph: scope.root for n in scope.nodes[:1] if n.graph is not None})
            if scope.holder is not None:
                self._holders[scope.graph] = scope.holder

    def graph(self, graph: ir.Graph | ir.Function) -> None:
        """Note the nodes and the function through which a changed graph hangs in the model."""
        root = self.roots[graph]
        if isinstance(root, ir.Function):
            self.functions.add(root)
        while (holder := self._holders.get(graph)) is not None and holder.graph is not None:
            self.nodes.add(holder)
            graph = holder.graph

    def node(self, node: ir.Node) -> None:
        """Note a node that was changed itself."""
        self.nodes.add(node)
        if node.graph is not None:
            self.graph(node.graph)
