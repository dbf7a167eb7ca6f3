"""A plan carried out: each norm's nodes become one, in place."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import onnx
import onnx_ir as ir

from rmsnorm_deploy.fusing.clearing import clear, holds_ours
from rmsnorm_deploy.fusing.copies import make_copies
from rmsnorm_deploy.fusing.draft import Draft
from rmsnorm_deploy.fusing.forms import DEFAULT, Form
from rmsnorm_deploy.fusing.names import Constants, Names
from rmsnorm_deploy.fusing.plan import Plan
from rmsnorm_deploy.fusing.provenance import sign
from rmsnorm_deploy.fusing.report import FusedNorm
from rmsnorm_deploy.fusing.touched import Touched
from rmsnorm_deploy.model.dead import remove_dead
from rmsnorm_deploy.model.graphs import AI_ONNX, ir_subgraphs, opset_of
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.recognise.facts import node_name
from rmsnorm_deploy.recognise.match import Match


@dataclasses.dataclass(frozen=True)
class Changes:
    """What carrying out a plan has changed.

    Attributes:
        fused: the norms, in graph order.
        touched: nodes that are new, were changed themselves or carry a changed subgraph.
        functions: local functions that were changed or are new.
        bodies: function bodies that are new, as they are to stand in the file.
        renamed: values of the main graph and its subgraphs that have another name, by the old one.
    """

    fused: tuple[FusedNorm, ...] = ()
    touched: frozenset[ir.Node] = frozenset()
    functions: frozenset[ir.Function] = frozenset()
    bodies: tuple[onnx.FunctionProto, ...] = ()
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether anything has changed."""
        return bool(self.fused or self.touched or self.functions)


def apply(plan: Plan) -> Changes:
    """Write the norms of ``plan`` into its model, in place. What was mended before counts as changed, too."""
    touched, mended = Touched(plan.scopes), plan.mended
    if not plan.matches:
        if mended and plan.form is Form(DEFAULT) and holds_ours(plan.model):
            sign(plan.model, plan.form, plan.task)
        return Changes((), mended.touched, mended.functions, mended.bodies, mended.renamed)
    if plan.opset != plan.given_opset:
        name = next((n for n in AI_ONNX if n in plan.model.opset_imports), "")
        plan.model.opset_imports[name] = plan.opset
    # names are taken before anything changes: a value that another norm takes over loses its own
    descriptions = plan.described()
    rewriter = _Rewriter(plan, touched)
    norms = [rewriter.replace(match) for match in plan.matches]
    removed = remove_dead([n for m in plan.matches for n in reversed(m.nodes)])
    rewriter.sort()
    if plan.ours:
        clear(plan.model)
    bodies = _supply(plan)
    rewriter.copy_functions(plan)
    sign(plan.model, plan.form, plan.task)
    fused = tuple(
        dataclasses.replace(
            text,
            node=node_name(norm),
            removed=tuple(name for name, n in zip(text.removed, match.nodes, strict=True) if n in removed),
            kept=tuple(name for name, n in zip(text.removed, match.nodes, strict=True) if n not in removed),
        )
        for texts, match, norm in zip(descriptions, plan.matches, norms, strict=True)
        for text in texts
    )
    return Changes(
        fused,
        mended.touched | touched.nodes | frozenset(norms),
        mended.functions | touched.functions | frozenset(function for _, function in bodies),
        (*mended.bodies, *(body for body, _ in bodies)),
        mended.renamed,
    )


class _Rewriter:
    """Replaces norm after norm, and remembers what stands for what since then."""

    def __init__(self, plan: Plan, touched: Touched) -> None:
        self._touched = touched
        self._writer = plan.writer
        self._names = Names(plan.scopes)
        self._constants = Constants(self._names)
        self._model = plan.model
        self._successors: dict[ir.Value, ir.Value] = {}
        self._unsorted: set[ir.Graph | ir.Function] = set()

    def replace(self, match: Match) -> ir.Node:
        """Put the form's nodes in front of the last of the match's, and give them its uses. Returns the norm."""
        graph = match.end.graph
        assert graph is not None
        root = self._touched.roots[graph]
        self._touched.graph(graph)
        match = self._current(match)
        constant = functools.partial(self._constants.value, root)
        own = {}
        if isinstance(root, ir.Function):  # it imports versions of its own
            _bring_up(root, opset_of(self._model))
            own = {"": opset_of(root)}
        draft = Draft(match, self._names.unique, constant, {**self._model.opset_imports, **own})
        made = draft.as_declared(self._writer.emit(match, draft))
        anchor = match.end
        if match.sum is not None and match.sum.producer() is not anchor:
            # readers of the sum may stand before the end of the chain
            anchor = match.sum.producer() or anchor
            if any(v.producer() is not None for v in (match.scale, match.bias) if v is not None) or len(made.nodes) > 1:
                self._unsorted.add(graph)  # a computed scale may stand after the addition
        quantised = match.quantised
        if quantised is not None and any(v and v.producer() for v in (quantised.scale, quantised.zero_point)):
            self._unsorted.add(graph)  # they may stand behind the norm
        graph.insert_before(anchor, made.nodes)
        for reader in match.shapes if match.gate is not None else ():
            reader.replace_input_with(0, match.x)  # which has the product's shape, and stays
            self._touched.node(reader)
        if quantised is None or quantised.keeps_y:
            for value in match.same:
                self._successors[value] = made.y  # what noise hides behind: a later norm may have looked through it
            self._take_over(match.output, made.y)
        if quantised is not None:
            for outputs in quantised.outputs:
                for old, new in zip(outputs, made.quantised, strict=False):
                    self._take_over(old, new, first=outputs is quantised.outputs[0])
        if match.sum is not None and made.sum is not None:
            self._take_over(match.sum, made.sum)
        return made.norm

    def copy_functions(self, plan: Plan) -> None:
        """One function for each epsilon, where the calls of one give several."""
        made, calls = make_copies(plan.model, plan.scopes, plan.copies)
        self._touched.functions.update(made)
        for node in calls:
            self._touched.node(node)

    def sort(self) -> None:
        """Bring the nodes of graphs into order in which a norm was put in front of what it reads."""
        for graph in self._unsorted:
            if not _is_ordered(graph):
                graph.sort()

    def _current(self, match: Match) -> Match:
        """The match with every value that an earlier replacement took over exchanged for its successor."""

        def now(value: ir.Value | None) -> ir.Value | None:
            while value is not None and value in self._successors:
                value = self._successors[value]
            return value

        changed: dict[str, Any] = {
            name: now(getattr(match, name)) for name in ("x", "output", "scale", "bias", "residual", "sum", "gate")
        }
        return dataclasses.replace(match, **changed)

    def _take_over(self, old: ir.Value, new: ir.Value, *, first: bool = True) -> None:
        """``new`` stands for ``old`` everywhere: its name, users, place among graph outputs, and annotations.

        Not ``first``: it stands for another value already, whose name it has.
        """
        if not first or not old.name:
            for node, _ in old.uses():
                self._touched.node(node)
            ir.convenience.replace_all_uses_with(old, new)
            self._successors[old] = new
            return
        new.name = old.name
        new.doc_string = old.doc_string
        new.metadata_props.update(old.metadata_props)
        new.meta.update(old.meta)
        if new.shape is None:
            new.shape = old.shape
        if new.type is None or old.is_graph_output():
            new.type = old.type
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        self._successors[old] = new
        old.name = None


def _supply(plan: Plan) -> list[tuple[onnx.FunctionProto, ir.Function]]:
    """Give the model the versions, imports and function bodies that its new norms need. Returns the bodies."""
    model = plan.model
    model.ir_version = max(model.ir_version, *(needs.ir_version for needs in plan.needs))
    makers: dict[str, Callable[[int], onnx.FunctionProto]] = {}
    for needs in plan.needs:
        makers.update(needs.bodies)
        for domain, version in needs.domains.items():
            # a version of ours is the model's own, unless what it imports is none
            known = 0 if domain == DOMAIN else model.opset_imports.get(domain, 0)
            model.opset_imports[domain] = max(version, known)
    domains = {domain for needs in plan.needs for domain in needs.domains}
    for function in model.functions.values() if domains else ():
        for domain in domains.intersection({n.domain for n in function.all_nodes()}):
            function.opset_imports[domain] = model.opset_imports[domain]
    bodies = []
    for body in (makers[name](plan.opset) for name in sorted(makers)):
        if (body.domain, body.name, body.overload) not in model.functions:
            function = ir.serde.deserialize_function(body)
            model.functions[function.identifier()] = function
            bodies.append((body, function))
    return bodies


def _bring_up(function: ir.Function, opset: int) -> None:
    """Let a function import the model's ``opset``, where that is another and all its operators are the same in both.

    onnx's checker accepts only operators in a function that are those of the model's opset, too; what is written for a
    norm may differ between the two.
    """
    own = opset_of(function)
    operators = {node.op_type for node in function.all_nodes() if node.domain in AI_ONNX}
    if own != opset and all(_since(name, own) == _since(name, opset) for name in operators):
        name = next((n for n in AI_ONNX if n in function.opset_imports), "")
        function.opset_imports[name] = opset


def _since(operator: str, opset: int) -> int:
    """The opset in which an operator of ai.onnx became what it is in ``opset``; 0 where it is unknown there."""
    try:
        return int(onnx.defs.get_schema(operator, opset).since_version)
    except onnx.defs.SchemaError:
        return 0


def _is_ordered(graph: ir.Graph | ir.Function) -> bool:
    """Whether every node stands after those whose values it uses, in its subgraphs too."""
    seen: set[ir.Node] = set()
    for node in graph:
        used = [v for v in node.inputs if v is not None]
        for _, _, _, inner in ir_subgraphs(node) if node.attributes else ():
            used += [v for n in inner.all_nodes() for v in n.inputs if v is not None]
        if any((p := v.producer()) is not None and p.graph is graph and p not in seen for v in used):
            return False
        seen.add(node)
    return True
