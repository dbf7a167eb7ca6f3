"""The command line: arguments in, one library call, its data printed. Data go to stdout, talk to stderr."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from rmsnorm_deploy.errors import MissingEnvironment, RmsNormDeployError, UsageError, VerificationFailed
from rmsnorm_deploy.tvm.targets.registry import ARCHITECTURES_IN_WORDS, TARGETS_IN_WORDS

# everything heavy (onnxruntime, rich's tables) is imported in the commands, so that --help is quick

_EPILOG = (
    "Exit codes: 0 done; 1 verification failed or --require not met; 2 usage; 3 model unreadable or unsafe; "
    "4 the environment lacks what was asked for."
)

app = typer.Typer(
    name="rmsnorm-deploy",
    help="Fuse every RMSNorm of an exported ONNX model into one op, check the result, time it.",
    epilog=_EPILOG,
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

JsonFlag = Annotated[bool, typer.Option("--json", help="The result as JSON on stdout, and nothing else there.")]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shapes", metavar="NAME:1,8,64", help="Shape of a generated input; may be repeated."),
]
Inputs = Annotated[Path | None, typer.Option("--inputs", metavar="FILE.npz", help="Real inputs, by name.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of the input generator.")]
Threads = Annotated[int, typer.Option("--threads", min=0, help="Within an operator; 0 is onnxruntime's choice.")]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status; the entry point of ``rmsnorm-deploy``.

    Args:
        arguments: without the program's name; those of the process by default.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given  # works before and behind the command
    given = [a for a in given if a != "--debug"]
    # a closed stream ("1>&-") is None here
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: PTH123, SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a name from the model that the terminal cannot show is no error
    previous = _stop_on_sigterm()

    def fail(message: str, hint: str, status: int, debug: bool) -> int:
        if "--json" in given:
            # whoever reads the result as data gets the error as data too
            with contextlib.suppress(OSError):
                error = {"message": message, "hint": hint, "exit_code": status}
                _print_json({"schema_version": 1, "error": error})
                sys.stdout.flush()
        return _fail(message, hint, status, debug)

    try:
        status = app(args=given, prog_name="rmsnorm-deploy", standalone_mode=False)
        sys.stdout.flush()
        if status == 130:  # newer releases of typer turn Ctrl-C into a status
            raise KeyboardInterrupt
        return int(status or 0)
    except RmsNormDeployError as error:
        return fail(error.message, error.hint, error.exit_code, debug)
    except (KeyboardInterrupt, typer.Abort):
        return fail("interrupted", "", 130, debug=False)
    except _Terminated:
        return fail("stopped by SIGTERM", "", 143, debug=False)
    except (BrokenPipeError, SystemExit):
        # the reader went away ("| head"), for which typer and rich exit: not an error, but nothing more can be said
        _silence_stdout()
        return 141
    except typer.Exit as error:
        return error.exit_code
    except OSError as error:
        # files of the user have errors of their own; what is left is the terminal, or the disk behind a redirection
        _silence_stdout()
        return _fail(
            f"cannot write: {error.strerror or error}", "Free some space.", MissingEnvironment.exit_code, debug
        )
    except Exception as error:
        # typer's own usage errors; newer releases carry click inside, so there is no one class to name
        if isinstance(error, _click_exception()):
            command = getattr(getattr(error, "ctx", None), "command_path", None) or "rmsnorm-deploy"
            text = error.format_message().rstrip(".")  # type: ignore[attr-defined]
            return fail(text[:1].lower() + text[1:], f"See '{command} --help'.", UsageError.exit_code, debug)
        what = f"unexpected {type(error).__name__}: {_first_line(error)}"
        return fail(what, "Run with --debug for the traceback, and please report it.", 70, debug)
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _silence_stdout() -> None:
    """The interpreter's last flush goes nowhere."""
    if sys.__stdout__ is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())


class _Terminated(BaseException):
    """SIGTERM arrived: unwinds like Ctrl-C, so that nothing half-written stays."""


def _stop_on_sigterm() -> Any:
    """Turn SIGTERM into an exception; the previous handler, or None outside the main thread."""

    def stop(*_: object) -> None:
        raise _Terminated

    try:
        return signal.signal(signal.SIGTERM, stop)
    except ValueError:
        return None


def _click_exception() -> type[BaseException]:
    return next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def _fail(message: str, hint: str, status: int, debug: bool) -> int:
    if debug and sys.exc_info()[0] is not None:
        import traceback

        traceback.print_exc()
    _say(f"error: {' '.join(message.split())}")
    if hint:
        _say(f"hint: {' '.join(hint.split())}")
    return status


def _clean(text: str) -> str:
    """Names come from the model: no control character of theirs may reach the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens: the exit status still tells
        sys.stderr.write(_clean(text) + "\n")
        sys.stderr.flush()


def _console() -> Any:
    from rich.console import Console

    terminal = sys.stdout.isatty()
    # rich obeys NO_COLOR by itself, but FORCE_COLOR as well unless it is told
    return Console(
        file=sys.stdout,
        force_terminal=terminal,
        width=None if terminal else 160,
        markup=False,
        emoji=False,
        highlight=False,
    )


def _table(*columns: str, right: tuple[str, ...] = ()) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _print(what: str | Any, style: str | None = None) -> None:
    _console().print(_clean(what) if isinstance(what, str) else what, style=style, soft_wrap=isinstance(what, str))


def _row(table: Any, *cells: str) -> None:
    from rich.text import Text

    table.add_row(*(Text(_clean(c)) for c in cells))


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False) + "\n")


def _version(wanted: bool) -> None:
    if wanted:
        from rmsnorm_deploy import __version__

        sys.stdout.write(f"rmsnorm-deploy {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; works behind a command as well.")] = False,
) -> None:
    pass  # typer needs the function; both options have acted by now


# -- fuse -------------------------------------------------------------------------------------------------------------


@app.command("fuse")
def fuse_command(
    model: Annotated[Path, typer.Argument(metavar="IN", help="The exported model.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="OUT", help="The fused model.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare with the original before OUT appears.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")] = False,
    require: Annotated[
        str | None, typer.Option("--require", metavar="N|all", help="Fail unless so many norms are fused.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing OUT.")] = False,
    form: Annotated[
        str, typer.Option("--op", metavar="FORM", help="How norms are written: plugin, onnx or ort.")
    ] = "plugin",
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
    if output is not None and str(output) == "-":
        raise UsageError("a model cannot be written to stdout", "Name a file: '-o fused.onnx'.")
    if output is not None:
        from rmsnorm_deploy.model.files import check_output

        # before any work: a refusal should not take a minute
        if model.exists():
            check_output(output, source=model, overwrite=force or dry_run)
    from rmsnorm_deploy.fusing.fuse import fuse

    arrays, sizes = _load_inputs(inputs, model), _shapes(shapes)
    fused, report = fuse(model, form=form, dry_run=dry_run)
    if not as_json:
        _print_report(report, dry_run=dry_run)
    _check_required(wanted, report)
    saved = result = None
    if output is not None and not dry_run:
        from rmsnorm_deploy.model.save import save

        def check(staged: Path) -> None:
            nonlocal result
            if verify:
                from rmsnorm_deploy.check.verify import verify as compare

                result = compare(model, staged, inputs=arrays, shapes=sizes, seed=seed)
                result.require()

        saved = save(fused, output, source=model, overwrite=force, check=check)
    if as_json:
        _print_json(
            {
                **report.to_dict(),
                "dry_run": dry_run,
                "output": saved.to_dict() if saved else None,
                "verification": result.to_dict() if result else None,
            }
        )
    if result is not None:
        _say(f"verified: {result.summary()}")
        if result.library:
            _say(f"warning: verified without the library's kernels: {result.library}")
    if saved is not None:
        _say(f"wrote {saved.path}" + (f"; {saved.note}" if saved.note else ""))
    _say(f"took {time.perf_counter() - started:.2f} s")


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


def _planned(report: Any) -> str:
    return str(report.summary()).replace("fused", "would fuse", 1)


def _already(report: Any) -> str:
    return f" ({report.already} fused before)" if report.already else ""


def _print_report(report: Any, *, dry_run: bool) -> None:
    names = sorted(set(report.ops_before) | set(report.ops_after))
    changed = [n for n in names if report.ops_before.get(n, 0) != report.ops_after.get(n, 0)]
    if changed:
        table = _table("op", "before", "after", right=("before", "after"))
        for name in changed:
            _row(table, name, str(report.ops_before.get(name, 0)), str(report.ops_after.get(name, 0)))
        _row(table, "all nodes", str(sum(report.ops_before.values())), str(sum(report.ops_after.values())))
        _print(table)
        _print("")
    _print((_planned(report) if dry_run else report.summary()) + _already(report))
    for warning in report.warnings:
        _say(f"warning: {warning}")
    fewer = sum(f.rounding == "fewer" for f in report.fused)
    if fewer:
        _say(f"note: {fewer} of them now round less often than the original (see explain)")


# -- explain ----------------------------------------------------------------------------------------------------------


@app.command("explain")
def explain_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL")],
    site: Annotated[str | None, typer.Option("--site", metavar="NAME", help="Only this candidate, by node.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Reductions that are no mean square as well.")] = False,
    form: Annotated[str, typer.Option("--op", help="The form to explain: plugin, onnx or ort.")] = "plugin",
    as_json: JsonFlag = False,
) -> None:
    """Say what would be fused, and what not and why."""
    from rmsnorm_deploy.fusing.fuse import fuse

    _, report = fuse(model, form=form, dry_run=True)
    fused, missed = list(report.fused), list(report.missed)
    if site is not None:
        fused = [f for f in fused if site in (f.node, f.output, *f.removed, *f.kept)]
        missed = [m for m in missed if site in (m.site.node, str(m.site), m.node)]
        if not fused and not missed:
            raise UsageError(
                f"there is no candidate '{site}' in {model}", "'rmsnorm-deploy explain MODEL --all' lists them."
            )
    elif not everything:
        missed = list(report.near_misses)
    if as_json:
        import dataclasses

        _print_json(dataclasses.replace(report, fused=tuple(fused), missed=tuple(missed)).to_dict())
        return
    for f in fused:
        where = f"{f.scope}/{f.node}" if f.scope else f.node
        _print(f"fused   {where}: {f.op} {f.type.lower()}, axes {list(f.axes)}, epsilon {f.epsilon:g}")
        _print(f"        spelling: {f.spelling}")
        if f.rounding != "same":
            _print(f"        rounding: {f.rounding}")
        if f.kept:
            _print(f"        kept {len(f.kept)} nodes that others use: {', '.join(f.kept)}")
        for note in f.notes:
            _print(f"        note: {note}")
    for m in missed:
        _print(f"left    {m.site} ({m.site.op_type}): got as far as {m.stage.label}; {m.reason}")
        if m.expected or m.found:
            _print(f"        at {m.node or m.site.node}: expected {m.expected or '-'}, found {m.found or '-'}")
        if m.hint:
            _print(f"        hint: {m.hint}")
    hidden = len(report.missed) - len(missed)
    if hidden and site is None:
        others = "1 other reduction is" if hidden == 1 else f"{hidden} other reductions are"
        _print(f"{others} no RMSNorm (--all says why)")
    _print(_planned(report).replace(" (run explain)", "") + _already(report))
    for warning in report.warnings:
        _say(f"warning: {warning}")


# -- verify -----------------------------------------------------------------------------------------------------------


@app.command("verify")
def verify_command(
    original: Annotated[Path, typer.Argument(metavar="A", help="The original model.")],
    fused: Annotated[Path, typer.Argument(metavar="B", help="The fused model.")],
    inputs: Inputs = None,
    shapes: Shapes = None,
    seed: Seed = 0,
    rtol: Annotated[float | None, typer.Option("--rtol", min=0, help="Relative, per element, against A.")] = None,
    atol: Annotated[float | None, typer.Option("--atol", min=0, help="Absolute, per element, against A.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Compare the outputs of B with those of A.

    The tolerance comes from a run of A in float64. The exit status is 1 if they differ.
    """
    from rmsnorm_deploy.check.verify import verify

    result = verify(
        original, fused, inputs=_load_inputs(inputs, original), shapes=_shapes(shapes), seed=seed, rtol=rtol, atol=atol
    )
    if as_json:
        _print_json(result.to_dict())
        return 0 if result.passed else 1
    table = _table("output", "run", "inputs", "error", "original's", "allowed", "at", "")
    for check in result.checks:
        own = "-" if check.original_error is None else f"{check.original_error:.3g}"
        numbers = (f"{check.error:.3g}", own, f"{check.allowed:.3g}")
        verdict = "ok" if check.passed else check.reason
        _row(table, check.output, check.run, check.inputs, *numbers, str(list(check.index)), verdict)
    _print(table)
    _print("")
    _print("errors in ULP: the type's epsilon times the row's largest value; measured against " + (result.truth or "-"))
    kernels = "not counted" if result.kernel_nodes is None else str(result.kernel_nodes)
    _print(f"fused nodes: {result.fused_nodes}; in the library's kernels: {kernels}")
    for note in [*result.notes, *([f"library not used: {result.library}"] if result.library else [])]:
        _say(f"note: {note}")
    if result.passed:
        _print(f"PASSED: {result.summary()}", style="green")
        return 0
    _print(f"FAILED: {result.summary()}", style="red")
    return 1


def _load_inputs(path: Path | None, model: Path) -> Any:
    if path is None:
        return None
    from rmsnorm_deploy.model.load import load_proto
    from rmsnorm_deploy.run.inputs import load_inputs

    return load_inputs(path, load_proto(model))


def _shapes(texts: list[str] | None) -> Any:
    from rmsnorm_deploy.run.inputs import parse_shapes

    return parse_shapes(texts) if texts else None


# -- bench ------------------------------------------------------------------------------------------------------------


@app.command("bench")
def bench_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The original model.")],
    fused: Annotated[Path | None, typer.Argument(metavar="[FUSED]", help="Made from MODEL when left out.")] = None,
    inputs: Inputs = None,
    shapes: Shapes = None,
    seed: Seed = 0,
    seconds: Annotated[float, typer.Option("--seconds", min=0.01, help="For each comparison.")] = 2.0,
    threads: Threads = 0,
    as_json: JsonFlag = False,
) -> None:
    """Time MODEL and one of its norms, before and after.

    Both run in turns in one process.
    """
    from rmsnorm_deploy.check.bench import bench

    result = bench(
        model,
        fused,
        inputs=_load_inputs(inputs, model),
        shapes=_shapes(shapes),
        seed=seed,
        seconds=seconds,
        threads=threads,
    )
    if as_json:
        _print_json(result.to_dict())
        return
    table = _table("what", "variant", "median us", "p10", "p90", "runs", right=("median us", "p10", "p90", "runs"))
    for c in result.comparisons:
        for timing in (c.before, c.after):
            times = (f"{v:.1f}" for v in (timing.median, timing.p10, timing.p90))
            _row(table, c.what, timing.variant, *times, str(timing.runs))
    _print(table)
    _print("")
    for c in result.comparisons:
        _print(f"{c.what} ({c.detail}): {c.ratio:.2f}x (p10 {c.ratio_p10:.2f}, p90 {c.ratio_p90:.2f})")
        _print(f"  against {c.baseline}")
    _print(f"{result.machine}; threads within an operator: {result.threads or 'chosen by onnxruntime'}")
    for note in result.notes:
        _say(f"note: {note}")


# -- doctor and demo --------------------------------------------------------------------------------------------------


@app.command("doctor")
def doctor_command(as_json: JsonFlag = False) -> None:
    """Say what works on this machine, and what to do about the rest."""
    from rmsnorm_deploy.check.doctor import examine

    found = examine()
    if as_json:
        _print_json(found)
        return
    library, gpu = found["library"], found["gpu"]
    lines = {
        "python": found["python"],
        "machine": found["machine"],
        "instruction sets": ", ".join(found["instruction_sets"]) or "unknown",
        **{name: version or "not installed" for name, version in found["versions"].items()},
        "providers": ", ".join(found["providers"]) or "none",
        "library": f"{library['path'] or 'not found'}" + (", loads" if library["loads"] else f"; {library['problem']}"),
        "library's GPU kernels": ", ".join(library["cuda_architectures"]) or "none: built without CUDA",
        "GPU": gpu["problem"] or f"{', '.join(gpu['devices'])}; driver for CUDA {gpu['driver_cuda']}",
        **found["runs"],
    }
    if found["forced_instruction_set"]:
        lines["RMSNORM_DEPLOY_ISA"] = found["forced_instruction_set"]
    width = max(len(name) for name in lines)
    for name, text in lines.items():
        _print(f"{name:<{width}}  {text}")
    for advice in found["advice"]:
        _say(f"hint: {advice}")


# -- compile ----------------------------------------------------------------------------------------------------------


MtripleOption = Annotated[
    str | None,
    typer.Option("--mtriple", metavar="TRIPLE", help="Of a machine of another architecture: aarch64-linux-gnu."),
]


@app.command("compile")
def compile_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Fused or not.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to make.")],
    target: Annotated[str, typer.Option("--target", metavar="TARGET", help=f"{TARGETS_IN_WORDS}.")] = "llvm",
    mcpu: Annotated[
        str | None, typer.Option("--mcpu", metavar="CPU", help="LLVM's name of the CPU; this machine's by default.")
    ] = None,
    arch: Annotated[
        str | None, typer.Option("--arch", metavar="GPUS", help=f"The GPUs. {ARCHITECTURES_IN_WORDS}.")
    ] = None,
    mtriple: MtripleOption = None,
    dump_ir: Annotated[
        Path | None, typer.Option("--dump-ir", metavar="DIR", help="Write the module there after each pass.")
    ] = None,
    tuned: Annotated[
        Path | None, typer.Option("--tuned", metavar="LOG", help="Schedules that the command tune has found.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compile MODEL with TVM into a folder that rmsnorm_deploy.tvm.load runs without the model."""
    from rmsnorm_deploy import tvm

    with _to_stderr():
        made = tvm.compile(model, target, mcpu, output=output, dump_ir=dump_ir, tuned=tuned, arch=arch, mtriple=mtriple)
    if as_json:
        _print_json(made.to_dict())
    else:
        cpu = made.mcpu if mtriple is None else f"{made.mcpu}, {made.mtriple}"
        where = cpu if made.target == "llvm" else f"{arch}, driven by {cpu}" if arch else f"driven by {cpu}"
        norms, kernels = (
            f"{count} {what}{'' if count == 1 else 's'}"
            for count, what in ((made.norms, "norm"), (made.kernels, "kernel"))
        )
        _print(f"{made.path}: {norms} in {kernels}, for {made.target} {where}")
    if made.tuned is not None:
        rest = f"; the log {tuned} has none, or an unfinished one, for the others: tune this model to the end"
        rest = "" if made.tuned == made.kernels else rest
        _say(f"{made.tuned} of {made.kernels} kernels have a tuned schedule{rest}")
    _say(f"took {made.seconds:.2f} s")


# -- tune -------------------------------------------------------------------------------------------------------------


@app.command("tune")
def tune_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Fused or not.")],
    target: Annotated[str, typer.Option("--target", metavar="TARGET", help="As for compile.")] = "llvm",
    mcpu: Annotated[
        str | None,
        typer.Option("--mcpu", metavar="CPU", help="LLVM's name of the CPU; by default this machine's."),
    ] = None,
    arch: Annotated[
        str | None, typer.Option("--arch", metavar="GPU", help="One GPU. For cuda, the one that is here by default.")
    ] = None,
    mtriple: MtripleOption = None,
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
        _say("note: kernels are compiled for this machine's CPU; --mcpu names the devices' where it is another")
    path = Path(f"{model.stem}.tuning.json") if log is None else log
    try:
        with _to_stderr(), _bar(shown=sys.stderr.isatty() and not as_json) as advance:
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
                progress=advance,
            )
    except KeyboardInterrupt:
        if path.exists():
            _say(f"note: {path} has what was measured; the same command continues")
        raise
    report = found.to_dict()
    if as_json:
        _print_json(report)
    else:
        _print_tuning(report)
    if found.lost:
        _say(f"note: {found.lost} times a device was lost on the way, and what it was measuring measured elsewhere")
    unfinished = any(norm["schedule"] is None for norm in report["norms"])
    everything = not found.measured and not unfinished
    _say(f"{found.measured} measurements{': the log had everything' if everything else ''}")
    if unfinished:
        _say("note: some norms have no schedule yet; the same command with more --seconds continues")
    options = "" if target == "llvm" else f" --target {target}" + (f" --arch {found.cpu}" if found.cpu else "")
    options += "".join(f" {name} {v}" for name, v in (("--mtriple", mtriple), ("--mcpu", mcpu)) if v)
    if path.exists():
        _say(f"wrote {found.path}; use it with 'rmsnorm-deploy compile {model}{options} --tuned {found.path} -o DIR'")
    _say(f"took {found.seconds:.1f} s")


def _print_tuning(report: dict[str, Any]) -> None:
    right = ("speed-up", "measured", "discarded", *(f"us, {r} rows" for r in report["rows"]))
    table = _table("kernel", "schedule", "speed-up", *right[3:], "measured", "discarded", right=right)
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
        _row(table, norm["name"], what, gain, *times, str(norm["measured"]), str(len(norm["discarded"])))
    _print(table)
    _print("")
    where = f"{report['devices']} device{'s' if report['devices'] != 1 else ''}"
    _print(f"for {report['target']} {report['cpu']}, on {where}; speed-up: geometric mean over the row counts")
    for norm in report["norms"]:
        for discarded in norm["discarded"]:
            _say(f"note: {norm['name']}: {_parameters(discarded['schedule'])} {discarded['why']}")


def _microseconds(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _parameters(schedule: dict[str, int]) -> str:
    return ", ".join(f"{k} {v}" for k, v in schedule.items())


@contextlib.contextmanager
def _bar(*, shown: bool) -> Iterator[Any]:
    """A progress bar on stderr; yields what is to be called with the progress, or None."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.text import Text

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(file=sys.stderr, markup=False, highlight=False), transient=True) as bar:
        task = bar.add_task("importing", total=None)

        def advance(step: Any) -> None:
            lost = f", {step.lost} lost" if step.lost else ""
            words = Text(f"{step.norm}: {step.outcome}{lost}").plain
            bar.update(task, total=step.total, completed=step.done, description=_clean(words))

        yield advance


@contextlib.contextmanager
def _to_stderr() -> Iterator[None]:
    """What TVM and the linker write to the process's stdout goes to stderr: stdout is for data."""
    sys.stdout.flush()
    try:
        saved = os.dup(1)
    except OSError:  # there is none
        yield
        return
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


@app.command("demo")
def demo_command(
    seconds: Annotated[float, typer.Option("--seconds", min=0.01, help="For each comparison.")] = 1.5,
    as_json: JsonFlag = False,
) -> int:
    """Fuse, verify and time four small exported models."""
    from rmsnorm_deploy.check.demo import agreement, demonstrate, model_folder

    started = time.perf_counter()
    folder = model_folder()
    rows = []
    for row in demonstrate(folder, seconds=seconds):
        rows.append(row)
        if sys.stderr.isatty():
            _say(f"{row.name}: done")
    same = agreement(next(iter(sorted(folder.glob("*.onnx")))))
    passed = same.agrees and all(r.verification.passed for r in rows)
    if as_json:
        import dataclasses

        _print_json({"schema_version": 1, "models": [r.to_dict() for r in rows], "agreement": dataclasses.asdict(same)})
        return 0 if passed else 1
    right = ("norms", "fused", "nodes", "one norm, us", "model, us")
    table = _table("model", "norms", "fused", "nodes", "verified", "one norm, us", "model, us", right=right)
    for r in rows:
        times = {
            c.what: f"{c.before.median:.1f} -> {c.after.median:.1f} ({c.ratio:.2f}x)" for c in r.timing.comparisons
        }
        _row(
            table,
            r.name,
            str(len(r.report.fused) + len(r.report.near_misses)),
            str(len(r.report.fused)),
            f"{sum(r.report.ops_before.values())} -> {sum(r.report.ops_after.values())}",
            "yes" if r.verification.passed else "NO",
            times.get("one norm", "-"),
            times.get("model", "-"),
        )
    _print(table)
    _print("")
    timing = rows[0].timing
    norm = next((c.detail for c in timing.comparisons if c.what == "one norm"), "")
    _print(f"before: onnxruntime {timing.onnxruntime} with its optimizer on; medians, in turns, on {timing.machine}")
    _print(f"one norm: {norm} ({rows[0].name}); the models are tiny, so most of their time is calls, not arithmetic")
    if same.library:
        _print(f"the fused files ran by their function bodies: {same.library}")
    else:
        _print(
            f"one fused file, with the library and without: {'both agree' if same.agrees else 'they DIFFER'} "
            f"({same.name}: largest difference {same.ulps:.2g} ULP of the output's largest value)"
        )
    for r in rows:
        if not r.verification.passed:
            _print(f"FAILED: {r.name}: {r.verification.summary()}")
    _say(f"took {time.perf_counter() - started:.1f} s")
    return 0 if passed else 1
