"""The command ``bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rmsnorm_deploy.cli.options import Inputs, JsonFlag, Seed, Shapes, Threads, load_inputs, shapes_of
from rmsnorm_deploy.cli.printing import add_row, print_json, say, show, table_of
from rmsnorm_deploy.cli.reporting import Report, ReportFile, ReportForce

ORDER = 40
"""Its place in the list of commands."""


def command(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The original model.")],
    fused: Annotated[Path | None, typer.Argument(metavar="[FUSED]", help="Made from MODEL when left out.")] = None,
    inputs: Inputs = None,
    shapes: Shapes = None,
    seed: Seed = 0,
    seconds: Annotated[float, typer.Option("--seconds", min=0.01, help="For each comparison.")] = 2.0,
    threads: Threads = 0,
    report_file: Report = None,
    force: ReportForce = False,
    as_json: JsonFlag = False,
) -> None:
    """Time MODEL and one of its norms, before and after.

    Both run in turns in one process.
    """
    page = ReportFile(report_file, model, context, force=force)
    from rmsnorm_deploy.check.bench import bench

    result = bench(
        model,
        fused,
        inputs=load_inputs(inputs, model),
        shapes=shapes_of(shapes),
        seed=seed,
        seconds=seconds,
        threads=threads,
    )
    page.write(fused=fused, bench=result)
    if as_json:
        print_json(result.to_dict())
        return
    table = table_of("what", "variant", "median us", "p10", "p90", "runs", right=("median us", "p10", "p90", "runs"))
    for c in result.comparisons:
        for timing in (c.before, c.after):
            times = (f"{v:.1f}" for v in (timing.median, timing.p10, timing.p90))
            add_row(table, c.what, timing.variant, *times, str(timing.runs))
    show(table)
    show("")
    for c in result.comparisons:
        show(f"{c.what} ({c.detail}): {c.ratio:.2f}x (p10 {c.ratio_p10:.2f}, p90 {c.ratio_p90:.2f})")
        show(f"  against {c.baseline}")
    show(f"{result.machine}; threads within an operator: {result.threads or 'chosen by onnxruntime'}")
    for note in result.notes:
        say(f"note: {note}")
