"""The command ``fuse``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rmsnorm_deploy.cli.each import Made, for_each
from rmsnorm_deploy.cli.options import (
    AlsoOption,
    Force,
    FormOption,
    Inputs,
    JsonFlag,
    OldFormOption,
    Seed,
    Shapes,
    WeightsOption,
)
from rmsnorm_deploy.cli.printing import Told, say
from rmsnorm_deploy.cli.reporting import Report, ReportFile, require_one
from rmsnorm_deploy.cli.sources import Job, jobs_of
from rmsnorm_deploy.cli.writing import Output, print_report
from rmsnorm_deploy.errors import UsageError, VerificationFailed
from rmsnorm_deploy.fusing.forms import DEFAULT

ORDER = 10
"""Its place in the list of commands."""


def command(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(metavar="IN...", help="Exported models: files, folders, patterns; '-' for stdin."),
    ],
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="OUT", help="The fused model; a folder for several; '-' for stdout."),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare with the original before OUT appears.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")] = False,
    require: Annotated[
        str | None, typer.Option("--require", metavar="N|all", help="Fail unless so many norms are fused.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="NODE", help="--require all does without this one; may be repeated."),
    ] = None,
    force: Force = False,
    weights: WeightsOption = None,
    form: FormOption = DEFAULT,
    op: OldFormOption = None,
    also: AlsoOption = None,
    inputs: Inputs = None,
    shapes: Shapes = None,
    seed: Seed = 0,
    report_file: Report = None,
    as_json: JsonFlag = False,
) -> int:
    """Fuse every RMSNorm of IN and write OUT. IN and its weights are never changed.

    --inputs, --shapes and --seed say what --verify runs the models on. With several models, one that fails does not
    stop the others, and the exit status is that of the worst.
    """
    wanted = _wanted(require)
    if allow and wanted != _ALL:
        raise UsageError("--allow exempts a norm from --require all, which is missing", "Add it, or leave out --allow.")
    allowed = dict.fromkeys(allow or (), False)

    def make(job: Job, progress: Told | None) -> Made:
        place = Output(
            job,
            example="fused.onnx",
            verify=verify,
            dry_run=dry_run,
            force=force,
            inputs=inputs,
            shapes=shapes,
            seed=seed,
            weights=weights,
            page=ReportFile(report_file, job.path, context, force=force, output=job.output),
        )
        from rmsnorm_deploy.fusing.fuse import fuse

        if progress is not None:
            progress("fusing", 0, 0)
        fused, report = fuse(job.path, form=op or form, dry_run=dry_run, also=also or ())
        _check_required(wanted, report, allowed)
        return Made(place, fused, report)

    with jobs_of(models, output) as jobs:
        require_one(report_file, jobs)
        status = for_each(jobs, make, as_json=as_json, table=_print)
    for name in (n for n, used in allowed.items() if not used):
        say(f"warning: --allow {name} exempts nothing: no candidate of this name was left")
    return status


def _print(report: Any) -> None:
    print_report(report)
    fewer = sum(f.rounding == "fewer" for f in report.fused)
    if fewer:
        say(f"note: {fewer} of them now round less often than the original (see explain)")


_ALL = -1


def _wanted(require: str | None) -> int | None:
    """The number of norms asked for; -1 for all."""
    if require is None:
        return None
    if require == "all":
        return _ALL
    if require.isdecimal():
        return int(require)
    raise UsageError(f"--require takes a number or 'all', not '{require}'", "Write --require 12 or --require all.")


def _check_required(wanted: int | None, report: Any, allowed: dict[str, bool]) -> None:
    """Whether enough is fused; notes which of ``allowed`` were needed.

    Raises:
        VerificationFailed: it is not.
    """
    if wanted is None:
        return
    there = len(report.fused) + report.already
    left = []
    for miss in report.near_misses:
        names = {miss.site.node, str(miss.site), miss.node} & allowed.keys()
        allowed.update(dict.fromkeys(names, True))
        if not names:
            left.append(f"{miss.site}: {miss.reason}")
    if there >= wanted if wanted != _ALL else (there or report.near_misses) and not left:
        return
    asked = "all norms" if wanted == _ALL else f"{wanted} norms"
    first = f"; left is {left[0]}" + (f", and {len(left) - 1} more" if len(left) > 1 else "") if left else ""
    why = "why the others are left" if report.near_misses else "what every reduction is taken for"
    raise VerificationFailed(
        f"--require asks for {asked}, and {report.summary()}{first}",
        f"'rmsnorm-deploy explain MODEL{' --all' if not report.near_misses else ''}' says {why}"
        + (", and --allow NODE exempts one" if wanted == _ALL and left else "")
        + "; nothing was written.",
    )
