"""What fusing a model would do, as data: nothing here changes it."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Collection, Iterable, Sequence

import onnx
import onnx_ir as ir

from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.fusing.copies import Copies, copies_for, parameters_of
from rmsnorm_deploy.fusing.form import Needs, OutputForm, Unsuited
from rmsnorm_deploy.fusing.forms import DEFAULT, STANDARD, Form, writer_of
from rmsnorm_deploy.fusing.mending import Mended
from rmsnorm_deploy.fusing.report import FusedNorm, FusionReport, Task, described
from rmsnorm_deploy.model.graphs import AI_ONNX, opset_of
from rmsnorm_deploy.model.opset import raised
from rmsnorm_deploy.op import DOMAIN, version_of
from rmsnorm_deploy.op.traces import about_inlined
from rmsnorm_deploy.recognise.engine import candidates, facts_of, recognise
from rmsnorm_deploy.recognise.match import Match, Miss, Stage
from rmsnorm_deploy.recognise.neighbours import Neighbour
from rmsnorm_deploy.recognise.our_nodes import op_of, read_all
from rmsnorm_deploy.recognise.quantising import with_quantising
from rmsnorm_deploy.recognise.scopes import Scope, scopes
from rmsnorm_deploy.recognise.variance import LAYER_NORMS


@dataclasses.dataclass(frozen=True)
class Plan:
    """The norms of a model that will be written, and what the model needs for that.

    Attributes:
        model: the model that ``matches`` are of: the one given, or a converted copy of a newer opset.
        proto: ``model`` as a proto, where there is one.
        scopes: the graphs of ``model``.
        form: what the norms are written as.
        matches: the norms, in graph order.
        missed: the candidates that stay as they are.
        needs: what each match needs, in the same order.
        given_opset: the ai.onnx opset of the model that was given.
        opset: the one that the fused model has.
        ops: number of nodes by operator in the model that was given.
        mended: what was put right in it beforehand.
        task: what the norms are written for: "fuse" or "unfuse".
        unfused: number of our nodes that were written in standard operators beforehand.
        copies: the local functions that become one for each epsilon that calls give.
    """

    model: ir.Model
    proto: onnx.ModelProto | None
    scopes: Sequence[Scope]
    form: Form
    matches: tuple[Match, ...]
    missed: tuple[Miss, ...]
    needs: tuple[Needs, ...]
    given_opset: int
    opset: int
    ops: dict[str, int]
    mended: Mended
    task: Task = "fuse"
    unfused: int = 0
    copies: Copies = dataclasses.field(default_factory=dict)

    @property
    def ours(self) -> int:
        """How many of the norms are nodes of ours, which go."""
        return sum(op_of(match.end) is not None for match in self.matches)

    @property
    def writer(self) -> OutputForm:
        """Writes the norms."""
        return writer_of(self.form)

    def described(self) -> tuple[tuple[FusedNorm, ...], ...]:
        """For each match the norms as they are planned: one, or one in each copy of the function that it stands in."""
        version = version_of(self.model.opset_imports)
        roots = {scope.nodes[0].graph: scope.root for scope in self.scopes if scope.nodes} if self.copies else {}
        found = []
        for match in self.matches:
            root = roots.get(match.end.graph) if match.references else None
            bindings = self.copies.get(root) if isinstance(root, ir.Function) else None
            same = [match] if bindings is None else [parameters_of(match, binding) for binding in bindings]
            found.append(tuple(described(m, version) for m in same))
        return tuple(found)

    def report(self, fused: Iterable[FusedNorm] | None = None) -> FusionReport:
        """What would be done; or what was done.

        Args:
            fused: the norms as they were written; None where nothing was changed.
        """
        done = fused is not None
        given = sum(n for name, n in self.ops.items() if name.startswith(f"{DOMAIN}::"))
        already = given - self.unfused - self.ours
        warnings = list(self.mended.warnings)
        if self.mended.inlined > len(self.matches) or (self.mended.inlined and not done):
            warnings.append(about_inlined(self.mended.inlined))
        if self.opset != self.given_opset:
            mood = "was" if done else "would be"
            by = " by onnx's version converter" if self.writer.may_convert else ""
            warnings.append(f"the model's opset {mood} raised from {self.given_opset} to {self.opset}{by}")
        return FusionReport(
            fused=tuple(itertools.chain(*self.described())) if fused is None else tuple(fused),
            missed=self.missed,
            ops_before=self.ops,
            ops_after=_count_again(self.scopes) if done and self.matches else self.ops,
            warnings=tuple(warnings),
            opset=self.opset if done else self.given_opset,
            form=self.form.value,
            already=already,
            repaired=self.mended.repaired,
            task=self.task,
            dry_run=not done,
            layer_norms=sum(n for name, n in self.ops.items() if name.rpartition("::")[2] in LAYER_NORMS)
            + sum(miss.is_layer_norm for miss in self.missed),
        )


def planned(
    model: ir.Model,
    form: Form,
    proto: onnx.ModelProto | None = None,
    declared: Sequence[onnx.ValueInfoProto] = (),
    mended: Mended | None = None,
    task: Task = "fuse",
    also: Collection[Neighbour] = (),
) -> Plan:
    """What fusing ``model`` in ``form``, or unfusing it, would do.

    Args:
        model: the model; it is not changed.
        form: what the norms are to be written as.
        proto: the same model as a proto, where the caller has one; it is not changed.
        declared: types and shapes of the main graph's values that ``model`` and ``proto`` were made without.
        mended: what was put right in ``model`` beforehand.
        task: "fuse": the norms that are recognised and, where the form is the standard one, those that are our nodes;
            "unfuse": only the latter.
        also: neighbours of norms that are taken in.

    Raises:
        ModelError: the model's ai.onnx opset is too old for the form and cannot be raised; or the model imports a
            version of our domain that this release does not know.
    """
    writer, opset, graphs = writer_of(form), opset_of(model), scopes(model)
    ops, given, cannot = count_ops(graphs), (model, graphs), ""
    if opset < writer.opset and writer.may_convert and candidates(graphs):
        # before recognition, as every node is another one afterwards
        try:
            model, proto, declared = raised(model, writer.opset), None, ()
            graphs = scopes(model)
        except ValueError as error:
            cannot = str(error)
    now = opset_of(model)
    try:
        version_of(model.opset_imports)
    except ValueError as error:
        raise ModelError(str(error), "Use a newer release of rmsnorm_deploy.") from error
    matches, misses = ([], []) if task == "unfuse" else recognise(model, proto, graphs, declared, also)
    if any(name.startswith(f"{DOMAIN}::") for name in ops):
        facts = facts_of(model, proto, graphs, declared)
        ours, invalid = read_all(facts, graphs, model.opset_imports)
        if form is not STANDARD:  # they stay, unless something behind them is to go into them
            wanted = ours if Neighbour.QUANTIZERS in also else ()
            ours = [m for m in (with_quantising(facts, m) for m in wanted) if m.end is not m.nodes[-1]]
            invalid = []
        place = {node: i for i, node in enumerate(n for g in graphs for n in g.nodes)}
        matches = sorted([*matches, *ours], key=lambda match: place[match.end])
        misses = [*misses, *invalid]
    kept: list[tuple[Match, Needs]] = []
    for match in matches:
        fitting = writer.suits(match)
        if match.references and not writer.carries_references:
            fitting = Unsuited("it is another norm at each call of the function that it stands in")
        if isinstance(fitting, Unsuited):
            misses.append(_unsuited(match, fitting, form))
        else:
            kept.append((fitting, writer.needs(fitting, model.opset_imports)))
    if kept and now < writer.opset and not writer.may_convert:
        raise ModelError(
            f"the model is of ai.onnx opset {now}, and fused norms need {writer.opset} or newer",
            f"Convert it first: onnx.version_converter.convert_version(model, {writer.opset}).",
        )
    needed = max((needs.opset for _, needs in kept), default=0)
    if needed > now and _can_be_relabelled(model, graphs, now, needed):
        now = needed
    own = _opsets_of_functions(graphs)
    fitting_now: list[tuple[Match, Needs]] = []
    for match, needs in kept:
        # a function has an opset of its own, and bodies that come with a norm have the model's
        there = now if needs.bodies else own.get(match.end.graph, now)
        if needs.opset > there:
            misses.append(_too_old(match, needs.opset, there, cannot, in_function=there != now))
        else:
            fitting_now.append((match, needs))
    kept = fitting_now
    if not kept:
        (model, graphs), now = given, opset
    return Plan(
        model=model,
        proto=proto,
        scopes=graphs,
        form=form,
        matches=tuple(match for match, _ in kept),
        missed=tuple(misses),
        needs=tuple(needs for _, needs in kept),
        given_opset=opset,
        opset=now,
        ops=ops,
        mended=Mended() if mended is None else mended,
        task=task,
        copies=copies_for(graphs, (match for match, _ in kept)),
    )


def _unsuited(match: Match, refusal: Unsuited, form: Form) -> Miss:
    return Miss(
        match.site,
        Stage.OUTPUT,
        refusal.reason,
        match.site.node,
        expected=f"a norm that the form '{form.value}' can express",
        found=match.spelling,
        hint=f"the form '{DEFAULT}' expresses every norm",
    )


def _opsets_of_functions(graphs: Iterable[Scope]) -> dict[object, int]:
    """The ai.onnx opset that a local function imports for itself, by every graph in it."""
    found: dict[object, int] = {}
    for scope in graphs:
        if isinstance(scope.root, ir.Function) and scope.nodes and (opset := opset_of(scope.root)):
            found[scope.nodes[0].graph] = opset
    return found


def _too_old(match: Match, needed: int, opset: int, cannot: str, *, in_function: bool) -> Miss:
    where = ", and the function that it stands in imports another" if in_function else ""
    return Miss(
        match.site,
        Stage.OUTPUT,
        f"needs ai.onnx opset {needed}{f', and the model cannot be converted: {cannot}' if cannot else where}",
        match.site.node,
        expected=f"opset {needed} or newer",
        found=f"opset {opset}",
        hint=f"the form '{DEFAULT}' expresses every norm"
        if cannot or in_function
        else f"convert it first: onnx.version_converter.convert_version(model, {needed})",
    )


def _can_be_relabelled(model: ir.Model, graphs: Iterable[Scope], opset: int, needed: int) -> bool:
    """From 11 to 12 only Dropout changes what a valid node may carry; its ratio became an input."""
    if (opset, needed) != (11, 12) or model.functions:
        return False
    return not any(n.op_type == "Dropout" and n.attributes for g in graphs for n in g.nodes)


def count_ops(graphs: Iterable[Scope]) -> dict[str, int]:
    """Number of nodes by operator, subgraphs and local functions included."""
    counts: collections.Counter[str] = collections.Counter()
    for scope in graphs:
        counts.update(n.op_type if n.domain in AI_ONNX else f"{n.domain}::{n.op_type}" for n in scope.nodes)
    return dict(sorted(counts.items()))


def _count_again(graphs: Iterable[Scope]) -> dict[str, int]:
    """Operators after the change, which removes nodes and adds some, and leaves the graphs that there are."""
    there = (s for s in graphs if s.holder is None or s.holder.graph is not None)
    return count_ops(dataclasses.replace(scope, nodes=tuple(scope.graph)) for scope in there)
