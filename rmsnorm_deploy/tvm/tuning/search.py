"""The search for the schedule of each norm of a model, on this machine or on a fleet of devices.

A kernel has a symbolic number of rows, so one schedule serves every one: the best is the one with the least geometric
mean of times over a few row counts, among those that are not much slower than the default at any of them. Each
candidate is timed in turns with the default schedule, in one session on one device. The default beside itself shows the
noise; a candidate is taken only where it wins by more, twice: in the search, and when it is measured again as the best.

The threads here only wait; everything that can crash or hang is done by a child process, one for each device.
"""

from __future__ import annotations

import collections
import dataclasses
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import onnx_ir as ir
import tvm
from onnx import ModelProto

from rmsnorm_deploy.errors import MissingEnvironment, UsageError
from rmsnorm_deploy.model.files import StrPath
from rmsnorm_deploy.tvm import targets
from rmsnorm_deploy.tvm.artefact import cubin, linking
from rmsnorm_deploy.tvm.importer.convert import import_onnx
from rmsnorm_deploy.tvm.passes import pipeline
from rmsnorm_deploy.tvm.schedules import family
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.targets.device import device_for
from rmsnorm_deploy.tvm.targets.machines import machine_of, this_machine
from rmsnorm_deploy.tvm.tuning import log as tuned
from rmsnorm_deploy.tvm.tuning.log import Entry, Measured, TuningLog, values_of
from rmsnorm_deploy.tvm.tuning.measure import Fleet, Job, Outcome, build, devices, measure, reserve
from rmsnorm_deploy.tvm.tuning.worker import Worker, WorkerLost

ROWS = (1, 16, 512)
SEARCH_TURNS, CONFIRMING_TURNS = 5, 9
LEAST_GAIN = 0.01
"""A smaller gain is not worth another schedule, however quiet the machine."""
MOST_SLOWER = 0.1
"""A schedule that is slower by more at one row count is not taken, whatever it wins at the others."""
MOST_LOSSES = 2
"""A candidate that so many devices were lost with is not given to another one."""
MOST_CONFIRMED = 3
"""The best ones that are measured again, until one of them keeps what it promised."""


FLEET_TARGETS = ("llvm", "opencl", "rocm")
"""Targets whose kernels are all in the library that TVM's server loads: those of CUDA lie beside it."""


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


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What tuning found.

    Attributes:
        path: the log.
        target: TVM's name of the target.
        cpu: LLVM's name of the CPU, or the GPU's architecture.
        devices: that measured.
        lost: devices that were lost on the way.
        measured: measurements of this run.
        entries: what the log says about the norms of the model.
        rows: row counts.
        seconds: time taken.
    """

    path: Path
    target: str
    cpu: str
    devices: int
    lost: int
    measured: int
    entries: tuple[Entry, ...]
    rows: tuple[int, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON; ``norms`` without the candidates, which the log has."""
        return {
            "schema_version": tuned.SCHEMA_VERSION,
            "log": str(self.path),
            "target": self.target,
            "cpu": self.cpu,
            "devices": self.devices,
            "lost": self.lost,
            "measured": self.measured,
            "rows": list(self.rows),
            "seconds": round(self.seconds, 3),
            "norms": [_summary(e) for e in self.entries],
        }


def _summary(entry: Entry) -> dict[str, Any]:
    chosen = next((m for m in entry.candidates if m.schedule == entry.schedule), None)
    return {
        "name": entry.norm.name,
        "state": entry.state,
        "default": entry.default,
        "schedule": entry.schedule,
        "speedup": entry.speedup,
        "noise": entry.noise,
        "default_microseconds": chosen.default_microseconds if chosen else {},
        "microseconds": chosen.microseconds if chosen else {},
        "measured": sum(not m.discarded for m in entry.candidates),
        "discarded": [{"schedule": m.schedule, "why": m.discarded} for m in entry.candidates if m.discarded],
    }


def tune(
    model: StrPath | ModelProto | ir.Model,
    target: str = "llvm",
    mcpu: str | None = None,
    *,
    log: StrPath,
    arch: str | None = None,
    mtriple: str | None = None,
    tracker: str | None = None,
    key: str | None = None,
    rows: Sequence[int] = ROWS,
    trials: int | None = None,
    seconds: float | None = None,
    limit: float = 60.0,
    patience: float = 60.0,
    progress: Callable[[Progress], None] | None = None,
) -> Tuning:
    """Find a schedule for every norm of ``model``, fused or not, and write it to ``log``.

    The log is written after each measurement. A call that finds one continues it: nothing is measured twice.

    Args:
        model: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``.
        target: as for :func:`rmsnorm_deploy.tvm.compile`.
        mcpu: the same; with ``tracker``, of its devices, which need not be the default: this machine's.
        log: the file.
        arch: the GPU, one; by default for ``cuda`` the one of this machine.
        mtriple: LLVM's triple of the devices behind ``tracker``, where they have another architecture.
        tracker: ``HOST:PORT`` of TVM's RPC tracker, to measure on its devices, all of ``key`` in parallel; for the
            targets :data:`FLEET_TARGETS`.
        key: under which the devices have registered.
        rows: the row counts whose geometric mean counts.
        trials: schedules to measure for each norm at most, the default among them.
        seconds: after that time no other candidate is begun.
        limit: seconds that one measurement may take before it is given up.
        patience: seconds to wait for a device when none is left.
        progress: called after each measurement.

    Raises:
        UsageError: the arguments contradict each other, or the log was made for something else.
        ModelError: the model or the log cannot be read, or TVM cannot import the model.
        MissingEnvironment: there is no such GPU here, no tracker, no device with the key, or none left; or the default
            schedule does not run. The log keeps what was measured.
    """
    started = time.monotonic()
    _check_arguments(rows, trials, seconds)
    fleet = _fleet(tracker, key)
    resolved = targets.resolve(target, mcpu, arch, mtriple)
    if fleet is None:
        device, arch = _here(resolved, arch)
        resolved = targets.resolve(target, mcpu, arch, mtriple)
    else:
        _check_fleet_target(resolved, arch)
        device = fleet.key
    path = Path(log)
    fresh = TuningLog(
        target=str(resolved.kind.name),
        machine=tuned.cpu_machine_of(resolved),
        cpu=tuned.cpu_of(resolved),
        tvm=tvm.__version__,
        device=device,
        threads=int(tvm.runtime.num_threads()) if device == "local" else 0,
        rows=list(rows),
    )
    found = _continued(path, fresh, resolved) if path.exists() else fresh
    norms = _norms(model, resolved)
    search = _Search(found, path, resolved, norms, trials, limit)
    end = None if seconds is None else started + seconds
    count = 1 if fleet is None else _count(fleet)
    runner = _Runner(fleet, count, limit, patience)
    try:
        if not norms:
            found.write(path)
        search.run(runner, end, progress)
    finally:
        runner.stop()
    return Tuning(
        path,
        found.target,
        found.cpu,
        count,
        search.lost,
        search.measured,
        tuple(e for n in norms if (e := found.entry(n)) is not None),
        tuple(rows),
        time.monotonic() - started,
    )


def _check_arguments(rows: Sequence[int], trials: int | None, seconds: float | None) -> None:
    if not rows or any(r < 1 for r in rows) or len(set(rows)) != len(rows):
        raise UsageError(f"row counts are different positive numbers, not {list(rows)}", "For instance 1,16,512.")
    if trials is not None and trials < 1:
        raise UsageError(f"{trials} trials measure nothing", "The default schedule is one.")
    if seconds is not None and not seconds > 0:
        raise UsageError(f"{seconds} seconds measure nothing", "Give a positive number.")


def _fleet(tracker: str | None, key: str | None) -> Fleet | None:
    if tracker is None and key is None:
        return None
    if tracker is None or not key:
        raise UsageError("a fleet has a tracker and a key, and one of them is missing", "Give --tracker and --key.")
    host, _, port = tracker.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"the tracker '{tracker}' is no HOST:PORT", "For instance 127.0.0.1:9190.")
    return Fleet(host.strip("[]"), int(port), key)


def _here(target: Any, arch: str | None) -> tuple[str, str | None]:
    """What measures on this machine, and the GPU's architecture where the target has any.

    Raises:
        UsageError: it cannot run the target, or has another GPU than ``arch``.
        MissingEnvironment: there is no such GPU, no runtime for it, or no nvcc.
    """
    kind, machine = str(target.kind.name), machine_of(targets.triple_of(target))
    if machine != this_machine():
        raise UsageError(
            f"this machine is {this_machine()}, and cannot measure what is compiled for {machine}",
            "Give --tracker and --key of a fleet of such machines.",
        )
    if kind == "llvm":
        return "local", None
    device = device_for(kind)
    name = f"local {device.device_name}"
    if kind != "cuda":
        return name, arch
    cubin.find_nvcc()
    found = f"sm_{str(device.compute_version).replace('.', '')}"
    if arch not in (None, found):
        raise UsageError(
            f"the GPU here is {found}, and not {arch}", "Leave --arch out, or use a machine with the other GPU."
        )
    return name, found


def _check_fleet_target(target: Any, arch: str | None) -> None:
    kind = str(target.kind.name)
    if kind not in FLEET_TARGETS:
        raise UsageError(
            f"target '{kind}' cannot be measured on a fleet",
            f"Tune without --tracker on a machine with the GPU; fleets are for {', '.join(FLEET_TARGETS)}.",
        )
    if kind == "rocm" and arch is None:
        raise UsageError("the devices' GPU is not named", "Add --arch.")
    linking.cross_compiler(targets.triple_of(target))


def _continued(path: Path, fresh: TuningLog, target: Any) -> TuningLog:
    found = tuned.read(path)
    tuned.check_target(found, path, target)
    for name, what in (("tvm", "TVM"), ("device", "device"), ("threads", "threads"), ("rows", "row counts")):
        was, now = getattr(found, name), getattr(fresh, name)
        if was != now:
            raise UsageError(
                f"the log {path} was measured with {what} {was}, and this is {now}",
                "Figures of both cannot be compared: use another log.",
            )
    return found


def _norms(model: StrPath | ModelProto | ir.Model, target: Any) -> list[Norm]:
    """The norms that compiling ``model`` makes kernels of."""
    seen: list[Norm] = []
    with target:
        pipeline.lower_norms(target, seen.append)(import_onnx(model))
    return seen


def _count(fleet: Fleet) -> int:
    worker = Worker()
    try:
        count, keys = worker.call(devices, fleet, seconds=30)
    except (WorkerLost, OSError, RuntimeError) as error:
        raise MissingEnvironment(
            f"no RPC tracker answers at {fleet}",
            "Start one there: 'python -m tvm.exec.rpc_tracker --host 0.0.0.0 "
            f"--port {fleet.port} --port-end {fleet.port + 1}'.",
        ) from error
    finally:
        worker.stop()
    if not count:
        there = f"It has: {', '.join(keys)}." if keys else "It has no devices at all."
        raise MissingEnvironment(
            f"the tracker at {fleet} has no device with the key '{fleet.key}'",
            f"{there} On a device: 'python -m tvm.exec.rpc_server --tracker {fleet} --key {fleet.key}'.",
        )
    return int(count)


# -- the search -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Task:
    entry: Entry
    schedule: Any
    confirming: bool = False
    losses: int = 0

    @property
    def turns(self) -> int:
        return CONFIRMING_TURNS if self.confirming else SEARCH_TURNS


class _Search:
    """What is to be measured next, and what follows from it. Only the main thread is here."""

    def __init__(
        self, log: TuningLog, path: Path, target: Any, norms: list[Norm], trials: int | None, limit: float
    ) -> None:
        self.log, self.path, self.target, self.limit = log, path, target, limit
        self.schedules = family(target)
        self.todo: collections.deque[_Task] = collections.deque()
        self.total = self.done = self.lost = self.measured = 0
        self.open: dict[int, int] = {}  # searches of an entry that are not over
        self.skipped: set[int] = set()  # entries for which there was no time
        self.entries: list[Entry] = []
        for norm in norms:
            self._plan(norm, trials)

    def _plan(self, norm: Norm, trials: int | None) -> None:
        default, *others = self.schedules.candidates(norm, self.target)
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
        default = self.schedules.default(task.entry.norm, self.target)
        return Job(
            task.entry.norm,
            self.schedules.__name__,
            str(self.target),
            default,
            task.schedule,
            tuple(self.log.rows),
            task.turns,
            self.limit,
        )

    def run(self, runner: _Runner, end: float | None, progress: Callable[[Progress], None] | None) -> None:
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

    def _schedule(self, values: tuned.Values) -> Any:
        kind = type(self.schedules.default(self.entries[0].norm, self.target))
        return tuned.schedule_of(values, kind, self.path)

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


# -- the devices ------------------------------------------------------------------------------------------------------


class _Runner:
    """A thread and a child process for each device; jobs in, outcomes out."""

    def __init__(self, fleet: Fleet | None, count: int, limit: float, patience: float) -> None:
        self.fleet, self.count, self.limit, self.patience = fleet, count, limit, patience
        self._jobs: queue.SimpleQueue[tuple[int, Job] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[tuple[int, Outcome | BaseException]] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._held = 0
        self._last_held = time.monotonic()
        self._workers = [Worker() for _ in range(count)]
        self._threads = [threading.Thread(target=self._serve, args=(w,), daemon=True) for w in self._workers]
        for thread in self._threads:
            thread.start()

    def put(self, number: int, job: Job) -> None:
        self._jobs.put((number, job))

    def get(self) -> tuple[int, Outcome]:
        number, outcome = self._outcomes.get()
        if isinstance(outcome, BaseException):
            raise outcome
        return number, outcome

    def stop(self) -> None:
        """End every child and thread, whatever they are doing."""
        self._stopped.set()
        for worker in self._workers:
            worker.stop()
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self, worker: Worker) -> None:
        while (given := self._jobs.get()) is not None and not self._stopped.is_set():
            number, job = given
            try:
                self._outcomes.put((number, self._near(worker, job) if self.fleet is None else self._far(worker, job)))
            except BaseException as error:  # the main thread's business
                self._outcomes.put((number, error))

    def _near(self, worker: Worker, job: Job) -> Outcome:
        try:
            built = worker.call(build, job, seconds=self.limit)
            return _as_outcome(built if built.unfit else worker.call(measure, job, False, seconds=self.limit))
        except WorkerLost as error:
            return Outcome(unfit=str(error))

    def _far(self, worker: Worker, job: Job) -> Outcome:
        try:
            built = _as_outcome(worker.call(build, job, seconds=self.limit))
        except WorkerLost as error:
            return Outcome(unfit=str(error))
        if built.unfit:
            return built
        self._wait_for_device(worker)
        try:
            # the device ends the session by itself; a device that is silent is ended here
            return _as_outcome(worker.call(measure, job, True, seconds=self.limit + 10))
        except WorkerLost as error:
            return Outcome(lost=str(error))
        finally:
            with self._lock:
                self._held -= 1
                self._last_held = time.monotonic()

    def _wait_for_device(self, worker: Worker) -> None:
        assert self.fleet is not None
        while True:
            try:
                got = worker.call(reserve, self.fleet, self.limit, 1.0, seconds=15)
            except WorkerLost:  # the tracker does not answer
                got = False
            with self._lock:
                if got:
                    self._held += 1
                    return
                waited = 0.0 if self._held else time.monotonic() - self._last_held
            if self._stopped.is_set() or waited > self.patience:
                raise MissingEnvironment(
                    f"the tracker at {self.fleet} had no device with the key '{self.fleet.key}' for {waited:.0f} s",
                    "The log has what was measured: start the devices again, and run the same command.",
                )


def _as_outcome(value: Any) -> Outcome:
    assert isinstance(value, Outcome)
    return value
