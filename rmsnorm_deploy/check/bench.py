"""How long a model and one of its norms take: as exported, fused, without the library, in onnxruntime's own form."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rmsnorm_deploy.check.clock import Clock
from rmsnorm_deploy.check.measured import BenchResult
from rmsnorm_deploy.check.outside import inside, moved_out
from rmsnorm_deploy.errors import RmsNormDeployError, UsageError
from rmsnorm_deploy.fusing.forms import Form
from rmsnorm_deploy.fusing.fuse import fuse
from rmsnorm_deploy.fusing.report import FusedNorm
from rmsnorm_deploy.model.copying import Told
from rmsnorm_deploy.run.inputs import Array, fit_inputs, make_inputs
from rmsnorm_deploy.run.registering import library_problem
from rmsnorm_deploy.run.runnable import Model, Runnable

TOGETHER = 2**28
"""Bytes of weights up to which all variants are in memory at once, and take turns run by run."""


def bench(
    model: Model,
    fused: Model | None = None,
    *,
    inputs: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    seconds: float = 2.0,
    threads: int = 0,
    progress: Told | None = None,
) -> BenchResult:
    """Time ``model`` against ``fused``, and one of its norms alone, in onnxruntime on the CPU.

    The fused model runs with the library and without it, and a third one has the norms in the form of onnxruntime's own
    operator. All have onnxruntime's own optimizer at its default, which is everything it can do. They take turns; from
    :data:`TOGETHER` bytes of weights on, one at a time is in memory.

    Args:
        model: the original: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``.
        fused: the fused model; made from ``model`` when left out.
        inputs: arrays by name, instead of generated ones.
        shapes: shapes of generated inputs by name.
        seed: of the generator.
        seconds: time for each comparison.
        threads: threads within an operator; 0 is onnxruntime's choice.
        progress: called with what is being timed, and how much of 100 is done.

    Raises:
        ModelError: a file cannot be read.
        UsageError: the inputs do not fit the model, or the two models have different inputs or outputs.
        MissingEnvironment: onnxruntime is not installed or does not load the original.
    """
    home = Runnable.of(model).home
    with tempfile.TemporaryDirectory(prefix="rmsnorm-deploy.") as scratch:
        model = _lean(model, None, Path(scratch), "original")
        fused = None if fused is None else _lean(fused, home, Path(scratch), "fused")
        before = Runnable.of(model)
        made, report = fuse(model)
        after = Runnable.of(made, before.home) if fused is None else Runnable.of(fused, home)
        clock = Clock(seconds, threads, library_problem(), progress, [])
        if not report.fused and fused is None:
            clock.notes.append(
                "the norms were fused before: both sides are this file, without the library and with it"
                if report.already
                else "the model has no norm to fuse: both sides are the same"
            )
        _require_one_signature(before, after)
        feeds = fit_inputs(inputs, before.proto) if inputs is not None else make_inputs(before.proto, shapes, seed)
        own = _own_form(model, before, report.fused, clock.notes)
        alternating = max(before.weights, after.weights) > TOGETHER
        made_too = Runnable.of(made, before.home)
        return clock.result(before, after, made_too, own, report.fused, feeds, alternating=alternating)


def _lean(model: Model, home: Path | None, scratch: Path, name: str) -> Model:
    """``model``, or a file with its weights beside it where it has so many inside that no variant may copy them."""
    runnable = Runnable.of(model, home)
    if inside(runnable) <= TOGETHER:
        return model
    try:
        return moved_out(runnable, scratch, name)
    except OSError:  # no space: then it takes more memory
        return model


def _require_one_signature(before: Runnable, after: Runnable) -> None:
    for what in ("input", "output"):
        names = [{v.name for v in getattr(one.proto.graph, what)} for one in (before, after)]
        if names[0] != names[1]:
            odd = ", ".join(sorted(names[0] ^ names[1])[:3])
            raise UsageError(
                f"the two models are not one and the same: only one of them has the {what} {odd}",
                "Name the original and what was made from it.",
            )


def _own_form(model: Model, before: Runnable, norms: Sequence[FusedNorm], notes: list[str]) -> Runnable | None:
    """The model with its norms in the form of onnxruntime's own operator, where that expresses all of them."""
    if not norms:
        return None
    try:
        proto, report = fuse(model, form=Form.ORT)
        if len(report.fused) < len(norms):
            notes.append(f"onnxruntime's own operator expresses {len(report.fused)} of {len(norms)} norms")
        return Runnable.of(proto, before.home) if report.fused else None
    except RmsNormDeployError as error:
        notes.append(f"not timed in onnxruntime's own form: {error.message}")
        return None
