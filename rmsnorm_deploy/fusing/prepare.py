"""What comes before norms are written: norms of ours that the model holds are mended and, if need be, unfused."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import onnx
import onnx_ir as ir

from rmsnorm_deploy.fusing.apply import apply
from rmsnorm_deploy.fusing.forms import DEFAULT, STANDARD, Form
from rmsnorm_deploy.fusing.mending import mend, repeated_bodies
from rmsnorm_deploy.fusing.plan import Plan, planned
from rmsnorm_deploy.fusing.report import Task
from rmsnorm_deploy.recognise.neighbours import Neighbour


def prepared(
    model: ir.Model,
    form: Form,
    proto: onnx.ModelProto | None = None,
    declared: Sequence[onnx.ValueInfoProto] = (),
    task: Task = "fuse",
    also: Collection[Neighbour] = (),
) -> Plan:
    """What is to be done to ``model``, once everything is done to it that comes first.

    A form that is not ours starts from standard operators: what it cannot express then needs no library either, and
    onnx's version converter refuses models with functions.

    Args:
        model: the model; norms of ours in it are mended, and unfused for every form but ``plugin``.
        form: what the norms are to be written as.
        proto: the same model as a proto, where the caller has one; it is not changed.
        declared: types and shapes of the main graph's values that ``model`` and ``proto`` were made without.
        task: what is to be done.
        also: neighbours of norms that are taken in.

    Raises:
        ModelError: as :func:`rmsnorm_deploy.fusing.mending.mend` and :func:`rmsnorm_deploy.fusing.plan.planned`.
    """
    mended = mend(model, declared, 0 if proto is None else repeated_bodies(proto))
    # inference reads the proto, which is as it was
    proto = None if mended else proto
    if form in (Form(DEFAULT), STANDARD):
        return planned(model, form, proto, mended.declared, mended, task, also)
    first = planned(model, STANDARD, proto, mended.declared, mended, "unfuse")
    if not first.matches:
        return planned(model, form, proto, mended.declared, mended, task, also)
    changes = apply(first)
    done = dataclasses.replace(
        mended, touched=changes.touched, functions=changes.functions, bodies=changes.bodies, renamed=changes.renamed
    )
    plan = planned(model, form, None, mended.declared, done, task, also)
    return dataclasses.replace(plan, ops=first.ops, unfused=len(first.matches))
