"""Fusing a model: a path, a proto or an onnx_ir model goes in, the fused one and a report come out."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import overload

import onnx
import onnx_ir as ir

from rmsnorm_deploy.errors import ModelError, UsageError
from rmsnorm_deploy.fusing.apply import apply
from rmsnorm_deploy.fusing.forms import DEFAULT, Form, form_named, writer_of
from rmsnorm_deploy.fusing.guard import model_errors
from rmsnorm_deploy.fusing.mending import Mended, mend, repeated_bodies
from rmsnorm_deploy.fusing.neighbours import neighbours_named
from rmsnorm_deploy.fusing.prepare import prepared
from rmsnorm_deploy.fusing.report import FusionReport, Task
from rmsnorm_deploy.installed import require_versions
from rmsnorm_deploy.model.load import load_proto, to_ir
from rmsnorm_deploy.model.splice import splice
from rmsnorm_deploy.recognise.neighbours import Neighbour


@overload
def fuse(
    model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    form: Form | str = ...,
    dry_run: bool = ...,
    also: Iterable[Neighbour | str] = ...,
) -> tuple[onnx.ModelProto, FusionReport]: ...


@overload
def fuse(
    model: ir.Model, *, form: Form | str = ..., dry_run: bool = ..., also: Iterable[Neighbour | str] = ...
) -> tuple[ir.Model, FusionReport]: ...


def fuse(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    *,
    form: Form | str = DEFAULT,
    dry_run: bool = False,
    also: Iterable[Neighbour | str] = (),
) -> tuple[onnx.ModelProto | ir.Model, FusionReport]:
    """Write every RMSNorm of ``model`` as one operator.

    The caller's object or file is not changed. Weights are not read: external data stay where they are, and the result
    refers to them as the original does, relative to the original's folder.

    Args:
        model: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``.
        form: what the norms are written as: a :class:`rmsnorm_deploy.Form` or its name. ``plugin`` and ``standard``
            express every norm; other forms leave norms alone that they cannot express, and the report says why. The
            form ``onnx`` raises the model to opset 23. Norms that are our nodes already stay so in the form ``plugin``;
            for every other form they are unfused first.
        dry_run: only say what would be done; the model returned is the original (for a path: as loaded).
        also: what else goes into the operators, in the forms ``plugin`` and ``standard``: ``"gates"``, the activated
            gate of norms in state-space and linear-attention models; ``"quantizers"``, the QuantizeLinear or
            DynamicQuantizeLinear of a norm's result. Without, such a norm is fused alone, and the report has a note.

    Returns:
        The fused model, an ``onnx_ir.Model`` for one and an ``onnx.ModelProto`` otherwise, and the report.

    Raises:
        ModelError: the file cannot be read or is not safe, the graph contradicts itself, or its ai.onnx opset is older
            than 11.
        UsageError: there is no such form or neighbour, or ``model`` is of another type.
    """
    return rewritten(model, form_named(form), dry_run, "fuse", neighbours_named(also))


def rewritten(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    form: Form,
    dry_run: bool,
    task: Task,
    also: Collection[Neighbour] = (),
) -> tuple[onnx.ModelProto | ir.Model, FusionReport]:
    """What :func:`fuse` and :func:`rmsnorm_deploy.unfuse` do. Arguments, results and errors are theirs."""
    if not isinstance(model, (str, os.PathLike, onnx.ModelProto, ir.Model)):
        raise UsageError(
            f"cannot {task} a {type(model).__name__}", "Give a path, an onnx.ModelProto or an onnx_ir.Model."
        )
    require_versions()
    with model_errors(model):
        if isinstance(model, ir.Model):
            return _rewritten_ir(model, form, dry_run, task, also)
        if isinstance(model, onnx.ModelProto):
            return _rewritten_proto(model, None, form, dry_run, task, also)
        return _rewritten_proto(load_proto(model), os.fspath(model), form, dry_run, task, also)


def explain(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    *,
    form: Form | str = DEFAULT,
    also: Iterable[Neighbour | str] = (),
) -> FusionReport:
    """Say what :func:`fuse` would do, and why it would leave the other candidates alone.

    Args:
        model: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``; it is not changed.
        form: what the norms would be written as: a :class:`rmsnorm_deploy.Form` or its name.
        also: what else would go into their operators: see :func:`fuse`.

    Returns:
        The report of a dry run.

    Raises:
        ModelError: as :func:`fuse`; so does UsageError.
    """
    return fuse(model, form=form, dry_run=True, also=also)[1]


def repaired(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, Mended]:
    """A copy of ``proto`` in which only the norms of ours are put right that it holds, and what that was.

    Raises:
        ModelError: the graph contradicts itself, or see :func:`rmsnorm_deploy.fusing.mending.mend`.
    """
    model = to_ir(proto)
    before = tuple(model.graph)
    mended = mend(model, (), repeated_bodies(proto))
    result = _own(proto, None)
    splice(result, model, before, set(mended.touched), mended.functions, mended.bodies, mended.renamed)
    return result, mended


def _rewritten_ir(
    model: ir.Model, form: Form, dry_run: bool, task: Task, also: Collection[Neighbour]
) -> tuple[ir.Model, FusionReport]:
    try:
        copy = model.clone()
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"the model cannot be copied: {error}",
            "onnx_ir has no sparse initializers; pass the path or the onnx.ModelProto.",
        ) from error
    plan = prepared(copy, form, task=task, also=also)
    if dry_run:
        return model, plan.report()
    report = plan.report(apply(plan).fused)
    return plan.model, report


def _rewritten_proto(
    proto: onnx.ModelProto, path: str | None, form: Form, dry_run: bool, task: Task, also: Collection[Neighbour]
) -> tuple[onnx.ModelProto, FusionReport]:
    """Rewrite a model in memory, which is the caller's unless it was read from ``path``."""
    declared: list[onnx.ValueInfoProto] = []
    if path is not None and not writer_of(form).may_convert:
        # onnx_ir would make objects of all types and shapes in the file, of which few are asked for; the version
        # converter wants them
        declared = list(proto.graph.value_info)
        del proto.graph.value_info[:]
    model = to_ir(proto, path)
    before = tuple(model.graph)
    plan = prepared(model, form, proto, declared, task, also)
    proto.graph.value_info.extend(declared)
    if dry_run:
        return _own(proto, path), plan.report()
    changes = apply(plan)
    report = plan.report(changes.fused)
    if plan.model is not model:  # onnx's converter has rewritten every node
        return ir.to_proto(plan.model), report
    result = _own(proto, path)
    if changes or plan.mended:
        splice(result, model, before, set(changes.touched), changes.functions, changes.bodies, changes.renamed)
    return result, report


def _own(proto: onnx.ModelProto, path: str | None) -> onnx.ModelProto:
    """``proto``, or a copy of it where it is the caller's."""
    if path is not None:
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy
