"""The command ``fuse``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from rmsnorm_deploy.cli.options import Force, FormOption, Inputs, JsonFlag, OldFormOption, Seed, Shapes
from rmsnorm_deploy.cli.printing import say
from rmsnorm_deploy.cli.reporting import Report, ReportFile
from rmsnorm_deploy.cli.writing import Output, print_report
from rmsnorm_deploy.errors import UsageError, VerificationFailed
from rmsnorm_deploy.fusing.forms import DEFAULT

ORDER = 10
"""Its place in the list of commands."""


def command(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="IN", help="The exported model.")],
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="OUT", help="The fused model.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare with the original before OUT appears.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")] = False,
    require: Annotated[
        str | None, typer.Option("--require", metavar="N|all", help="Fail unless so many norms are fused.")
    ] = None,
    force: Force = False,
    form: FormOption = DEFAULT,
    op: OldFormOption = None,
    inputs: Inputs = None,
    shapes: Shapes = None,
    seed: Seed = 0,
    report_file: Report = None,
    as_json: JsonFlag = False,
) -> None:
    """Fuse every RMSNorm of IN and write OUT. IN and its weights are never changed.

    --inputs, --shapes and --seed say what --verify runs the models on.
    """
    started = time.perf_counter()
    wanted = _wanted(require)
    place = Output(
        model,
        output,
        example="fused.onnx",
        verify=verify,
        dry_run=dry_run,
        force=force,
        inputs=inputs,
        shapes=shapes,
        seed=seed,
    )
    page = ReportFile(report_file, model, context, force=force, output=output)
    from rmsnorm_deploy.fusing.fuse import fuse

    fused, report = fuse(model, form=op or form, dry_run=dry_run)
    if not as_json:
        print_report(report)
        fewer = sum(f.rounding == "fewer" for f in report.fused)
        if fewer:
            say(f"note: {fewer} of them now round less often than the original (see explain)")
    _check_required(wanted, report)
    place.write(fused, report, as_json=as_json, page=page)
    say(f"took {time.perf_counter() - started:.2f} s")


def _wanted(require: str | None) -> int | None:
    """The number of norms asked for; -1 for all."""
    if require is None:
        return None
    if require == "all":
        return -1
    if require.isdecimal():
        return int(require)
    raise UsageError(f"--require takes a number or 'all', not '{require}'", "Write --require 12 or --require all.")


def _check_required(wanted: int | None, report: Any) -> None:
    if wanted is None:
        return
    there = len(report.fused) + report.already
    if wanted >= 0 and there >= wanted:
        return
    if wanted < 0 and there and not report.near_misses:
        return
    asked = "all norms" if wanted < 0 else f"{wanted} norms"
    raise VerificationFailed(
        f"--require asks for {asked}, and {report.summary()}",
        "'rmsnorm-deploy explain MODEL --all' says why the others are left; nothing was written.",
    )
