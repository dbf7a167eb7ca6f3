"""Residual streams: what LayerNorms read, what that is a sum of, and whether all of it can lose its mean.

A stream is found from a LayerNorm, backwards through the operators that only add or move to what writes into it, and
forwards to everything that reads it. A value that cannot be centred where it is made becomes a source, which is centred
as it enters the stream.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from rmsnorm_deploy.converting.at import Part
from rmsnorm_deploy.converting.contents import spoilt
from rmsnorm_deploy.converting.moves import ahead, behind
from rmsnorm_deploy.converting.norms import Norm
from rmsnorm_deploy.converting.stream import Constant, How, Obstacle, Source, Stream
from rmsnorm_deploy.converting.writers import is_leaf, tensor_of, uneditable, vector_behind
from rmsnorm_deploy.recognise.facts import Facts, node_name
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.variance import LAYER_NORMS

_SHAPES = ("Shape", "Size")
"""Operators that read of a value only what centring does not change."""


class Finder:
    """Finds streams.

    Args:
        facts: what is known of the model.
        norms: the LayerNorms that may read streams, in graph order.
        helpers: nodes that read what is normalised for those and for nothing else.
    """

    def __init__(self, facts: Facts, norms: Iterable[Norm], helpers: Collection[ir.Node]) -> None:
        self._facts = facts
        self._helpers = helpers
        self._by_node: Mapping[ir.Node, Norm] = {norm.node: norm for norm in norms}
        self._place = {node: i for i, node in enumerate(self._by_node)}
        self._looked_at: dict[tuple[ir.Value, How], tuple[str, bool]] = {}

    def stream(self, first: Norm, sources: Mapping[ir.Value, Source]) -> Stream:
        """The stream that ``first`` reads.

        Args:
            first: a LayerNorm.
            sources: values that are known not to be centred where they are made.
        """
        known = dict(sources)
        while True:
            walk = _Walk(self._facts, self._by_node, self._helpers, known, self._looked_at)
            walk.run(first)
            if walk.obstacle is not None or not walk.new:
                break
            known.update(walk.new)
        walk.stream.obstacle = walk.obstacle
        walk.stream.norms.sort(key=lambda norm: self._place[norm.node])
        return walk.stream


class _Walk:
    """One walk over a stream, with the sources that are known so far.

    Attributes:
        stream: what was found.
        new: sources that were found; the walk has to be made again with them.
        obstacle: why there is no stream.
    """

    def __init__(
        self,
        facts: Facts,
        norms: Mapping[ir.Node, Norm],
        helpers: Collection[ir.Node],
        sources: Mapping[ir.Value, Source],
        looked_at: dict[tuple[ir.Value, How], tuple[str, bool]],
    ) -> None:
        self._facts, self._norms, self._helpers, self._known = facts, norms, helpers, sources
        self._looked_at = looked_at
        self.stream = Stream()
        self.new: dict[ir.Value, Source] = {}
        self.obstacle: Obstacle | None = None
        self._work: list[ir.Value] = []
        self._cuts: dict[ir.Value, tuple[ir.Value, int]] = {}
        self._parts: dict[ir.Value, list[ir.Value]] = {}
        self._bad: dict[ir.Value, tuple[str, str]] = {}

    def run(self, first: Norm) -> None:
        self._enter(first.x, How(-1), None)
        while self._work:
            value = self._work.pop()
            if value in self.stream.sources:
                self._norms_of_source(value)
                continue
            self._backward(value)
            if not self.stream.values[value].scales:
                self._forward(value)
        # what multiplies by the same scale may be met later than what it reads
        for value, how in list(self.stream.values.items()):
            if how.scales and value not in self.stream.sources:
                self._forward(value)
        for value, (reason, node) in self._bad.items():
            self._cannot(value, reason, node)

    # -- what a value is made of ----------------------------------------------------------------------------------

    def _enter(
        self, value: ir.Value, how: How, cut: tuple[ir.Value, int] | None, edge: tuple[ir.Node, int] | None = None
    ) -> None:
        """``value`` has to be centred.

        Args:
            value: of a stream, or a constant.
            how: in which way.
            cut: what is centred instead if it cannot be, with its axis; None: the value itself.
            edge: what reads it.
        """
        cut = (value, how.axis) if cut is None else cut
        if self._facts.is_constant_expression(value) and value not in self._known:
            self._constant(value, how, cut, edge)
            return
        if edge is not None:
            self.stream.edges.setdefault(value, set()).add(edge)
        there = self.stream.values.get(value)
        if there is not None:
            if there != how:
                self._cut(cut, f"'{value.name}' would have to be centred in two ways", _name_of(value))
            return
        self.stream.values[value] = how
        self._cuts[value] = cut
        if value in self._known:
            source = self._known[value]
            is_flat = -how.axis > (self._facts.rank(value) or 0)
            self.stream.sources[value] = dataclasses.replace(source, axis=how.axis, is_flat=is_flat)
            if how.scales:
                self._cut(cut, source.reason, source.node)
        self._work.append(value)

    def _backward(self, value: ir.Value) -> None:
        node, how, cut = value.producer(), self.stream.values[value], self._cuts[value]
        if node is None:
            self._cut(cut, f"'{value.name}' is an input of its graph", value.name or "")
            return
        parts = self._parts_of(node, value, how, cut)
        for part in parts:
            inner = node.inputs[part.index]
            assert inner is not None
            scales = how.scales if part.scale is None else (*how.scales, part.scale)
            if part.scale is not None:
                self.stream.scaled[value] = part.index
            # a table is not centred as a whole where a few of its rows are read
            rows = len(parts) == 1 and self._facts.is_constant_expression(inner)
            self._parts.setdefault(value, []).append(inner)
            self._enter(
                inner, How(part.axis, scales), cut if scales or part.is_weight or rows else None, (node, part.index)
            )

    def _parts_of(self, node: ir.Node, value: ir.Value, how: How, cut: tuple[ir.Value, int]) -> list[Part]:
        try:
            if node.op_type in LAYER_NORMS:
                raise Refusal("the result of a norm has a mean of its own (post-norm)")
            parts = list(behind(self._facts, node, value.index() or 0, how.axis))
        except Refusal as refusal:
            self._cut(cut, f"{node.op_type} '{node_name(node)}' writes into it, and {refusal.reason}", node_name(node))
            return []
        for part in parts:
            inner = node.inputs[part.index]
            if inner is None:
                self._cut(cut, f"{node.op_type} '{node_name(node)}' lacks an input", node_name(node))
                return []
            if part.scale is not None and vector_behind(part.scale) is None:
                self._cut(cut, f"'{part.scale.name}', which scales features, is made of several", node_name(node))
                return []
            if part.is_weight and not self._facts.is_constant_expression(inner):
                # a product of two values that are computed: as right, but then it is no weight that is edited
                self._cut(cut, f"'{inner.name}', by which it multiplies, is not constant", node_name(node))
                return []
        return parts

    def _constant(self, value: ir.Value, how: How, cut: tuple[ir.Value, int], edge: tuple[ir.Node, int] | None) -> None:
        """A constant: down to the tensors that it is made of."""
        there = self.stream.constants.get((value, how))
        constant = self.stream.constants.setdefault((value, how), Constant(cut))
        if edge is not None:
            constant.edges.add(edge)
        if there is not None:
            return
        if is_leaf(value):
            reason = uneditable(self._facts, value, how.axis, bool(how.scales)) or self._spoilt(value, how)
            if reason:
                self._cut(cut, reason, value.name or "")
            return
        node = value.producer()
        assert node is not None
        for part in self._parts_of(node, value, how, cut):
            inner = node.inputs[part.index]
            assert inner is not None
            scales = how.scales if part.scale is None else (*how.scales, part.scale)
            if part.scale is not None:
                self.stream.scaled[value] = part.index
            constant.parts[part.index] = How(part.axis, scales)
            self._enter(inner, constant.parts[part.index], cut, (node, part.index))

    def _spoilt(self, value: ir.Value, how: How) -> str:
        tensor = tensor_of(value)
        if (value, how) not in self._looked_at:
            self._looked_at[value, how] = ("", False) if tensor is None else spoilt(tensor, value.name, how)
        reason, for_good = self._looked_at[value, how]
        if for_good:
            self.obstacle = self.obstacle or Obstacle(reason, value.name or "")
        return reason

    def _cut(self, cut: tuple[ir.Value, int], reason: str, node: str) -> None:
        value, axis = cut
        if value in self._known:
            self.obstacle = self.obstacle or Obstacle(reason, node)
        elif self._facts.rank(value) is None or self._facts.dtype(value) is None:
            # it would have to be centred as it is, along an axis that it may not have
            unknown = f"{reason}; the rank or the type of '{value.name}' is not known"
            self.obstacle = self.obstacle or Obstacle(unknown, node)
        else:
            self.new.setdefault(value, Source(value, axis, reason, node))

    # -- what reads it --------------------------------------------------------------------------------------------

    def _forward(self, value: ir.Value) -> None:
        how = self.stream.values[value]
        if value.is_graph_output():
            self._bad[value] = f"'{value.name}' is an output of the graph", value.name or ""
        for node, index in value.uses():
            reason = self._read(value, how, node, index)
            if reason:
                text = f"{node.op_type} '{node_name(node)}' reads '{value.name}' {reason}"
                self._bad.setdefault(value, (text, node_name(node)))

    def _read(self, value: ir.Value, how: How, node: ir.Node, index: int) -> str:
        """Follow one reader; what is wrong with it, or nothing."""
        norm = self._norms.get(node)
        if norm is not None and index == norm.index and how == How(-1):
            self.stream.edges.setdefault(value, set()).add((node, index))
            if norm not in self.stream.norms:
                self.stream.norms.append(norm)
            return ""
        if node in self._helpers or (node.op_type in _SHAPES and node.domain == ""):
            return ""
        if how.scales:
            # only the chain that leads to its scale may read it
            outputs = [o for o in node.outputs if o in self.stream.values and o not in self._known]
            parts = [p for o in outputs for p in self._quietly(node, o)]
            return "" if any(p.index == index for p in parts) else "without the scale behind it"
        found = ahead(self._facts, node, index, how.axis)
        if not found:
            return "and needs its mean"
        for i, axis in found:
            output = node.outputs[i]
            if output in self._known:
                return "and needs its mean"  # what it gives is centred afterwards
            if output not in self.stream.values:
                self._enter(output, How(axis), None)
        return ""

    def _quietly(self, node: ir.Node, output: ir.Value) -> list[Part]:
        try:
            return list(behind(self._facts, node, output.index() or 0, self.stream.values[output].axis))
        except Refusal:
            return []

    def _norms_of_source(self, value: ir.Value) -> None:
        """LayerNorms of a value that is centred for the stream read what was centred."""
        for node, index in value.uses():
            norm = self._norms.get(node)
            if norm is not None and index == norm.index and self.stream.values[value] == How(-1):
                self.stream.edges.setdefault(value, set()).add((node, index))
                if norm not in self.stream.norms:
                    self.stream.norms.append(norm)

    def _cannot(self, value: ir.Value, reason: str, node: str) -> None:
        """``value`` is read by something that needs its mean: a writer is centred behind it; a stream stays."""
        if value in self.new:
            return
        work, seen = [value], {value}
        while work:
            current = work.pop()
            if any(n in self._norms and i == self._norms[n].index for n, i in current.uses()):
                self.obstacle = self.obstacle or Obstacle(reason, node)
                return
            for inner in self._parts.get(current, ()):
                if inner not in seen and inner in self.stream.values and inner not in self.stream.sources:
                    seen.add(inner)
                    work.append(inner)
        cut = self._cuts[value]
        self._cut(cut, reason, node)


def _name_of(value: ir.Value) -> str:
    producer = value.producer()
    return (value.name or "") if producer is None else node_name(producer)
