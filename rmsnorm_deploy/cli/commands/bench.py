"""The command ``bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rmsnorm_deploy.cli.options import Inputs, JsonFlag, Seed, Shapes, Threads, load_inputs, shapes_of
from rmsnorm_deploy.cli.printing import add_row, print_json, progress_bar, say, show, table_of
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
    """Time MODEL and one of its norms: as it is, fused, fused without the library, and in onnxruntime's own form.

    All run in turns in one process.
    """
    page = ReportFile(report_file, model, context, force=force)
    from rmsnorm_deploy.check.bench import bench

    with progress_bar("reading", shown=not as_json) as progress:
        result = bench(
            model,
            fused,
            inputs=load_inputs(inputs, model),
            shapes=shapes_of(shapes),
            seed=seed,
            seconds=seconds,
            threads=threads,
            progress=progress,
        )
    page.write(fused=fused, bench=result)
    if as_json:
        print_json(result.to_dict())
        return
    right = ("median us", "p10", "p90", "runs", "fused is")
    table = table_of("what", "variant", *right, right=right)
    for c in result.comparisons:
        ratios = (f"{c.ratio:.2f}x", "", *(f"{ratio:.2f}x" for ratio in c.other_ratios))
        for timing, ratio in zip((c.before, c.after, *c.others), ratios, strict=True):
            times = (f"{v:.1f}" for v in (timing.median, timing.p10, timing.p90))
            add_row(table, c.what, timing.variant, *times, str(timing.runs), ratio)
    show(table)
    show("")
    for c in result.comparisons:
        show(f"{c.what} ({c.detail}): {c.verdict()}")
        show(f"  against {c.baseline}")
    if result.shares:
        show(f"the norms' share of the operators' time: {'; '.join(map(str, result.shares))}")
    show(f"{result.machine}; threads within an operator: {result.threads or 'chosen by onnxruntime'}")
    for note in result.notes:
        say(f"note: {note}")
