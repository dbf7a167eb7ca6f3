"""The command ``fuse``."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from rmsnorm_deploy.cli.options import (
    FormOption,
    Inputs,
    JsonFlag,
    OldFormOption,
    Seed,
    Shapes,
    is_there,
    load_inputs,
    shapes_of,
)
from rmsnorm_deploy.cli.outcome import outcome
from rmsnorm_deploy.cli.printing import add_row, print_json, say, settle, show, table_of
from rmsnorm_deploy.errors import UsageError, VerificationFailed
from rmsnorm_deploy.fusing.forms import DEFAULT

ORDER = 10
"""Its place in the list of commands."""


def command(
    model: Annotated[Path, typer.Argument(metavar="IN", help="The exported model.")],
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="OUT", help="The fused model.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare with the original before OUT appears.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")] = False,
    require: Annotated[
        str | None, typer.Option("--require", metavar="N|all", help="Fail unless so many norms are fused.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing OUT.")] = False,
    form: FormOption = DEFAULT,
    op: OldFormOption = None,
    inputs: Inputs = None,
    shapes: Shapes = None,
    seed: Seed = 0,
    as_json: JsonFlag = False,
) -> None:
    """Fuse every RMSNorm of IN and write OUT. IN and its weights are never changed.

    --inputs, --shapes and --seed say what --verify runs the models on.
    """
    started = time.perf_counter()
    wanted = _wanted(require)
    if output is None and not dry_run:
        raise UsageError("there is no output: -o is missing", "Add '-o fused.onnx', or --dry-run to write nothing.")
    if dry_run and verify:
        raise UsageError("--verify needs a result, and --dry-run makes none", "Leave one of them out.")
    if not verify and (inputs is not None or shapes or seed):
        raise UsageError(
            "--inputs, --shapes and --seed are for --verify, which is missing", "Add --verify or leave them out."
        )
    if output == "-":
        raise UsageError("a model cannot be written to stdout", "Name a file: '-o fused.onnx'.")
    if output is not None:
        from rmsnorm_deploy.model.files import check_output, output_path

        # before any work: a refusal should not take a minute
        if is_there(model):
            check_output(output_path(output), source=model, overwrite=force or dry_run)
    from rmsnorm_deploy.fusing.fuse import fuse

    arrays, sizes = load_inputs(inputs, model), shapes_of(shapes)
    fused, report = fuse(model, form=op or form, dry_run=dry_run)
    if not as_json:
        _print_report(report)
    _check_required(wanted, report)
    result = None

    def check(staged: Path) -> None:
        nonlocal result
        if verify:
            from rmsnorm_deploy.check.verify import verify as compare

            result = compare(model, staged, inputs=arrays, shapes=sizes, seed=seed)
            result.require()

    with contextlib.ExitStack() as stack:
        saved = None
        if output is not None and not dry_run:
            from rmsnorm_deploy.model.save import saving

            saved = stack.enter_context(saving(fused, output, source=model, overwrite=force, check=check))
        # in here, so that a result that cannot be told leaves no output
        if as_json:
            print_json(
                {
                    **report.to_dict(),
                    "dry_run": dry_run,
                    "output": saved.to_dict() if saved else None,
                    "verification": result.to_dict() if result else None,
                }
            )
        settle()
    if result is not None:
        say(f"verified: {result.summary()}")
        if result.library:
            say(f"warning: verified without the library's kernels: {result.library}")
    if saved is not None:
        say(f"wrote {saved.path}" + (f"; {saved.note}" if saved.note else ""))
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


def _print_report(report: Any) -> None:
    names = sorted(set(report.ops_before) | set(report.ops_after))
    changed = [n for n in names if report.ops_before.get(n, 0) != report.ops_after.get(n, 0)]
    if changed:
        table = table_of("op", "before", "after", right=("before", "after"))
        for name in changed:
            add_row(table, name, str(report.ops_before.get(name, 0)), str(report.ops_after.get(name, 0)))
        add_row(table, "all nodes", str(sum(report.ops_before.values())), str(sum(report.ops_after.values())))
        show(table)
        show("")
    show(outcome(report))
    for warning in report.warnings:
        say(f"warning: {warning}")
    fewer = sum(f.rounding == "fewer" for f in report.fused)
    if fewer:
        say(f"note: {fewer} of them now round less often than the original (see explain)")
