"""How the grammar is applied: from every reduction outwards, over noise, in every graph, to the furthest end."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir

from rmsnorm_deploy.model.graphs import AI_ONNX
from rmsnorm_deploy.model.skeleton import ir_skeleton, without_weights
from rmsnorm_deploy.recognise import checks, fused_forms, grammar
from rmsnorm_deploy.recognise.bindings import MOST_CALLS, Binding, Bindings, agreed, bindings_of, by_graph
from rmsnorm_deploy.recognise.ending import finish
from rmsnorm_deploy.recognise.facts import Facts, node_name
from rmsnorm_deploy.recognise.gate import with_gate
from rmsnorm_deploy.recognise.inference import Inferred
from rmsnorm_deploy.recognise.match import Match, Miss, Site, Stage
from rmsnorm_deploy.recognise.neighbours import Neighbour
from rmsnorm_deploy.recognise.quantising import with_quantising
from rmsnorm_deploy.recognise.reduction import open_candidate
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.scopes import Scope, scopes
from rmsnorm_deploy.recognise.state import State
from rmsnorm_deploy.recognise.step import Step
from rmsnorm_deploy.recognise.variance import is_variance

_MAX_NODES = 200
"""Longest chain of nodes after a reduction; a guard against degenerate graphs."""
_MOST_WAYS = 2000
"""Uses of values that are followed from one reduction: their number doubles wherever a value is used twice."""
_MOST_WAYS_IN_ALL = 20_000
"""The same for a whole model, beside those that every reduction may take."""
_ORDINARY_WAYS = 50


def recognise(
    model: ir.Model,
    proto: onnx.ModelProto | None = None,
    graphs: list[Scope] | None = None,
    declared: Sequence[onnx.ValueInfoProto] = (),
    also: Collection[Neighbour] = (),
) -> tuple[list[Match], list[Miss]]:
    """Every norm of ``model``, and every candidate that is not one, both in graph order. The model is not changed.

    Args:
        model: the model.
        proto: the same model as a proto, where the caller has one; it is not changed.
        graphs: ``scopes(model)``, where the caller has them.
        declared: types and shapes of the main graph's values that ``model`` and ``proto`` were made without.
        also: neighbours of norms that are taken in; others get a note.
    """
    graphs = scopes(model) if graphs is None else graphs
    starts = candidates(graphs)
    if not starts:
        return [], []
    bindings = bindings_of(graphs)

    def facts_with(chosen: Mapping[ir.Function, Binding]) -> Facts:
        return _facts(model, proto, graphs, declared, by_graph(graphs, chosen))

    first = {function: found[0] for function, found in bindings.items()}
    facts = facts_with(first)
    # the same functions with the attributes of their other calls
    others = {
        function: [facts_with({**first, function: binding}) for binding in found[1:MOST_CALLS]]
        for function, found in bindings.items()
        if len(found) > 1 and any(scope.root is function for scope, _ in starts)
    }
    matches: list[Match] = []
    misses: list[Miss] = []
    ways = _MOST_WAYS_IN_ALL

    def run(candidate: _Candidate) -> list[Match | Miss]:
        nonlocal ways
        candidate.ways = allowed = min(_MOST_WAYS, ways + _ORDINARY_WAYS)
        results = candidate.run()
        ways -= max(0, allowed - candidate.ways - _ORDINARY_WAYS)
        return results

    for scope, node in starts:
        candidate = _Candidate(facts, node, scope.name)
        results = run(candidate)
        if results and isinstance(scope.root, ir.Function) and scope.root in others:
            more = [run(_Candidate(other, node, scope.name)) for other in others[scope.root]]
            results = agreed([results, *more], bindings[scope.root], candidate.site)
        for result in results:
            if isinstance(result, Match):
                matches.append(_with_gate(facts, result, also))
            else:
                misses.append(result)
    return [_with_quantising(facts, match, also) for match in _without_overlap(matches)], misses


def _with_gate(facts: Facts, match: Match, also: Collection[Neighbour]) -> Match:
    gated = with_gate(facts, match)
    if gated is match or Neighbour.GATES in also:
        return gated
    return _noted(match, "its gate stays in nodes of its own: GatedRMSNorm takes it in", Neighbour.GATES)


def _with_quantising(facts: Facts, match: Match, also: Collection[Neighbour]) -> Match:
    quantised = with_quantising(facts, match)
    if quantised.quantised is None or Neighbour.QUANTIZERS in also:
        return quantised
    return _noted(match, "what quantises it stays a node of its own: an operator takes it in", Neighbour.QUANTIZERS)


def _noted(match: Match, text: str, neighbour: Neighbour) -> Match:
    note = f"{text} where '{neighbour.value}' are asked for as well"
    return dataclasses.replace(match, notes=(*match.notes, note))


def facts_of(
    model: ir.Model,
    proto: onnx.ModelProto | None = None,
    graphs: Sequence[Scope] | None = None,
    declared: Sequence[onnx.ValueInfoProto] = (),
) -> Facts:
    """What is known of the values of ``model``. The arguments are those of :func:`recognise`."""
    graphs = scopes(model) if graphs is None else graphs
    first = {function: found[0] for function, found in bindings_of(graphs).items()}
    return _facts(model, proto, graphs, declared, by_graph(graphs, first))


def _facts(
    model: ir.Model,
    proto: onnx.ModelProto | None,
    graphs: Sequence[Scope],
    declared: Sequence[onnx.ValueInfoProto],
    bound: Bindings,
) -> Facts:
    inferred = Inferred(model, lambda: _skeleton(model, proto, declared), bound)
    for scope in graphs:
        if scope.holder is not None and isinstance(scope.graph, ir.Graph):
            inferred.pair(scope.graph, scope.holder, scope.attribute, scope.index)
    return Facts(model, inferred, declared, bound)


def _skeleton(
    model: ir.Model, proto: onnx.ModelProto | None, declared: Sequence[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    """``model`` as a proto without weights, with all that its file says of values."""
    skeleton = ir_skeleton(model) if proto is None else without_weights(proto)
    skeleton.graph.value_info.extend(declared)
    return skeleton


_STARTS = frozenset(grammar.OPENINGS) | fused_forms.OPERATORS


def candidates(graphs: Iterable[Scope]) -> list[tuple[Scope, ir.Node]]:
    """The nodes at which recognition starts, with the graphs that they stand in."""
    return [(scope, node) for scope in graphs for node in scope.nodes if node.op_type in _STARTS]


def _without_overlap(matches: list[Match]) -> list[Match]:
    """Each output is replaced once, and an addition or a product with a gate is taken in by the first that wants it."""
    kept: dict[ir.Value, Match] = {}
    sums: set[ir.Value] = set()
    inner: set[ir.Node] = set()
    ends: set[ir.Node | None] = set()
    for match in matches:
        if match.gate is not None and match.plain is not None:
            # a product may stand behind one norm and in front of another
            own = set(match.nodes).difference(match.plain.nodes)
            end = match.output.producer()
            if match.output in kept or end in inner or own & ends:
                match = match.plain
            else:
                inner |= own
                ends.add(end)
        if match.output in kept:
            continue
        total, plain = match.sum, match.plain
        if total is not None and plain is not None:
            if total in sums:
                match = plain
            else:
                sums.add(total)
        kept[match.output] = match
    return list(kept.values())


_NEXT = {
    stage: ", ".join(sorted({op for a in grammar.ALTERNATIVES if stage in a.stages for op in a.ops})) for stage in Stage
}
"""The operators that may follow at each stage."""


class _Candidate:
    """One reduction, followed as far as the grammar goes."""

    def __init__(self, facts: Facts, node: ir.Node, scope: str) -> None:
        self.facts = facts
        self.node = node
        self.site = Site(node_name(node), node.op_type, scope)
        self.cast_x = False
        # the refusal that got furthest: (stage, length of the path, weight), then what it says and where
        self.furthest: tuple[tuple[int, int, int], Refusal, ir.Node] | None = None
        self.stage = Stage.REDUCTION
        self.ways = _MOST_WAYS

    def run(self) -> list[Match | Miss]:
        """The norms, or why there is none; a file whose parts contradict each other does not stop the rest."""
        try:
            return self._followed()
        except Exception as error:  # a damaged constant, attribute or type can be wrong in any way
            reason = f"cannot be read: {type(error).__name__}: {str(error)[:200]}"
            hint = "see what onnx.checker.check_model(path) says; if it says nothing, please report this"
            stage = max(self.stage, Stage.SQUARE)  # it may be a norm, so it counts as one that was missed
            return [Miss(self.site, stage, reason, self.site.node, hint=hint)]

    def _followed(self) -> list[Match | Miss]:
        opened = fused_forms.open_fused(self.facts, self.site, self.node)
        if isinstance(opened, Match):
            return [opened]
        if isinstance(opened, Miss):
            return [opened]
        if opened is not None:
            self.cast_x = True
            state = opened
        elif self.node.domain in AI_ONNX and self.node.op_type in grammar.OPENINGS:
            try:
                state = open_candidate(self.facts, self.node)
            except Refusal as refusal:
                self.stage = refusal.stage
                self._refused(refusal, self.node, refusal.stage, 0)
                return [self._miss()]
        else:
            return []
        found = self._explore(state)
        if self.ways < 0 and not found:
            reason = "its values are used in more ways than are followed"
            return [Miss(self.site, self.stage, reason, self.site.node)]
        return list(found) if found else [self._miss()]

    def _explore(self, state: State) -> list[Match]:
        """The norms that end at or after ``state.value``; none if nothing there is expressible."""
        self.stage = max(self.stage, state.stage)
        self.ways -= 1
        if len(state.nodes) > _MAX_NODES or self.ways < 0:
            return []
        value = state.value
        uses = [(node, index) for node, index in value.uses()]
        complete = bool(uses) and not value.is_graph_output()
        branches: list[Match] = []
        for node, index in sorted(uses, key=lambda use: (node_name(use[0]), use[1])):
            found: list[Match] = []
            if node.graph is self.node.graph and node not in state.nodes:  # it may read what comes of it
                for following in self._steps(state, node, index):
                    found = self._explore(following)
                    if found:
                        break
            complete = complete and bool(found)
            branches.extend(found)
        if state.stage < Stage.NORMALISED or complete:
            # before the product every use may lead to a norm of its own; what does not keeps its nodes
            return branches
        try:
            return [finish(self.facts, self.site, state, self.cast_x and not branches)]
        except Refusal as refusal:
            self._refused(refusal, state.nodes[-1], state.stage, len(state.path))
            return branches

    def _steps(self, state: State, node: ir.Node, index: int) -> Iterator[State]:
        """What the grammar makes of one use of the value."""
        if node.domain not in AI_ONNX or not node.outputs:
            return
        is_cast = node.op_type in ("Cast", "CastLike") and bool(state.roundings)
        if checks.passes_unchanged(self.facts, node, index) and not (is_cast and self._retypes(state, node)):
            yield state.moved(value=node.outputs[0], nodes=(*state.nodes, node), same=(*state.same, state.value))
            return
        known = False
        for alternative in grammar.ALTERNATIVES:
            if node.op_type not in alternative.ops or state.stage not in alternative.stages:
                continue
            known = True
            try:
                following = alternative.apply(Step(self.facts, state, node, index))
            except Refusal as refusal:
                self._refused(refusal, node, state.stage, len(state.path))
                continue
            yield following.moved(
                value=node.outputs[0],
                same=(),
                nodes=(*following.nodes, node),
                path=(*following.path, alternative.label),
            )
        if not known:
            unknown = Refusal(
                f"goes into {node.op_type}, which is not part of a norm here",
                expected=_NEXT[state.stage],
                found=node.op_type,
            )
            unknown.weight = 0
            self._refused(unknown, node, state.stage, len(state.path))

    def _retypes(self, state: State, node: ir.Node) -> bool:
        """Whether a Cast that the file's types call idle changes the type that the chain really has."""
        return state.roundings[-1] != self.facts.dtype(node.outputs[0])

    def _refused(self, refusal: Refusal, node: ir.Node, stage: Stage, length: int) -> None:
        key = (int(stage), length, refusal.weight)
        if self.furthest is None or key > self.furthest[0]:
            self.furthest = (key, refusal, node)

    def _miss(self) -> Miss:
        if self.furthest is None:
            return Miss(self.site, self.stage, "no node that could be part of a norm uses its value", self.site.node)
        _, refusal, node = self.furthest
        return Miss(
            self.site,
            self.stage,
            refusal.reason,
            node_name(node),
            refusal.expected,
            refusal.found,
            refusal.hint,
            other=self.stage >= Stage.SQUARE and is_variance(self.facts, self.node),
        )
