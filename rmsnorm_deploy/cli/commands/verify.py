"""The command ``verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rmsnorm_deploy.cli.options import Inputs, JsonFlag, Seed, Shapes, load_inputs, shapes_of
from rmsnorm_deploy.cli.printing import add_row, print_json, progress_bar, say, show, table_of
from rmsnorm_deploy.cli.reporting import Report, ReportFile, ReportForce

ORDER = 30
"""Its place in the list of commands."""


def command(
    context: typer.Context,
    original: Annotated[Path, typer.Argument(metavar="A", help="The original model.")],
    fused: Annotated[Path, typer.Argument(metavar="B", help="The fused model.")],
    inputs: Inputs = None,
    shapes: Shapes = None,
    seed: Seed = 0,
    rtol: Annotated[float | None, typer.Option("--rtol", min=0, help="Relative, per element, against A.")] = None,
    atol: Annotated[float | None, typer.Option("--atol", min=0, help="Absolute, per element, against A.")] = None,
    save_inputs: Annotated[
        Path | None, typer.Option("--save-inputs", metavar="DIR", help="Keep the inputs there, as .npz files.")
    ] = None,
    report_file: Report = None,
    force: ReportForce = False,
    as_json: JsonFlag = False,
) -> int:
    """Compare the outputs of B with those of A, and every norm of B alone with its place in A.

    The tolerance comes from a run of A in float64. A norm that differs is named, with what is probably wrong with it.
    The exit status is 1 if anything differs.
    """
    page = ReportFile(report_file, original, context, force=force)
    from rmsnorm_deploy.check.verify import verify

    with progress_bar("reading", shown=not as_json) as progress:
        result = verify(
            original,
            fused,
            inputs=load_inputs(inputs, original),
            shapes=shapes_of(shapes),
            seed=seed,
            rtol=rtol,
            atol=atol,
            save_inputs=save_inputs,
            progress=progress,
        )
    page.write(fused=fused, verification=result)
    if as_json:
        print_json(result.to_dict())
        return 0 if result.passed else 1
    table = table_of("output", "run", "inputs", "error", "original's", "allowed", "at", "")
    compared = [check for check in result.checks if check.output]  # none where the models have other inputs or outputs
    for check in compared:
        own = "-" if check.original_error is None else f"{check.original_error:.3g}"
        numbers = (f"{check.error:.3g}", own, f"{check.allowed:.3g}")
        verdict = "ok" if check.passed else check.reason
        add_row(table, check.output, check.run, check.inputs, *numbers, str(list(check.index)), verdict)
    if compared:
        show(table)
        show("")
    for site in result.sites:
        show(str(site), style=None if site.passed else "red")
    if result.truth:
        show(
            "errors in ULP: the spacing of the type's numbers at the row's largest value; measured against "
            + result.truth
        )
    kernels = "not counted" if result.kernel_nodes is None else str(result.kernel_nodes)
    show(f"fused nodes: {result.fused_nodes}; in the library's kernels: {kernels}")
    for note in [*result.notes, *([f"library not used: {result.library}"] if result.library else [])]:
        say(f"note: {note}")
    if result.passed:
        show(f"PASSED: {result.summary()}", style="green")
        return 0
    show(f"FAILED: {result.summary()}", style="red")
    return 1
