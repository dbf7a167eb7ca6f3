"""What nothing uses any more."""

from __future__ import annotations

import collections
from collections.abc import Iterable

import onnx_ir as ir


def remove_dead(candidates: Iterable[ir.Node]) -> set[ir.Node]:
    """Remove those candidates that nothing uses any more, and what only they used. Returns the removed nodes."""
    removed: set[ir.Node] = set()
    work = collections.deque(candidates)
    while work:
        node = work.popleft()
        if node in removed or node.graph is None:
            continue
        if any(o.uses() or o.is_graph_output() for o in node.outputs):
            continue
        inputs = [v for v in node.inputs if v is not None]
        node.graph.remove(node, safe=True)
        removed.add(node)
        for value in inputs:
            producer = value.producer()
            if producer is not None:
                work.append(producer)
            elif value.is_initializer() and not (value.uses() or value.is_graph_input() or value.is_graph_output()):
                graph = value.graph
                if isinstance(graph, ir.Graph) and value.name is not None and value.name in graph.initializers:
                    del graph.initializers[value.name]
    return removed
