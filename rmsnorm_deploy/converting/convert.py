"""Converting a model: LayerNorms that are proven to be RMSNorms once the weights in front of them have no mean."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import overload

import onnx
import onnx_ir as ir

from rmsnorm_deploy.converting.apply import Applier, biases
from rmsnorm_deploy.converting.contrib import put_together, take_apart
from rmsnorm_deploy.converting.decide import decide
from rmsnorm_deploy.converting.narrow import round_once
from rmsnorm_deploy.converting.report import ConversionReport, described, others_of
from rmsnorm_deploy.converting.writing import Writer
from rmsnorm_deploy.errors import ModelError, UsageError
from rmsnorm_deploy.fusing.forms import DEFAULT, Form, form_named
from rmsnorm_deploy.fusing.fuse import fuse as fuse_norms
from rmsnorm_deploy.fusing.guard import model_errors
from rmsnorm_deploy.fusing.names import Names
from rmsnorm_deploy.fusing.plan import count_ops
from rmsnorm_deploy.installed import require_versions
from rmsnorm_deploy.model.graphs import opset_of
from rmsnorm_deploy.model.load import load_proto, to_ir
from rmsnorm_deploy.model.made import put_inside, set_aside
from rmsnorm_deploy.recognise.engine import facts_of
from rmsnorm_deploy.recognise.facts import node_name
from rmsnorm_deploy.recognise.output import BELONGS
from rmsnorm_deploy.recognise.scopes import Scope, scopes

OLDEST_OPSET = 11
"""Of ai.onnx, as for fusing."""


@overload
def convert(
    model: onnx.ModelProto, *, fuse: bool = ..., form: Form | str = ..., dry_run: bool = ...
) -> tuple[onnx.ModelProto, ConversionReport]: ...


@overload
def convert(
    model: str | os.PathLike[str] | ir.Model, *, fuse: bool = ..., form: Form | str = ..., dry_run: bool = ...
) -> tuple[ir.Model, ConversionReport]: ...


def convert(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    *,
    fuse: bool = True,
    form: Form | str = DEFAULT,
    dry_run: bool = False,
) -> tuple[onnx.ModelProto | ir.Model, ConversionReport]:
    """Make RMSNorms of the LayerNorms of ``model``, wherever that is proven to compute the same.

    A LayerNorm takes the mean away and then is an RMSNorm. Where everything that is added up in front of it has no
    mean, there is none to take away: weights, biases and tables lose theirs here, in float64 and rounded once. That
    holds for a residual stream as a whole or not at all; the report says for each stream what was edited, or what
    stands in the way.

    The caller's object or file is not changed.

    Args:
        model: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``.
        fuse: write the RMSNorms as one operator each, as :func:`rmsnorm_deploy.fuse` does, and with them all others.
        form: what the norms are written as: a :class:`rmsnorm_deploy.Form` or its name.
        dry_run: only say what would be done; the model returned is the original (for a path: as loaded).

    Returns:
        The converted model, an ``onnx.ModelProto`` for one and an ``onnx_ir.Model`` otherwise, and the report. Edited
        weights of an ``onnx_ir.Model`` are computed when they are written or read, one at a time, from the original's
        files, which have to stay until then.

    Raises:
        ModelError: the file cannot be read or is not safe, the graph contradicts itself, its ai.onnx opset is older
            than 11, or its weights are in another file and it is not known in which folder.
        UsageError: there is no such form, or ``model`` is of another type.
    """
    if not isinstance(model, (str, os.PathLike, onnx.ModelProto, ir.Model)):
        raise UsageError(
            f"cannot convert a {type(model).__name__}", "Give a path, an onnx.ModelProto or an onnx_ir.Model."
        )
    wanted = form_named(form)
    require_versions()
    with model_errors(model):
        own = _own(model)
        if dry_run:
            _, report = _converted(own, dry_run=True)
            return (model if isinstance(model, (onnx.ModelProto, ir.Model)) else own), report
        # of the forms, only our own has an operator with a bias
        result, report = _converted(own, dry_run=False, marks=fuse and wanted is Form.PLUGIN)
        if fuse:
            result, fusion = fuse_norms(result, form=wanted)
            for node in _nodes(result):
                node.metadata_props.pop(BELONGS, None)
            report = dataclasses.replace(
                report, fusion=fusion, ops_after=fusion.ops_after, warnings=(*report.warnings, *fusion.warnings)
            )
        if not isinstance(model, onnx.ModelProto):
            return result, report
        proto, made = set_aside(result)
        put_inside(proto, made)
        return proto, report


def _own(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model) -> ir.Model:
    """A model that is ours to change."""
    if isinstance(model, onnx.ModelProto):
        return to_ir(model)
    if not isinstance(model, ir.Model):
        return to_ir(load_proto(model), model)
    try:
        return model.clone()
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"the model cannot be copied: {error}",
            "onnx_ir has no sparse initializers; pass the path or the onnx.ModelProto.",
        ) from error


def _converted(model: ir.Model, *, dry_run: bool, marks: bool = False) -> tuple[ir.Model, ConversionReport]:
    """``model``, which is changed, and what was done to it."""
    opset = opset_of(model)
    if opset < OLDEST_OPSET:
        raise ModelError(
            f"the model is of ai.onnx opset {opset}, and converting needs {OLDEST_OPSET} or newer",
            f"Convert it first: onnx.version_converter.convert_version(model, {OLDEST_OPSET}).",
        )
    graphs = scopes(model)
    for node in _nodes(model):
        if any(a.is_ref() for a in node.attributes.values()):
            raise ModelError(
                f"'{node_name(node)}' refers to an attribute of a function, and stands in none",
                "Export the model again.",
            )
    before, names = count_ops(graphs), Names(graphs)
    apart = take_apart(_nodes(model), names, model.graph)
    if apart:
        graphs = scopes(model)
    facts = facts_of(model, None, graphs)
    decision = decide(facts, _nodes(model))
    found = biases(facts, decision)
    others = (*others_of(decision), *_in_functions(graphs, model))
    report = ConversionReport(described(decision, found), others, before, before, dry_run=dry_run)
    if dry_run or not decision.converted:
        put_together(apart, ())
        return model, report
    done = {norm.node for stream in decision.converted for norm in stream.norms}
    applier = Applier(decision, found, Writer(facts, names, opset, model.graph, marks=marks), names, facts)
    applier.run()
    put_together(apart, done)
    round_once(model, applier.rest, names, marks=marks)
    return model, dataclasses.replace(report, ops_after=count_ops(scopes(model)))


def _nodes(model: ir.Model) -> list[ir.Node]:
    """The nodes of the main graph and its subgraphs; those in local functions are left alone."""
    return [node for scope in scopes(model) if scope.root is model.graph for node in scope.nodes]


def _in_functions(graphs: Sequence[Scope], model: ir.Model) -> list[tuple[str, str]]:
    """The LayerNormalizations in local functions: streams go through the calls, which nobody follows here."""
    return [
        (node_name(node), f"it stands in the function '{scope.name}'; inline that first (onnx.inliner)")
        for scope in graphs
        if scope.root is not model.graph
        for node in scope.nodes
        if node.op_type == "LayerNormalization"
    ]
