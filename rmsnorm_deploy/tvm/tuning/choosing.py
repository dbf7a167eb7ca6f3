"""What is measured next, and which schedule is chosen from the figures.

A kernel has a symbolic number of rows, so one schedule serves every one: the best is the one with the least geometric
mean of times over a few row counts, among those that are not much slower than the default at any of them. Each
candidate is timed in turns with the default schedule, in one session on one device. The default beside itself shows the
noise; a candidate is taken only where it wins by more, twice: in the search, and when it is measured again as the best.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from rmsnorm_deploy.errors import MissingEnvironment
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.registry import schedules_for
from rmsnorm_deploy.tvm.tuning.log import Entry, Measured, TuningLog, Values, schedule_of, values_of
from rmsnorm_deploy.tvm.tuning.measure import Job, Outcome
from rmsnorm_deploy.tvm.tuning.runner import Runner

SEARCH_TURNS, CONFIRMING_TURNS = 5, 9
LEAST_GAIN = 0.01
"""A smaller gain is not worth another schedule, however quiet the machine."""
MOST_SLOWER = 0.1
"""A schedule that is slower by more at one row count is not taken, whatever it wins at the others."""
MOST_LOSSES = 2
"""A candidate that so many devices were lost with is not given to another one."""
MOST_CONFIRMED = 3
"""The best ones that are measured again, until one of them keeps what it promised."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far tuning is.

    Attributes:
        norm: name of the norm's kernel.
        done: candidates measured or discarded, of all norms.
        total: candidates that there are.
        lost: devices lost.
        outcome: what has just been found, in words.
    """

    norm: str
    done: int
    total: int
    lost: int
    outcome: str


@dataclasses.dataclass
class _Task:
    entry: Entry
    schedule: Any
    confirming: bool = False
    losses: int = 0

    @property
    def turns(self) -> int:
        return CONFIRMING_TURNS if self.confirming else SEARCH_TURNS


class Search:
    """What is to be measured next, and what follows from it. Only the main thread is here."""

    def __init__(
        self, log: TuningLog, path: Path, target: Any, norms: list[Norm], trials: int | None, limit: float
    ) -> None:
        self.log, self.path, self.target, self.limit = log, path, target, limit
        self.schedules = schedules_for(target)
        self.todo: collections.deque[_Task] = collections.deque()
        self.total = self.done = self.lost = self.measured = 0
        self.open: dict[int, int] = {}  # searches of an entry that are not over
        self.skipped: set[int] = set()  # entries for which there was no time
        self.entries: list[Entry] = []
        for norm in norms:
            self._plan(norm, trials)

    def _plan(self, norm: Norm, trials: int | None) -> None:
        default, *others = self.schedules.candidates(norm)
        random.Random(0).shuffle(others)  # what fits into the time is then spread over all, and the same every time
        planned = [default, *others][:trials]
        entry = self.log.entry(norm)
        if entry is None or entry.default != values_of(default):
            if entry is not None:  # a release with another default: its figures are about something else
                self.log.entries.remove(entry)
            entry = Entry(norm, values_of(default))
            self.log.entries.append(entry)
        self.entries.append(entry)
        known = [m.schedule for m in entry.candidates]
        new = [s for s in planned if values_of(s) not in known]
        self.total += len(planned)
        self.done += len(planned) - len(new)
        self.open[id(entry)] = len(new)
        self.todo.extend(_Task(entry, s) for s in new)
        if not new:
            self._conclude(entry)

    def job(self, task: _Task) -> Job:
        """What a device is to do for ``task``."""
        default = self.schedules.default(task.entry.norm)
        return Job(
            task.entry.norm,
            self.schedules,
            str(self.target),
            default,
            task.schedule,
            tuple(self.log.rows),
            task.turns,
            self.limit,
        )

    def run(self, runner: Runner, end: float | None, progress: Callable[[Progress], None] | None) -> None:
        """Until nothing is left."""
        running: dict[int, _Task] = {}
        while True:
            if end is not None and time.monotonic() > end:
                self._drop_searches()
            while self.todo and len(running) < runner.count:
                task = self.todo.popleft()
                running[id(task)] = task
                runner.put(id(task), self.job(task))
            if not running:
                return
            number, outcome = runner.get()
            task = running.pop(number)
            if outcome.lost:
                self.lost += 1
                task.losses += 1
                if task.losses < MOST_LOSSES:
                    self.todo.appendleft(task)
                    continue
                outcome = Outcome(unfit=f"{task.losses} devices were lost with it")
            self._take(task, outcome)
            self.log.write(self.path)
            if progress is not None:
                words = outcome.unfit or f"{median(outcome.speedups):.2f}x"
                progress(Progress(task.entry.norm.name, self.done, self.total, self.lost, words))

    def _take(self, task: _Task, outcome: Outcome) -> None:
        entry, values = task.entry, values_of(task.schedule)
        self.measured += not outcome.unfit
        if outcome.unfit and values == entry.default:
            raise MissingEnvironment(
                f"the default schedule of {entry.norm.name} cannot be measured: it {outcome.unfit}",
                f"Do the devices suit the target, {self.log.target} {self.log.cpu}?",
            )
        found = Measured(
            values, outcome.unfit, outcome.microseconds, outcome.default_microseconds, outcome.speedups, task.confirming
        )
        if task.confirming:
            place = next(i for i, m in enumerate(entry.candidates) if m.schedule == values)
            if not outcome.unfit:
                found.speedups = entry.candidates[place].speedups + outcome.speedups
            entry.candidates[place] = found
        else:
            entry.candidates.append(found)
            self.done += 1
            self.open[id(entry)] -= 1
        if not self.open[id(entry)]:
            self._conclude(entry)

    def _conclude(self, entry: Entry) -> None:
        """Choose, once everything is measured; the best of the search is measured again first."""
        fit = {id(m): median(m.speedups) for m in entry.candidates if not m.discarded}
        itself = next((m for m in entry.candidates if m.schedule == entry.default), None)
        if itself is None:  # there was no time even for it
            return
        entry.noise = round(max(LEAST_GAIN, 3 * median(abs(s - 1) for s in itself.speedups)), 4)
        winners = [
            m
            for m in entry.candidates
            if m is not itself
            and fit.get(id(m), 0) > 1 + entry.noise
            and all(t <= (1 + MOST_SLOWER) * m.default_microseconds[r] for r, t in m.microseconds.items())
        ]
        best = max(winners, key=lambda m: fit[id(m)], default=None)
        confirmed = sum(m.confirmed for m in entry.candidates)
        if best is not None and not best.confirmed and confirmed < MOST_CONFIRMED:
            self.todo.appendleft(_Task(entry, self._schedule(best.schedule), confirming=True))
            return
        best = max((m for m in winners if m.confirmed), key=lambda m: fit[id(m)], default=None)
        entry.schedule = dict(entry.default) if best is None else best.schedule
        entry.speedup = 1.0 if best is None else round(fit[id(best)], 4)
        entry.state = "partial" if id(entry) in self.skipped else "complete"

    def _schedule(self, values: Values) -> Any:
        kind = type(self.schedules.default(self.entries[0].norm))
        return schedule_of(values, kind, self.path)

    def _drop_searches(self) -> None:
        """No time is left: choose among what was measured."""
        dropped = [t for t in self.todo if not t.confirming and not t.losses]
        for task in dropped:
            self.todo.remove(task)
            self.open[id(task.entry)] -= 1
            self.skipped.add(id(task.entry))
        for entry in {id(t.entry): t.entry for t in dropped}.values():
            if not self.open[id(entry)]:
                self._conclude(entry)
