"""The command ``unfuse``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from rmsnorm_deploy.cli.options import Force, Inputs, JsonFlag, Seed, Shapes
from rmsnorm_deploy.cli.printing import say
from rmsnorm_deploy.cli.writing import Output, print_report

ORDER = 15
"""Its place in the list of commands."""


def command(
    model: Annotated[Path, typer.Argument(metavar="IN", help="The fused model.")],
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="OUT", help="The model in standard operators.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare with IN before OUT appears.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")] = False,
    force: Force = False,
    inputs: Inputs = None,
    shapes: Shapes = None,
    seed: Seed = 0,
    as_json: JsonFlag = False,
) -> None:
    """Write every norm of ours in IN as standard operators, for runtimes that know nothing else.

    --inputs, --shapes and --seed say what --verify runs the models on.
    """
    started = time.perf_counter()
    place = Output(
        model,
        output,
        example="plain.onnx",
        verify=verify,
        dry_run=dry_run,
        force=force,
        inputs=inputs,
        shapes=shapes,
        seed=seed,
    )
    from rmsnorm_deploy.fusing.unfuse import unfuse

    plain, report = unfuse(model, dry_run=dry_run)
    if not as_json:
        print_report(report)
    place.write(plain, report, as_json=as_json)
    say(f"took {time.perf_counter() - started:.2f} s")
