"""Fusing: find the norms, plan, write them as one node each, say what was done."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import onnx
import onnx_ir as ir

from rmsnorm_deploy import op
from rmsnorm_deploy.errors import ModelError, RmsNormDeployError, UsageError
from rmsnorm_deploy.fusing.emit import ONNX_OPSET, Emitter, Form, suited
from rmsnorm_deploy.fusing.report import FusedNorm, FusionReport
from rmsnorm_deploy.model.graphs import AI_ONNX, ir_subgraphs
from rmsnorm_deploy.model.load import load_proto, to_ir
from rmsnorm_deploy.model.opset import raised
from rmsnorm_deploy.model.splice import splice
from rmsnorm_deploy.model.validity import complaint
from rmsnorm_deploy.op import DOMAIN, Op
from rmsnorm_deploy.recognise.engine import recognise
from rmsnorm_deploy.recognise.facts import node_name
from rmsnorm_deploy.recognise.match import Match, Miss, Stage
from rmsnorm_deploy.recognise.scopes import Scope, scopes


@overload
def fuse(
    model: str | os.PathLike[str] | onnx.ModelProto, *, form: Form | str = ..., dry_run: bool = ...
) -> tuple[onnx.ModelProto, FusionReport]: ...


@overload
def fuse(model: ir.Model, *, form: Form | str = ..., dry_run: bool = ...) -> tuple[ir.Model, FusionReport]: ...


def fuse(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model, *, form: Form | str = Form.PLUGIN, dry_run: bool = False
) -> tuple[onnx.ModelProto | ir.Model, FusionReport]:
    """Write every RMSNorm of ``model`` as one operator.

    The caller's object or file is not changed. Weights are not read: external data stay where they are, and the result
    refers to them as the original does, relative to the original's folder.

    Args:
        model: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``.
        form: what the norms are written as; see :class:`rmsnorm_deploy.fusing.emit.Form`.
        dry_run: only say what would be done; the model returned is the original (for a path: as loaded).

    Returns:
        The fused model, an ``onnx_ir.Model`` for one and an ``onnx.ModelProto`` otherwise, and the report.

    Raises:
        ModelError: the file cannot be read or is not safe, or its ai.onnx opset is older than 11.
        UsageError: ``form`` is none, or ``model`` is of another type.
    """
    try:
        form = Form(form)
    except ValueError:
        raise UsageError(f"there is no form '{form}'", f"Forms are: {', '.join(f.value for f in Form)}.") from None
    with _collector_paused():
        try:
            return _fuse(model, form, dry_run)
        except RmsNormDeployError:
            raise
        except Exception as error:
            # a file with flipped bits can be wrong in any way: where onnx calls the model invalid, that is the answer
            found = _complaint(model)
            if not found:
                raise
            raise ModelError(f"the model is not valid: {found}", "Export or copy it again.") from error


def _complaint(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model) -> str:
    if isinstance(model, ir.Model):
        return ""
    try:
        return complaint(model if isinstance(model, onnx.ModelProto) else load_proto(model))
    except ModelError as error:
        return error.message


def _fuse(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model, form: Form, dry_run: bool
) -> tuple[onnx.ModelProto | ir.Model, FusionReport]:
    if isinstance(model, ir.Model):
        try:
            copy = model.clone()
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"the model cannot be copied: {error}",
                "onnx_ir has no sparse initializers; pass the path or the onnx.ModelProto.",
            ) from error
        fuser, report = _fused_copy(copy, form, dry_run)
        return (model if dry_run else fuser.model), report
    path: str | None = None
    if isinstance(model, onnx.ModelProto):
        original = model
    elif isinstance(model, (str, os.PathLike)):
        original, path = load_proto(model), os.fspath(model)
    else:
        raise UsageError(
            f"cannot fuse a {type(model).__name__}", "Give a path, an onnx.ModelProto or an onnx_ir.Model."
        )
    declared: list[onnx.ValueInfoProto] = []
    if path is not None and form is not Form.ONNX:
        # onnx_ir would make objects of all types and shapes in the file, of which few are asked for; the version
        # converter, which the form onnx may need, wants them
        declared = list(original.graph.value_info)
        del original.graph.value_info[:]
    graph = to_ir(original, path)
    fuser, report = _fused_copy(graph, form, dry_run, original, declared)
    if report.fused and fuser.model is not graph and not dry_run:
        return ir.to_proto(fuser.model), report  # another opset: onnx's converter has rewritten every node
    result = original
    result.graph.value_info.extend(declared)
    if path is None:  # the caller's own
        result = onnx.ModelProto()
        result.CopyFrom(original)
    if report.fused and not dry_run:
        before = next(scope.nodes for scope in fuser.scopes if scope.graph is graph.graph)
        splice(result, graph, before, fuser.touched, fuser.touched_functions, fuser.bodies)
    return result, report


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """No garbage collection meanwhile: a graph is many small live objects, and scanning them doubles the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _fused_copy(
    model: ir.Model,
    form: Form,
    dry_run: bool,
    proto: onnx.ModelProto | None = None,
    declared: Sequence[onnx.ValueInfoProto] = (),
) -> tuple[_Fuser, FusionReport]:
    """``model`` fused in place, or a copy of a newer opset fused where the form needs one.

    ``proto`` is the same model as a proto, where there is one, and ``declared`` the value_info that both lack.
    """
    fuser = _Fuser(model, form, proto, declared)
    if form is not Form.ONNX or fuser.opset >= ONNX_OPSET or not recognise(model, proto)[0]:
        return fuser, fuser.run(dry_run)
    try:
        newer = raised(model, ONNX_OPSET)
    except ValueError as error:
        fuser.cannot_raise = str(error)
        return fuser, fuser.run(dry_run)
    before = fuser.opset
    fuser = _Fuser(newer, form)
    fuser.warnings.append(f"the model's opset was raised from {before} to {ONNX_OPSET} by onnx's version converter")
    report = fuser.run(dry_run)
    if not report.fused:
        fuser.model = model
    return fuser, report


class RmsNormFusionPass(ir.passes.InPlacePass):
    """The fuser as an ``onnx_ir`` pass, for use in a sequence of passes. ``report`` holds the last run's report."""

    def __init__(self, form: Form | str = Form.PLUGIN) -> None:
        super().__init__()
        self.form = Form(form)
        self.report: FusionReport | None = None

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Fuse ``model`` in place."""
        self.report = _Fuser(model, self.form).run(dry_run=False)
        return ir.passes.PassResult(model, modified=bool(self.report.fused))


def count_ops(graphs: Iterable[Scope]) -> dict[str, int]:
    """Number of nodes by operator, subgraphs and local functions included."""
    counts: collections.Counter[str] = collections.Counter()
    for scope in graphs:
        counts.update(n.op_type if n.domain in AI_ONNX else f"{n.domain}::{n.op_type}" for n in scope.nodes)
    return dict(sorted(counts.items()))


class _Fuser:
    """Plans and applies on one model, in place."""

    def __init__(
        self,
        model: ir.Model,
        form: Form,
        proto: onnx.ModelProto | None = None,
        declared: Sequence[onnx.ValueInfoProto] = (),
    ) -> None:
        self.model = model
        self.proto = proto
        self.declared = declared
        self.form = form
        self.opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))
        self.names: set[str] | None = None
        self.numbers: dict[str, int] = {}
        self.constants: dict[tuple[Any, ...], ir.Value] = {}
        self.successors: dict[ir.Value, ir.Value] = {}
        self.scopes = scopes(model)
        self.roots = _roots(self.scopes)
        self.touched: set[ir.Node] = set()
        self.touched_functions: set[ir.Function] = set()
        self.bodies: list[onnx.FunctionProto] = []
        self.root: ir.Graph | ir.Function = model.graph
        self.warnings: list[str] = []
        self.cannot_raise = ""

    def run(self, dry_run: bool) -> FusionReport:
        before = count_ops(self.scopes)
        already = sum(n for name, n in before.items() if name.startswith(f"{DOMAIN}::"))
        if already and self.form is not Form.PLUGIN:
            self.warnings.append(
                f"{already} norms are in the form 'plugin' already and stay so; for the form '{self.form.value}' start "
                "from the model as it was exported"
            )
        matches, misses = recognise(self.model, self.proto, self.scopes, self.declared)
        matches, refused = self._expressible(matches)
        fused = [self._describe(m) for m in matches] if dry_run else self._apply(matches)
        return FusionReport(
            fused=tuple(fused),
            missed=tuple(misses + refused),
            ops_before=before,
            ops_after=before if dry_run else self._count_again(),
            warnings=tuple(self.warnings),
            opset=self.opset,
            form=self.form.value,
            already=already,
        )

    def _expressible(self, matches: list[Match]) -> tuple[list[Match], list[Miss]]:
        """Those that the form and the model's opset can carry; raises the opset where one step does it."""
        kept: list[Match] = []
        refused: list[Miss] = []
        for match in matches:
            fitting = suited(match, self.form)
            if isinstance(fitting, Match) and self.form is Form.ONNX and self.opset < ONNX_OPSET:
                fitting = f"RMSNormalization needs ai.onnx opset {ONNX_OPSET}, and the model is of {self.opset}"
                if self.cannot_raise:
                    fitting += f"; it cannot be converted: {self.cannot_raise}"
            if isinstance(fitting, Match):
                kept.append(fitting)
                continue
            refused.append(
                Miss(
                    match.site,
                    Stage.OUTPUT,
                    fitting,
                    match.site.node,
                    expected=f"a norm that the form '{self.form.value}' can express",
                    found=match.spelling,
                    hint="the form 'plugin' expresses every norm",
                )
            )
        if self.form is not Form.PLUGIN:
            return kept, refused
        matches, kept = kept, []
        if matches and self.opset < op.MIN_OPSET:
            raise ModelError(
                f"the model is of ai.onnx opset {self.opset}, and fused norms need {op.MIN_OPSET} or newer",
                f"Convert it first: onnx.version_converter.convert_version(model, {op.MIN_OPSET}).",
            )
        needed = max((op.min_opset(m.parameters) for m in matches), default=0)
        if needed > self.opset and self._can_raise_opset(needed):
            self.warnings.append(f"the model's opset was raised from {self.opset} to {needed}")
            self.model.opset_imports[""] = self.opset = needed
        for match in matches:
            wanted = op.min_opset(match.parameters)
            if wanted <= self.opset:
                kept.append(match)
                continue
            refused.append(
                Miss(
                    match.site,
                    stage=Stage.OUTPUT,
                    reason=f"needs ai.onnx opset {wanted}",
                    node=match.site.node,
                    expected=f"opset {wanted} or newer",
                    found=f"opset {self.opset}",
                    hint=f"convert it first: onnx.version_converter.convert_version(model, {wanted})",
                )
            )
        return kept, refused

    def _can_raise_opset(self, wanted: int) -> bool:
        """From 11 to 12 only Dropout changes what a valid node may carry; its ratio became an input."""
        if (self.opset, wanted) != (11, 12) or self.model.functions:
            return False
        return not any(n.op_type == "Dropout" and n.attributes for g in self.scopes for n in g.nodes)

    def _count_again(self) -> dict[str, int]:
        """Operators after the change, which removes nodes and adds some, and leaves the graphs that there are."""
        there = (s for s in self.scopes if s.holder is None or s.holder.graph is not None)
        return count_ops(dataclasses.replace(scope, nodes=tuple(scope.graph)) for scope in there)

    # -- applying -----------------------------------------------------------------------------------------------------

    def _apply(self, matches: list[Match]) -> list[FusedNorm]:
        if not matches:
            return []
        emitter = Emitter(self._unique, self._constant)
        # names are taken before anything changes: a value that another norm takes over loses its own
        planned = [self._describe(m) for m in matches]
        described: list[tuple[Match, ir.Node]] = []
        resort: set[ir.Graph | ir.Function] = set()
        for match in matches:
            described.append((match, self._replace(match, emitter, resort)))
        removed = self._remove_dead([n for m in matches for n in reversed(m.nodes)])
        for graph in resort:
            if not _is_ordered(graph):
                graph.sort()
        self._add_bodies({m.parameters.op for m in matches})
        return [
            dataclasses.replace(
                plan,
                node=node_name(node),
                removed=tuple(name for name, n in zip(plan.removed, match.nodes, strict=True) if n in removed),
                kept=tuple(name for name, n in zip(plan.removed, match.nodes, strict=True) if n not in removed),
            )
            for plan, (match, node) in zip(planned, described, strict=True)
        ]

    def _replace(self, match: Match, emitter: Emitter, resort: set[Any]) -> ir.Node:
        graph = match.nodes[-1].graph
        assert graph is not None
        self.root = self.roots[graph]
        self._touch(graph)
        match = self._current(match)
        made = emitter.emit(match, self.form)
        anchor = match.nodes[-1]
        if match.sum is not None and match.sum.producer() is not anchor:
            # readers of the sum may stand before the end of the chain
            anchor = match.sum.producer() or anchor
            if any(v.producer() is not None for v in (match.scale, match.bias) if v is not None) or len(made.nodes) > 1:
                resort.add(graph)  # a scale that is computed may be so behind the addition
        graph.insert_before(anchor, made.nodes)
        for value in match.same:
            self.successors[value] = made.y  # what noise hides behind: a later norm may have looked through it
        self._take_over(match.output, made.y)
        if match.sum is not None and made.sum is not None:
            self._take_over(match.sum, made.sum)
        return made.norm

    def _touch(self, graph: ir.Graph | ir.Function) -> None:
        """Note the nodes and the function through which a changed graph hangs in the model."""
        if isinstance(self.root, ir.Function):
            self.touched_functions.add(self.root)
        holders = {scope.graph: scope.holder for scope in self.scopes if scope.holder is not None}
        while (holder := holders.get(graph)) is not None and holder.graph is not None:
            self.touched.add(holder)
            graph = holder.graph

    def _current(self, match: Match) -> Match:
        """The match with every value that an earlier replacement took over exchanged for its successor."""

        def now(value: ir.Value | None) -> ir.Value | None:
            while value is not None and value in self.successors:
                value = self.successors[value]
            return value

        changed: dict[str, Any] = {
            name: now(getattr(match, name)) for name in ("x", "output", "scale", "bias", "residual", "sum")
        }
        return dataclasses.replace(match, **changed)

    def _take_over(self, old: ir.Value, new: ir.Value) -> None:
        """``new`` stands for ``old`` everywhere: its name, users, place among graph outputs, and annotations."""
        new.name = old.name
        new.doc_string = old.doc_string
        new.metadata_props.update(old.metadata_props)
        new.meta.update(old.meta)
        if new.shape is None:
            new.shape = old.shape
        if new.type is None or old.is_graph_output():
            new.type = old.type
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        self.successors[old] = new
        old.name = None

    def _remove_dead(self, candidates: Iterable[ir.Node]) -> set[ir.Node]:
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

    def _add_bodies(self, ops: set[Op]) -> None:
        """Put a function body for each operator in use into the model, and what it needs."""
        if self.form is Form.ORT:
            if any(n.domain == "com.microsoft" for g in scopes(self.model) for n in g.nodes):
                self.model.opset_imports.setdefault("com.microsoft", 1)
            return
        if self.form is Form.ONNX:
            return
        self.model.ir_version = max(self.model.ir_version, op.MIN_IR_VERSION)
        self.model.opset_imports[DOMAIN] = op.VERSION
        for function in self.model.functions.values():
            if function.domain != DOMAIN and any(n.domain == DOMAIN for n in function.all_nodes()):
                function.opset_imports[DOMAIN] = op.VERSION
        bodies = [op.function_body(operator, self.opset) for operator in sorted(ops, key=lambda o: o.value)]
        self.bodies = [b for b in bodies if (b.domain, b.name, b.overload) not in self.model.functions]
        if self.proto is None:
            for body in self.bodies:
                function = ir.serde.deserialize_function(body)
                self.model.functions[function.identifier()] = function

    # -- names and constants ------------------------------------------------------------------------------------------

    def _unique(self, wish: str) -> str:
        if self.names is None:
            self.names = _all_names(self.scopes)
        name, i = wish, self.numbers.get(wish, 1)
        while name in self.names:
            name, i = f"{wish}_{i}", i + 1
        self.numbers[wish] = i  # where many nodes share a name, counting from 1 each time would take for ever
        self.names.add(name)
        return name

    def _constant(self, name: str, tensor: ir.Tensor[Any]) -> ir.Value:
        """An initializer of the main graph, visible in every subgraph; inside a local function, a Constant node."""
        in_main = self.root is self.model.graph
        key = (id(self.root), tensor.dtype, tuple(tensor.shape), tensor.tobytes())
        if key in self.constants:
            return self.constants[key]
        value = ir.Value(
            name=self._unique(name), type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor
        )
        tensor.name = value.name
        if in_main:
            self.model.graph.register_initializer(value)
        else:
            value.const_value = None
            node = ir.Node(
                "", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[value], name=self._unique(f"{name}_node")
            )
            self.root.insert_before(next(iter(self.root)), node)
        self.constants[key] = value
        return value

    # -- reporting ----------------------------------------------------------------------------------------------------

    def _describe(self, match: Match) -> FusedNorm:
        """The norm as it is planned: every node that it stands for goes."""
        parameters = match.parameters

        def name(value: ir.Value | None) -> str:
            return (value.name or "") if value is not None else ""

        return FusedNorm(
            node=node_name(match.nodes[-1]),
            op=parameters.op.value,
            scope=match.site.scope,
            x=name(match.x),
            scale=name(match.scale),
            output=name(match.output),
            residual=name(match.residual),
            axes=parameters.axes,
            epsilon=parameters.epsilon,
            attributes=parameters.to_attributes(),
            type=ir.DataType(parameters.output_type).name,
            spelling=match.spelling,
            rounding="fewer" if match.fewer_roundings else "same",
            removed=tuple(node_name(n) for n in match.nodes),
            kept=(),
            notes=match.notes,
        )


def _roots(graphs: Iterable[Scope]) -> dict[ir.Graph | ir.Function, ir.Graph | ir.Function]:
    """For each graph the main graph or local function that it belongs to."""
    roots: dict[ir.Graph | ir.Function, ir.Graph | ir.Function] = {}
    for scope in graphs:
        roots[scope.graph] = scope.root
        # nodes of a function name its inner graph as theirs
        roots.update({n.graph: scope.root for n in scope.nodes[:1] if n.graph is not None})
    return roots


def _all_names(graphs: Iterable[Scope]) -> set[str]:
    names: set[str] = set()
    for scope in graphs:
        names.update(v.name for v in scope.graph.inputs if v.name)
        if isinstance(scope.graph, ir.Graph):
            names.update(scope.graph.initializers)
        for node in scope.nodes:
            if node.name:
                names.add(node.name)
            names.update(o.name for o in node.outputs if o.name)
    return names


def _is_ordered(graph: ir.Graph | ir.Function) -> bool:
    """Whether every node stands behind those whose values it uses, in its subgraphs too."""
    seen: set[ir.Node] = set()
    for node in graph:
        used = [v for v in node.inputs if v is not None]
        for _, _, _, inner in ir_subgraphs(node) if node.attributes else ():
            used += [v for n in inner.all_nodes() for v in n.inputs if v is not None]
        if any((p := v.producer()) is not None and p.graph is graph and p not in seen for v in used):
            return False
        seen.add(node)
    return True
