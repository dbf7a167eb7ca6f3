"""Writing a report: all of it, or nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from rmsnorm_deploy.check.measured import BenchResult
from rmsnorm_deploy.check.result import VerificationResult
from rmsnorm_deploy.converting.report import ConversionReport
from rmsnorm_deploy.errors import UsageError
from rmsnorm_deploy.fusing.fuse import fuse
from rmsnorm_deploy.fusing.neighbours import neighbours_in
from rmsnorm_deploy.fusing.report import FusionReport
from rmsnorm_deploy.fusing.unfuse import unfuse
from rmsnorm_deploy.model.atomic import staging, write_new
from rmsnorm_deploy.model.files import StrPath, check_output, output_path
from rmsnorm_deploy.model.load import load_model, to_ir
from rmsnorm_deploy.report.content import content
from rmsnorm_deploy.report.page import page
from rmsnorm_deploy.report.summary import summary

Model = str | os.PathLike[str] | onnx.ModelProto | ir.Model
_WRITERS = {".html": page, ".htm": page, ".md": summary, ".markdown": summary}


def report_path(path: StrPath, model: StrPath | None, *, overwrite: bool) -> Path:
    """Where a report goes.

    Args:
        path: as the caller states it; its ending says what is written.
        model: the file that it is about.
        overwrite: an existing report is replaced.

    Raises:
        UsageError: it has another ending, exists, is ``model``, or cannot be written.
    """
    target = output_path(path)
    if target.suffix.lower() not in _WRITERS:
        raise UsageError(
            f"the report {target} is neither a page nor Markdown by its name",
            "Name it .html for a page to look at, or .md for a pull request.",
        )
    check_output(target, source=Path(model) if model is not None else None, overwrite=overwrite)
    return target


def write_report(
    path: StrPath,
    model: Model,
    fusion: FusionReport | None = None,
    *,
    fused: Model | None = None,
    verification: VerificationResult | None = None,
    bench: BenchResult | None = None,
    conversion: ConversionReport | None = None,
    commands: Sequence[str] = (),
    date: str = "",
    overwrite: bool = False,
) -> Path:
    """Write what was done to ``model`` as a report: a page of HTML that needs no network, or Markdown.

    The page has every norm with its place, attributes and spelling, every near-miss with its reason and a drawing, each
    spelling drawn before and after, and whatever was verified and timed. Equal arguments and releases give equal bytes.

    Args:
        path: the file: ``.html`` or ``.htm`` for a page, ``.md`` or ``.markdown`` for Markdown.
        model: the original: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``. It is not changed, and its weights
            are not read.
        fusion: the report of :func:`rmsnorm_deploy.fuse`, ``unfuse`` or ``explain``; that of ``explain`` by default.
        fused: the fused model, to be drawn; made again from ``model`` by default.
        verification: what :func:`rmsnorm_deploy.verify` returned for the two.
        bench: what :func:`rmsnorm_deploy.bench` returned for the two.
        conversion: the report of :func:`rmsnorm_deploy.convert`, which has that of fusing in it.
        commands: what was run, shown at the end.
        date: shown at the top. Nothing else in a report depends on when it is written.
        overwrite: replace an existing report.

    Returns:
        The file.

    Raises:
        UsageError: the report exists, or its name has another ending or cannot be written.
        ModelError: a model cannot be read.
    """
    with writing_report(
        path,
        model,
        fusion,
        fused=fused,
        verification=verification,
        bench=bench,
        conversion=conversion,
        commands=commands,
        date=date,
        overwrite=overwrite,
    ) as target:
        return target


@contextlib.contextmanager
def writing_report(
    path: StrPath,
    model: Model,
    fusion: FusionReport | None = None,
    *,
    fused: Model | None = None,
    verification: VerificationResult | None = None,
    bench: BenchResult | None = None,
    conversion: ConversionReport | None = None,
    commands: Sequence[str] = (),
    date: str = "",
    overwrite: bool = False,
) -> Iterator[Path]:
    """As :func:`write_report`, for whoever has more to do: if that fails, the report is taken back.

    Raises:
        UsageError, ModelError: as :func:`write_report`, before the body begins.
    """
    source = model if isinstance(model, (str, os.PathLike)) else None
    target = report_path(path, source, overwrite=overwrite)
    if fusion is None:
        fusion = conversion.fusion if conversion is not None else None
    if fusion is None:
        fusion = fuse(model, dry_run=True)[1]
    if conversion is not None:
        fusion = dataclasses.replace(
            fusion,
            ops_before=conversion.ops_before,
            ops_after=conversion.ops_after,
            warnings=conversion.warnings,
        )
    if fused is None:
        fused = unfuse(model)[0] if fusion.task == "unfuse" else _fused_as(model, fusion)
    said = content(
        Path(source).name if source is not None else _name(model),
        _as_ir(model),
        _as_ir(fused),
        fusion,
        verification=verification,
        bench=bench,
        conversion=conversion,
        commands=commands,
        date=date,
    )
    data = _WRITERS[target.suffix.lower()](said).encode("utf-8", errors="backslashreplace")
    with staging(target) as stage:
        made = stage.folder / "report"
        write_new(made, data)
        stage.publish(made, target, overwrite=overwrite)
        stage.settled = True
        yield target


def _as_ir(model: Model) -> ir.Model:
    if isinstance(model, ir.Model):
        return model
    return to_ir(model) if isinstance(model, onnx.ModelProto) else load_model(model)


def _name(model: Model) -> str:
    """What a model in memory calls itself."""
    graph = getattr(model, "graph", None)
    return str(getattr(graph, "name", "") or "a model in memory")


def _fused_as(model: Model, fusion: FusionReport) -> Model:
    return fuse(model, form=fusion.form, also=neighbours_in(f.op for f in fusion.fused))[0]
