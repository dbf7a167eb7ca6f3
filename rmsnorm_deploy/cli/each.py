"""One command for several models: what fails does not stop the others, and one summary says how each went."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rmsnorm_deploy.cli.outcome import outcome
from rmsnorm_deploy.cli.printing import Told, add_row, print_json, progress_bar, say, settle, show, table_of
from rmsnorm_deploy.cli.signals import has_arrived
from rmsnorm_deploy.cli.sources import Job, Jobs
from rmsnorm_deploy.cli.writing import Output
from rmsnorm_deploy.errors import RmsNormDeployError, UsageError, first_line

SCHEMA_VERSION = 1


@dataclasses.dataclass
class Made:
    """What a command made of one model.

    Attributes:
        place: where it goes.
        result: the model.
        report: what was done.
    """

    place: Output
    result: Any
    report: Any


Maker = Callable[[Job, Told | None], Made]


@dataclasses.dataclass(frozen=True)
class _Row:
    name: str
    report: Any = None
    place: Output | None = None
    error: RmsNormDeployError | None = None

    @property
    def status(self) -> int:
        return 0 if self.error is None else self.error.exit_code


class _Unexpected(RmsNormDeployError):
    exit_code = 70


def for_each(jobs: Jobs, make: Maker, *, as_json: bool, table: Callable[[Any], None]) -> int:
    """Do what a command does for each of its models, and say how it went.

    One model alone has its own table, or its own JSON; its errors are raised. Several have one line of JSON each, as
    soon as they are done, and a last one with a summary; or one table.

    Args:
        jobs: the models.
        make: what makes a result of a model, before anything is written.
        as_json: the results are data on stdout.
        table: prints what was done to one model.

    Returns:
        The exit status: the highest of all models.
    """
    started = time.perf_counter()
    if not jobs.several:
        _one(jobs.jobs[0], make, as_json, table)
        say(f"took {time.perf_counter() - started:.2f} s")
        return 0
    rows = [_row(job, make, as_json, f"{i}/{len(jobs.jobs)} ") for i, job in enumerate(jobs.jobs, start=1)]
    status = max(row.status for row in rows)
    if as_json:
        failed = sum(row.status != 0 for row in rows)
        norms = sum(len(row.report.fused) for row in rows if row.error is None)
        summary = {"models": len(rows), "failed": failed, "norms": norms, "exit_code": status}
        print_json({"schema_version": SCHEMA_VERSION, "summary": summary}, line=True)
    else:
        _print_summary(rows)
    settle()
    say(f"took {time.perf_counter() - started:.2f} s")
    return status


def _one(job: Job, make: Maker, as_json: bool, table: Callable[[Any], None]) -> None:
    with contextlib.ExitStack() as in_place:
        with _bar("", as_json) as progress:
            made = make(job, progress)
            if made.place.takes_stdout and as_json:
                raise UsageError("the model goes to stdout, where --json prints", "Name a file, or leave out --json.")
            in_place.enter_context(made.place.written(made.result, made.report, progress))
        # in here, so that a result that cannot be told leaves no output
        made.place.tell(made.report, as_json=as_json, table=table)
        settle()
    made.place.talk()


def _row(job: Job, make: Maker, as_json: bool, prefix: str) -> _Row:
    try:
        with contextlib.ExitStack() as in_place:
            with _bar(f"{prefix}{job.name}: ", as_json) as progress:
                made = make(job, progress)
                in_place.enter_context(made.place.written(made.result, made.report, progress))
            if as_json:
                print_json({"model": job.name, **made.place.to_dict(made.report)}, line=True)
                sys.stdout.flush()
        for warning in made.report.warnings:
            say(f"warning: {job.name}: {warning}")
        made.place.talk()
        return _Row(job.name, made.report, made.place)
    except OSError:  # stdout, or the disk behind it
        raise
    except Exception as error:
        if has_arrived():
            raise
        if isinstance(error, RmsNormDeployError):
            return _failed(job, error, as_json)
        what = f"unexpected {type(error).__name__}: {first_line(error)}"
        hint = "Run it alone with --debug for the traceback, and please report it."
        return _failed(job, _Unexpected(what, hint), as_json)


def _failed(job: Job, error: RmsNormDeployError, as_json: bool) -> _Row:
    if as_json:
        told = {"message": error.message, "hint": error.hint, "exit_code": error.exit_code}
        print_json({"schema_version": SCHEMA_VERSION, "model": job.name, "error": told}, line=True)
        sys.stdout.flush()
    say(f"error: {job.name}: {' '.join(error.message.split())}")
    if error.hint:
        say(f"hint: {' '.join(error.hint.split())}")
    return _Row(job.name, error=error)


@contextlib.contextmanager
def _bar(prefix: str, as_json: bool) -> Iterator[Told | None]:
    with progress_bar(f"{prefix}reading", shown=not as_json) as update:
        yield None if update is None else lambda words, done, total: update(prefix + words, done, total)


def _print_summary(rows: list[_Row]) -> None:
    table = table_of("model", "norms", "fused", "nodes", "result", right=("norms", "fused"))
    for row in rows:
        if row.error is not None:
            add_row(table, row.name, "-", "-", "-", f"FAILED ({row.status})")
            continue
        report, place = row.report, row.place
        nodes = f"{sum(report.ops_before.values())} -> {sum(report.ops_after.values())}"
        norms = len(report.fused) + len(report.near_misses)
        result = outcome(report) if place is None or place.saved is None else str(place.saved.path)
        verified = ", verified" if place is not None and place.compared is not None else ""
        add_row(table, row.name, str(norms), str(len(report.fused)), nodes, result + verified)
    show(table)
    show("")
    good = [row for row in rows if row.error is None]
    fused = sum(len(row.report.fused) for row in good)
    near = sum(len(row.report.near_misses) for row in good)
    verb = f"would {good[0].report.task}" if good and good[0].report.dry_run else "wrote anew"
    text = f"{len(good)} of {len(rows)} models done; {verb} {fused} of {fused + near} norms"
    show(text, style="green" if len(good) == len(rows) else "red")
