"""Fusing: find the norms, plan, write them as one node each, say what was done."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import Any, overload

import onnx
import onnx_ir as ir

from rmsnorm_deploy import op
from rmsnorm_deploy.emit import ONNX_OPSET, Emitter, Form, suited
from rmsnorm_deploy.errors import ModelError, UsageError
from rmsnorm_deploy.load import load_proto, to_ir
from rmsnorm_deploy.op import DOMAIN, Op
from rmsnorm_deploy.opset import raised
from rmsnorm_deploy.recognise.engine import recognise, scopes
from rmsnorm_deploy.recognise.facts import node_name
from rmsnorm_deploy.recognise.match import Match, Miss, Stage
from rmsnorm_deploy.report import FusedNorm, FusionReport


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
        form: what the norms are written as; see :class:`rmsnorm_deploy.emit.Form`.
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
    if isinstance(model, ir.Model):
        fused, report = _fused_copy(model.clone(), form, dry_run)
        return (model if dry_run else fused), report
    if isinstance(model, onnx.ModelProto):
        original, path = model, "the model"
    elif isinstance(model, (str, os.PathLike)):
        original, path = load_proto(model), os.fspath(model)
    else:
        raise UsageError(
            f"cannot fuse a {type(model).__name__}", "Give a path, an onnx.ModelProto or an onnx_ir.Model."
        )
    graph, report = _fused_copy(to_ir(original, path), form, dry_run)
    if dry_run or not report.fused:
        copy = onnx.ModelProto()
        copy.CopyFrom(original)
        return copy, report
    proto = ir.to_proto(graph)
    _restore(original, proto)
    return proto, report


def _restore(original: onnx.ModelProto, proto: onnx.ModelProto) -> None:
    """What onnx_ir has no place for, or adds by itself: the rest of the model stays as it was."""
    proto.training_info.extend(original.training_info)
    proto.graph.sparse_initializer.extend(original.graph.sparse_initializer)
    described = {v.name for graph in _graph_protos(original.graph) for v in graph.value_info}
    for graph in _graph_protos(proto.graph):
        weights = {t.name for t in graph.initializer}
        kept = [v for v in graph.value_info if v.name not in weights or v.name in described]
        del graph.value_info[:]
        graph.value_info.extend(kept)


def _graph_protos(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from _graph_protos(inner)


def _fused_copy(model: ir.Model, form: Form, dry_run: bool) -> tuple[ir.Model, FusionReport]:
    """``model`` fused in place, or a copy of a newer opset fused where the form needs one."""
    fuser = _Fuser(model, form)
    if form is not Form.ONNX or fuser.opset >= ONNX_OPSET or not recognise(model)[0]:
        return model, fuser.run(dry_run)
    try:
        newer = raised(model, ONNX_OPSET)
    except ValueError as error:
        fuser.cannot_raise = str(error)
        return model, fuser.run(dry_run)
    before = fuser.opset
    fuser = _Fuser(newer, form)
    fuser.warnings.append(f"the model's opset was raised from {before} to {ONNX_OPSET} by onnx's version converter")
    report = fuser.run(dry_run)
    return (newer if report.fused else model), report


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


def count_ops(model: ir.Model) -> dict[str, int]:
    """Number of nodes by operator, subgraphs and local functions included, our own function bodies excepted."""
    counts: collections.Counter[str] = collections.Counter()
    for _, graph in scopes(model):
        counts.update(f"{n.domain}::{n.op_type}" if n.domain not in ("", "ai.onnx") else n.op_type for n in graph)
    return dict(sorted(counts.items()))


class _Fuser:
    """Plans and applies on one model, in place."""

    def __init__(self, model: ir.Model, form: Form) -> None:
        self.model = model
        self.form = form
        self.opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))
        self.names: set[str] | None = None
        self.constants: dict[tuple[Any, ...], ir.Value] = {}
        self.successors: dict[ir.Value, ir.Value] = {}
        self.roots = _roots(model)
        self.root: ir.Graph | ir.Function = model.graph
        self.warnings: list[str] = []
        self.cannot_raise = ""

    def run(self, dry_run: bool) -> FusionReport:
        before = count_ops(self.model)
        already = sum(n for name, n in before.items() if name.startswith(f"{DOMAIN}::"))
        matches, misses = recognise(self.model)
        matches, refused = self._expressible(matches)
        fused = [self._describe(m) for m in matches] if dry_run else self._apply(matches)
        return FusionReport(
            fused=tuple(fused),
            missed=tuple(misses + refused),
            ops_before=before,
            ops_after=before if dry_run else count_ops(self.model),
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
        return not any(n.op_type == "Dropout" and n.attributes for _, g in scopes(self.model) for n in g)

    # -- applying -----------------------------------------------------------------------------------------------------

    def _apply(self, matches: list[Match]) -> list[FusedNorm]:
        if not matches:
            return []
        emitter = Emitter(self._unique, self._constant)
        described: list[tuple[Match, ir.Node]] = []
        resort: set[ir.Graph | ir.Function] = set()
        for match in matches:
            described.append((match, self._replace(match, emitter, resort)))
        removed = self._remove_dead([n for m in matches for n in reversed(m.nodes)])
        for graph in resort:
            if not _is_ordered(graph):
                graph.sort()
        self._add_bodies({m.parameters.op for m in matches})
        return [self._describe(match, node, removed) for match, node in described]

    def _replace(self, match: Match, emitter: Emitter, resort: set[Any]) -> ir.Node:
        graph = match.nodes[-1].graph
        assert graph is not None
        self.root = self.roots[graph]
        match = self._current(match)
        made = emitter.emit(match, self.form)
        anchor = match.nodes[-1]
        if match.sum is not None and match.sum.producer() is not anchor:
            # readers of the sum may stand before the end of the chain
            anchor = match.sum.producer() or anchor
            resort.add(graph)
        graph.insert_before(anchor, made.nodes)
        self._take_over(match.output, made.y)
        if match.sum is not None and made.sum is not None:
            self._take_over(match.sum, made.sum)
        return made.norm

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
        work = list(candidates)
        while work:
            node = work.pop(0)
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
            if any(n.domain == "com.microsoft" for _, g in scopes(self.model) for n in g):
                self.model.opset_imports.setdefault("com.microsoft", 1)
            return
        if self.form is Form.ONNX:
            return
        self.model.ir_version = max(self.model.ir_version, op.MIN_IR_VERSION)
        self.model.opset_imports[DOMAIN] = op.VERSION
        for function in self.model.functions.values():
            if function.domain != DOMAIN and any(n.domain == DOMAIN for n in function.all_nodes()):
                function.opset_imports[DOMAIN] = op.VERSION
        for operator in sorted(ops, key=lambda o: o.value):
            body = ir.serde.deserialize_function(op.function_body(operator, self.opset))
            self.model.functions.setdefault(body.identifier(), body)

    # -- names and constants ------------------------------------------------------------------------------------------

    def _unique(self, wish: str) -> str:
        if self.names is None:
            self.names = _all_names(self.model)
        name, i = wish, 1
        while name in self.names:
            name, i = f"{wish}_{i}", i + 1
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

    def _describe(self, match: Match, node: ir.Node | None = None, removed: set[ir.Node] | None = None) -> FusedNorm:
        gone = removed if removed is not None else set(match.nodes)
        parameters = match.parameters
        attributes = parameters.to_attributes()
        return FusedNorm(
            node=node_name(node) if node is not None else node_name(match.nodes[-1]),
            op=parameters.op.value,
            scope=match.site.scope,
            x=match.x.name or "",
            scale=(match.scale.name or "") if match.scale is not None else "",
            output=(node.outputs[0].name if node is not None else match.output.name) or "",
            residual=(match.residual.name or "") if match.residual is not None else "",
            axes=parameters.axes,
            epsilon=parameters.epsilon,
            attributes=attributes,
            type=ir.DataType(parameters.output_type).name,
            spelling=match.spelling,
            rounding="fewer" if match.fewer_roundings else "same",
            removed=tuple(node_name(n) for n in match.nodes if n in gone),
            kept=tuple(node_name(n) for n in match.nodes if n not in gone),
            notes=match.notes,
        )


def _roots(model: ir.Model) -> dict[ir.Graph | ir.Function, ir.Graph | ir.Function]:
    """For each graph the main graph or local function that it belongs to."""
    roots: dict[ir.Graph | ir.Function, ir.Graph | ir.Function] = {model.graph: model.graph}
    roots.update(dict.fromkeys(model.graph.subgraphs(), model.graph))
    for function in model.functions.values():
        roots[function] = function
        # nodes of a function name its inner graph as theirs
        roots.update({n.graph: function for n in function if n.graph is not None})
        roots.update(dict.fromkeys(function.subgraphs(), function))
    return roots


def _all_names(model: ir.Model) -> set[str]:
    names: set[str] = set()
    for _, graph in scopes(model):
        names.update(v.name for v in graph.inputs if v.name)
        if isinstance(graph, ir.Graph):
            names.update(graph.initializers)
        for node in graph:
            if node.name:
                names.add(node.name)
            names.update(o.name for o in node.outputs if o.name)
            names.update(i.name for i in node.inputs if i is not None and i.name)
    return names


def _is_ordered(graph: ir.Graph | ir.Function) -> bool:
    """Whether every node stands behind those whose values it uses, in its subgraphs too."""
    seen: set[ir.Node] = set()
    for node in graph:
        used = [v for v in node.inputs if v is not None]
        for inner in _inner_nodes(node):
            used += [v for v in inner.inputs if v is not None]
        if any((p := v.producer()) is not None and p.graph is graph and p not in seen for v in used):
            return False
        seen.add(node)
    return True


def _inner_nodes(node: ir.Node) -> list[ir.Node]:
    found = []
    for attribute in node.attributes.values():
        if not attribute.is_ref() and attribute.type == ir.AttributeType.GRAPH:
            found += list(attribute.value.all_nodes())
        elif not attribute.is_ref() and attribute.type == ir.AttributeType.GRAPHS:
            found += [n for g in attribute.value for n in g.all_nodes()]
    return found
