"""The part of a model that a drawing shows: a norm before, after, or what stands around a near-miss."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import onnx_ir as ir

from rmsnorm_deploy.fusing.report import FusedNorm
from rmsnorm_deploy.model.graphs import AI_ONNX
from rmsnorm_deploy.recognise.facts import node_name
from rmsnorm_deploy.recognise.match import Miss
from rmsnorm_deploy.recognise.scopes import scopes
from rmsnorm_deploy.report.layout import Box, Picture
from rmsnorm_deploy.report.text import counted, visible
from rmsnorm_deploy.report.values import NAME, attributes, constant, kind, named

MOST_NODES = 24
"""In one drawing."""
_STEPS = 4
"""From a near-miss, so far around it."""
_AROUND = 14
"""Nodes of a near-miss."""


class Places:
    """Finds nodes of one model by what a report calls them.

    Args:
        model: the model; it is not changed.
    """

    def __init__(self, model: ir.Model) -> None:
        self._nodes: dict[tuple[str, str], ir.Node] = {}
        self._makers: dict[tuple[str, str], ir.Node] = {}
        self._order: dict[ir.Node, int] = {}
        self.names: dict[str, set[str]] = {}
        for scope in scopes(model):
            for node in scope.nodes:
                self._order[node] = len(self._order)
                self._nodes.setdefault((scope.name, node_name(node)), node)
                self.names.setdefault(scope.name, set()).add(node_name(node))
                for value in node.outputs:
                    if value.name:
                        self._makers.setdefault((scope.name, value.name), node)

    def before(self, norm: FusedNorm) -> Picture | None:
        """The nodes that a norm was made of; None where they are not in this model."""
        own = {*norm.removed, *norm.kept}
        last = self._makers.get((norm.scope, norm.output))
        if last is None or node_name(last) not in own:
            return None
        nodes = self._back(last, lambda node: node_name(node) in own)
        there = (self._nodes.get((norm.scope, name)) for name in (*norm.removed, *norm.kept))
        nodes |= dict.fromkeys(node for node in there if node is not None)
        # such as a Cast that the norm looks through and that stays for others
        behind = {u.node for n in nodes for v in n.outputs for u in v.uses()}
        front = {p for n in nodes for v in n.inputs if v is not None and (p := v.producer()) is not None}
        between = (n for n in behind & front if n.graph is last.graph)
        nodes |= dict.fromkeys(sorted(between, key=lambda n: self._order.get(n, 0)))
        return self._picture(nodes, {})

    def after(self, norm: FusedNorm, old: Collection[str]) -> Picture | None:
        """What stands in this model for a norm.

        Args:
            norm: the norm.
            old: names of the nodes that the original has in the same graph.
        """
        last = self._makers.get((norm.scope, norm.output))
        if last is None:
            return None
        edge = {norm.x, norm.residual, norm.scale}

        def new(node: ir.Node) -> bool:
            return node_name(node) not in old and not any(v.name in edge for v in node.outputs)

        nodes = self._back(last, new)
        return self._picture(nodes, {}, new=nodes)

    def around(self, miss: Miss) -> Picture | None:
        """What stands around a near-miss: where recognition began, where it stopped, and what is between and beside."""
        start = self._nodes.get((miss.site.scope, miss.site.node))
        if start is None:
            return None
        stop = self._nodes.get((miss.site.scope, miss.node)) if miss.node else None
        marks = {start: "here it began"}
        if stop is not None:
            marks[stop] = "here it stopped" if stop is not start else "here it began and stopped"
        near = [start, *([stop] if stop is not None and stop is not start else [])]
        for node in near[:]:
            near += self._near(node, near, _AROUND // len(marks))
        return self._picture(dict.fromkeys(near), marks)

    def _near(self, start: ir.Node, known: Collection[ir.Node], most: int) -> list[ir.Node]:
        """Nodes around one, the nearest first, those behind it before those in front of it."""
        found: list[ir.Node] = []
        seen, ring = {*known}, [start]
        for _ in range(_STEPS):
            following: list[ir.Node] = []
            for node in ring:
                beside = [u.node for v in node.outputs for u in v.uses()]
                beside += [p for v in node.inputs if v is not None and (p := v.producer()) is not None]
                for other in beside[: 4 * most]:
                    if other not in seen and other.graph is start.graph and other.op_type != "Constant":
                        seen.add(other)
                        following.append(other)
            found += following
            ring = following
            if len(found) >= most:
                break
        return found[:most]

    def _back(self, last: ir.Node, wanted: Callable[[ir.Node], bool]) -> dict[ir.Node, None]:
        """``last`` and what leads to it, as long as that is wanted."""
        found, waiting = {last: None}, [last]
        while waiting and len(found) < 4 * MOST_NODES:
            for value in waiting.pop().inputs:
                node = value.producer() if value is not None else None
                if node is not None and node not in found and node.graph is last.graph and wanted(node):
                    found[node] = None
                    waiting.append(node)
        return found

    def _picture(
        self, nodes: Iterable[ir.Node], marks: Mapping[ir.Node, str], new: Collection[ir.Node] = ()
    ) -> Picture:
        shown = [n for n in nodes if n.op_type != "Constant" or n in marks]
        drawn = sorted(shown[:MOST_NODES], key=lambda n: self._order.get(n, 0))
        return _Pen(drawn, marks, new).picture(len(shown) - len(drawn))


class _Pen:
    """Makes boxes of nodes, and of the values that come from outside of them or go there."""

    def __init__(self, nodes: list[ir.Node], marks: Mapping[ir.Node, str], new: Collection[ir.Node]) -> None:
        self._nodes, self._marks, self._new = nodes, marks, new
        self._boxes: list[Box] = []
        self._edges: list[tuple[int, int]] = []

    def picture(self, left_out: int) -> Picture:
        """The picture of the nodes."""
        places: dict[ir.Value, int] = {}
        inside = {v for n in self._nodes for v in n.outputs}
        for node in self._nodes:
            read = [(i, v) for i, v in enumerate(node.inputs) if v is not None]
            lines = []
            for i, value in read:
                number = constant(value) if value not in inside else None
                if number is not None:
                    lines.append(visible(f"input {i + 1} = {number}", NAME + 4))
                elif value not in places:
                    places[value] = self._add(Box(tuple(t for t in (named(value), kind(value)) if t), "value"))
            at = self._add(self._box(node, lines))
            self._edges += [(places[v], at) for _, v in read if v in places]
            places.update((v, at) for v in node.outputs)
        for node in self._nodes:
            for value in node.outputs:
                self._outgoing(value, places)
        return Picture(tuple(self._boxes), tuple(self._edges), left_out)

    def _add(self, box: Box) -> int:
        self._boxes.append(box)
        return len(self._boxes) - 1

    def _box(self, node: ir.Node, lines: list[str]) -> Box:
        domain = "" if node.domain in AI_ONNX else f"{visible(node.domain, NAME // 2)}::"
        mark = [f"\N{BLACK RIGHT-POINTING SMALL TRIANGLE} {self._marks[node]}"] if node in self._marks else []
        kind = "stop" if node in self._marks else "new" if node in self._new else "op"
        texts = (f"{domain}{visible(node.op_type, NAME)}", visible(node_name(node), NAME), *lines, *attributes(node))
        return Box((*texts[:12], *mark), kind)

    def _outgoing(self, value: ir.Value, places: Mapping[ir.Value, int]) -> None:
        outside = sum(u.node not in self._nodes for u in value.uses())
        if not outside and not value.is_graph_output():
            return
        to = ["an output"] if value.is_graph_output() else []
        to += [counted(outside, "reader")] if outside else []
        at = self._add(Box((named(value), f"to {' and '.join(to)}"), "value"))
        self._edges.append((places[value], at))
