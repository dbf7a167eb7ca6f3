"""The command ``tune``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from rmsnorm_deploy.cli.options import JsonFlag, Mcpu, Mtriple, Target
from rmsnorm_deploy.cli.printing import add_row, print_json, progress_bar, say, show, table_of
from rmsnorm_deploy.cli.streams import to_stderr
from rmsnorm_deploy.errors import UsageError

ORDER = 70
"""Its place in the list of commands."""


def command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Fused or not.")],
    target: Target = "llvm",
    mcpu: Mcpu = None,
    arch: Annotated[
        str | None, typer.Option("--arch", metavar="GPU", help="One GPU. For cuda, the one that is here by default.")
    ] = None,
    mtriple: Mtriple = None,
    tracker: Annotated[
        str | None, typer.Option("--tracker", metavar="HOST:PORT", help="Measure on the devices of a TVM RPC tracker.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Of the devices; all that have it work in parallel.")
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="FILE", help="To write, or to continue.  [default: MODEL.tuning.json]"),
    ] = None,
    rows: Annotated[
        str, typer.Option("--rows", metavar="N,N", help="Row counts; the geometric mean of their times counts.")
    ] = "1,16,512",
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Schedules to measure for each norm at most.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.01, help="Then begin no other measurement, and choose.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Search the fastest schedule of each norm in MODEL, for compile --tuned.

    One schedule serves every number of rows. It replaces the default only where it wins by more than the noise.
    Interrupt it at any time: the same command continues.
    """
    from rmsnorm_deploy import tvm

    if not all(part.strip().isdecimal() for part in rows.split(",")):
        raise UsageError(f"--rows takes numbers with commas between them, not '{rows}'", "For instance 1,16,512.")
    counts = [int(part) for part in rows.split(",")]
    if tracker is not None and mcpu is None and mtriple is None:
        say("note: kernels are compiled for this machine's CPU; --mcpu names the devices' where it is another")
    path = Path(f"{model.stem}.tuning.json") if log is None else log
    try:
        with to_stderr(), progress_bar("importing", shown=not as_json) as update:
            found = tvm.tune(
                model,
                target,
                mcpu,
                log=path,
                arch=arch,
                mtriple=mtriple,
                tracker=tracker,
                key=key,
                rows=counts,
                trials=trials,
                seconds=seconds,
                progress=None if update is None else _advance(update),
            )
    except KeyboardInterrupt:
        if path.exists():
            say(f"note: {path} has what was measured; the same command continues")
        raise
    report = found.to_dict()
    if as_json:
        print_json(report)
    else:
        _print_tuning(report)
    if found.lost:
        say(f"note: {found.lost} times a device was lost on the way, and what it was measuring measured elsewhere")
    unfinished = any(norm["schedule"] is None for norm in report["norms"])
    everything = not found.measured and not unfinished
    say(f"{found.measured} measurements{': the log had everything' if everything else ''}")
    if unfinished:
        say("note: some norms have no schedule yet; the same command with more --seconds continues")
    options = "" if target == "llvm" else f" --target {target}" + (f" --arch {found.cpu}" if found.cpu else "")
    options += "".join(f" {name} {v}" for name, v in (("--mtriple", mtriple), ("--mcpu", mcpu)) if v)
    if path.exists():
        say(f"wrote {found.path}; use it with 'rmsnorm-deploy compile {model}{options} --tuned {found.path} -o DIR'")
    say(f"took {found.seconds:.1f} s")


def _print_tuning(report: dict[str, Any]) -> None:
    right = ("speed-up", "measured", "discarded", *(f"us, {r} rows" for r in report["rows"]))
    table = table_of("kernel", "schedule", "speed-up", *right[3:], "measured", "discarded", right=right)
    for norm in report["norms"]:
        chosen = norm["schedule"]
        changed = {k: v for k, v in (chosen or {}).items() if norm["default"].get(k) != v}
        what = ", ".join(f"{k} {v}" for k, v in changed.items()) or ("default" if chosen else "not measured")
        before, after = norm["default_microseconds"], norm["microseconds"]
        times = (
            _microseconds(before[str(r)]) + (f" -> {_microseconds(after[str(r)])}" if changed else "")
            if before
            else "-"
            for r in report["rows"]
        )
        gain = f"{norm['speedup']:.2f}x" if changed else "-"
        add_row(table, norm["name"], what, gain, *times, str(norm["measured"]), str(len(norm["discarded"])))
    show(table)
    show("")
    where = f"{report['devices']} device{'s' if report['devices'] != 1 else ''}"
    show(f"for {report['target']} {report['cpu']}, on {where}; speed-up: geometric mean over the row counts")
    for norm in report["norms"]:
        for discarded in norm["discarded"]:
            say(f"note: {norm['name']}: {_parameters(discarded['schedule'])} {discarded['why']}")


def _microseconds(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _parameters(schedule: dict[str, int]) -> str:
    return ", ".join(f"{k} {v}" for k, v in schedule.items())


def _advance(update: Callable[[str, int, int], None]) -> Callable[[Any], None]:
    """What is to be called with the progress of the search."""

    def advance(step: Any) -> None:
        lost = f", {step.lost} lost" if step.lost else ""
        update(f"{step.norm}: {step.outcome}{lost}", step.done, step.total)

    return advance
