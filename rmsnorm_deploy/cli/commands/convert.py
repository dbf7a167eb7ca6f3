"""The command ``convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rmsnorm_deploy.cli.each import Made, for_each
from rmsnorm_deploy.cli.options import Force, FormOption, Inputs, JsonFlag, Seed, Shapes
from rmsnorm_deploy.cli.printing import Told, say, show
from rmsnorm_deploy.cli.reporting import Report, ReportFile
from rmsnorm_deploy.cli.sources import Job, jobs_of
from rmsnorm_deploy.cli.writing import Output, print_changes
from rmsnorm_deploy.errors import UsageError, VerificationFailed, first_few
from rmsnorm_deploy.fusing.forms import DEFAULT

ORDER = 17
"""Its place in the list of commands."""
_FIRST = 8
"""Names that are shown of a list, unless the proof is asked for."""


def command(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="IN", help="The exported model.")],
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="OUT", help="The converted model.")] = None,
    fuse: Annotated[bool, typer.Option("--fuse/--no-fuse", help="Write each norm as one operator.")] = True,
    verify: Annotated[
        bool | None, typer.Option("--verify/--no-verify", help="Compare with IN before OUT appears; the default.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the proof; write nothing.")] = False,
    require: Annotated[
        str | None, typer.Option("--require", metavar="N|all", help="Fail unless so many LayerNorms are converted.")
    ] = None,
    force: Force = False,
    form: FormOption = DEFAULT,
    inputs: Inputs = None,
    shapes: Shapes = None,
    seed: Seed = 0,
    report_file: Report = None,
    as_json: JsonFlag = False,
) -> None:
    """Make RMSNorms of the LayerNorms of IN that are proven to be, by taking the mean out of the weights.

    OUT is compared with IN evaluated in float64 and may not be less exact than IN itself.

    --inputs, --shapes and --seed say what the comparison runs the models on. IN and its weights are never changed.
    """
    wanted = _wanted(require)

    def make(job: Job, progress: Told | None) -> Made:
        place = Output(
            job,
            example="converted.onnx",
            verify=not dry_run if verify is None else verify,
            dry_run=dry_run,
            force=force,
            inputs=inputs,
            shapes=shapes,
            seed=seed,
            page=ReportFile(report_file, job.path, context, force=force, output=job.output),
            no_less_exact=True,
        )
        from rmsnorm_deploy.converting.convert import convert

        if progress is not None:
            progress("converting", 0, 0)
        result, report = convert(job.path, fuse=fuse, form=form, dry_run=dry_run)
        if wanted is not None and report.converted < (report.found if wanted < 0 else wanted):
            raise VerificationFailed(
                f"--require asks for {'all' if wanted < 0 else wanted} LayerNorms, and {report.summary()}",
                "'rmsnorm-deploy convert MODEL --dry-run' says why the others are left; nothing was written.",
            )
        return Made(place, result, report)

    if model.is_dir():
        raise UsageError(f"{model} is a folder, and convert takes one model", "Name a file.")
    with jobs_of([str(model)], output) as jobs:
        for_each(jobs, make, as_json=as_json, table=lambda report: _print(report, proof=dry_run))


def _wanted(require: str | None) -> int | None:
    """The number of LayerNorms asked for; -1 for all."""
    if require is None or require == "all" or require.isdecimal():
        return None if require is None else -1 if require == "all" else int(require)
    raise UsageError(f"--require takes a number or 'all', not '{require}'", "Write --require 12 or --require all.")


def _print(report: Any, *, proof: bool) -> None:
    for stream in report.streams:
        if not stream.converted:
            show(f"left     {_list(stream.norms, proof)}: {stream.reason}")
            continue
        show(f"stream   {len(stream.values)} values without a mean, read by {_list(stream.norms, proof)}")
        if proof:
            show(f"         values: {', '.join(stream.values)}")
        for edit in stream.edits if proof else ():
            scales = f", scaled by {', '.join(edit.scales)}" if edit.scales else ""
            what = "a copy of it, as others read it, too" if edit.copied else "read by " + ", ".join(edit.read_by)
            show(f"edited   {edit.name}: its mean over dimension {edit.axis}{scales}; {what}")
        if not proof:
            show(f"edited   {_list([edit.name for edit in stream.edits], proof)}")
        for centring in stream.centrings:
            show(f"centred  {centring.value} at run time: {centring.reason}")
        for norm, products in stream.folded.items() if proof else ():
            show(f"bias     of {norm} goes into {', '.join(products)}")
    for node, reason in report.others:
        show(f"left     {node}: {reason}")
    print_changes(report)
    show(report.summary())
    for warning in report.warnings:
        say(f"warning: {warning}")


def _list(names: Any, whole: bool) -> str:
    return first_few(names, len(names) if whole else _FIRST)
