"""The command ``unfuse``."""

from __future__ import annotations

from typing import Annotated

import typer

from rmsnorm_deploy.cli.each import Made, for_each
from rmsnorm_deploy.cli.options import Force, Inputs, JsonFlag, Seed, Shapes, WeightsOption
from rmsnorm_deploy.cli.printing import Told
from rmsnorm_deploy.cli.reporting import Report, ReportFile, require_one
from rmsnorm_deploy.cli.sources import Job, jobs_of
from rmsnorm_deploy.cli.writing import Output, print_report

ORDER = 15
"""Its place in the list of commands."""


def command(
    context: typer.Context,
    models: Annotated[
        list[str], typer.Argument(metavar="IN...", help="Fused models: files, folders, patterns; '-' for stdin.")
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="OUT", help="In standard operators; a folder for several; '-' for stdout."
        ),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare with IN before OUT appears.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")] = False,
    force: Force = False,
    weights: WeightsOption = None,
    inputs: Inputs = None,
    shapes: Shapes = None,
    seed: Seed = 0,
    report_file: Report = None,
    as_json: JsonFlag = False,
) -> int:
    """Write every norm of ours in IN as standard operators, for runtimes that know nothing else.

    --inputs, --shapes and --seed say what --verify runs the models on. With several models, one that fails does not
    stop the others, and the exit status is that of the worst.
    """

    def make(job: Job, progress: Told | None) -> Made:
        place = Output(
            job,
            example="plain.onnx",
            verify=verify,
            dry_run=dry_run,
            force=force,
            inputs=inputs,
            shapes=shapes,
            seed=seed,
            page=ReportFile(report_file, job.path, context, force=force, output=job.output),
            weights=weights,
        )
        from rmsnorm_deploy.fusing.unfuse import unfuse

        if progress is not None:
            progress("unfusing", 0, 0)
        return Made(place, *unfuse(job.path, dry_run=dry_run))

    with jobs_of(models, output) as jobs:
        require_one(report_file, jobs)
        return for_each(jobs, make, as_json=as_json, table=print_report)
