"""The command ``compile``."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from rmsnorm_deploy import tvm
from rmsnorm_deploy.cli.options import Force, JsonFlag, Mcpu, Mtriple, Target
from rmsnorm_deploy.cli.printing import add_row, print_json, progress_bar, say, settle, show, table_of
from rmsnorm_deploy.cli.streams import to_stderr
from rmsnorm_deploy.tvm.targets.blas import OPENBLAS
from rmsnorm_deploy.tvm.targets.cublas import CUBLAS, TARGET
from rmsnorm_deploy.tvm.targets.registry import ARCHITECTURES_IN_WORDS, CPU

ORDER = 60
"""Its place in the list of commands."""


def command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Fused or not.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to make.")],
    target: Target = "llvm",
    mcpu: Mcpu = None,
    arch: Annotated[
        str | None, typer.Option("--arch", metavar="GPUS", help=f"The GPUs. {ARCHITECTURES_IN_WORDS}.")
    ] = None,
    mtriple: Mtriple = None,
    dump_ir: Annotated[
        Path | None, typer.Option("--dump-ir", metavar="DIR", help="Write the module there after each pass.")
    ] = None,
    tuned: Annotated[
        Path | None, typer.Option("--tuned", metavar="LOG", help="Schedules that the command tune has found.")
    ] = None,
    blas: Annotated[
        str | None,
        typer.Option(
            "--blas",
            metavar="LIBRARY",
            help=f"What computes products of matrices: on a CPU {OPENBLAS} (scipy-openblas32, goes into the folder), "
            f"for {TARGET} {CUBLAS} (to be installed where the model runs), none, or the path of such a library that "
            f"is found there. By default {OPENBLAS} and {CUBLAS}.",
        ),
    ] = None,
    force: Force = False,
    timings: Annotated[bool, typer.Option("--timings", help="Show what each step took.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Compile MODEL with TVM into a folder that rmsnorm_deploy.tvm.load runs without the model."""
    with contextlib.ExitStack() as to_other:

        def told(made: tvm.Compiled) -> None:
            # a result that cannot be told leaves no folder
            to_other.close()
            if as_json:
                print_json(made.to_dict())
            else:
                show(_in_words(made, mtriple, arch))
                if timings:
                    _show_timings(made)
            settle()

        to_other.enter_context(to_stderr())
        progress = to_other.enter_context(progress_bar("reading", shown=not as_json))
        made = tvm.compile(
            *(model, target, mcpu),
            output=output,
            dump_ir=dump_ir,
            tuned=tuned,
            arch=arch,
            mtriple=mtriple,
            blas=blas,
            told=told,
            progress=progress,
            overwrite=force,
        )
    if made.tuned is not None:
        rest = f"; the log {tuned} has none, or an unfinished one, for the others: tune this model to the end"
        rest = "" if made.tuned == made.kernels else rest
        say(f"{made.tuned} of {made.kernels} kernels have a tuned schedule{rest}")
    if made.target in (CPU, TARGET):
        why_none = made.blas.removeprefix("none: ")
        if blas in (None, OPENBLAS) and why_none != made.blas:
            say(f"products are TVM's own slow loops, {why_none}")
        else:
            say(f"products of matrices by {made.blas}")
    say(f"took {made.seconds:.2f} s")


def _show_timings(made: tvm.Compiled) -> None:
    table = table_of("step", "seconds", "share", right=("seconds", "share"))
    rest = made.seconds - sum(made.timings.values())
    for name, seconds in [*made.timings.items(), ("everything else", rest), ("all", made.seconds)]:
        add_row(table, name.replace("_", " "), f"{seconds:.3f}", f"{seconds / made.seconds:.0%}")
    show(table)


def _in_words(made: tvm.Compiled, mtriple: str | None, arch: str | None) -> str:
    cpu = made.mcpu if mtriple is None else f"{made.mcpu}, {made.mtriple}"
    where = cpu if made.target == "llvm" else f"{arch}, driven by {cpu}" if arch else f"driven by {cpu}"
    norms, kernels = (
        f"{count} {what}{'' if count == 1 else 's'}" for count, what in ((made.norms, "norm"), (made.kernels, "kernel"))
    )
    return f"{made.path}: {norms} in {kernels}, for {made.target} {where}"
