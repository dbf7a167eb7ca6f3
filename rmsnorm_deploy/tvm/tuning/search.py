"""The search for the schedule of each norm of a model, on this machine or on a fleet of devices."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import tvm
from onnx import ModelProto

from rmsnorm_deploy.errors import UsageError
from rmsnorm_deploy.model.files import StrPath, check_output, output_path
from rmsnorm_deploy.tvm.importer.convert import import_onnx
from rmsnorm_deploy.tvm.passes import pipeline
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.targets.resolve import resolve
from rmsnorm_deploy.tvm.tuning import devices
from rmsnorm_deploy.tvm.tuning import log as tuned
from rmsnorm_deploy.tvm.tuning.choosing import Progress, Search
from rmsnorm_deploy.tvm.tuning.log import Entry, TuningLog
from rmsnorm_deploy.tvm.tuning.runner import Runner

ROWS = (1, 16, 512)


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
            targets :data:`~rmsnorm_deploy.tvm.targets.registry.FLEET_TARGETS`.
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
    fleet = devices.fleet_of(tracker, key)
    resolved = resolve(target, mcpu, arch, mtriple)
    if fleet is None:
        device, arch = devices.here(resolved, arch)
        resolved = resolve(target, mcpu, arch, mtriple)
    else:
        devices.check_fleet_target(resolved, arch)
        device = fleet.key
    path = output_path(log)
    check_output(path, source=None, overwrite=True)  # before the time for tuning is spent
    fresh = TuningLog(
        target=str(resolved.kind.name),
        machine=tuned.cpu_machine_of(resolved),
        cpu=tuned.cpu_of(resolved),
        tvm=tvm.__version__,
        device=device,
        threads=int(tvm.runtime.num_threads()) if device == devices.LOCAL else 0,
        rows=list(rows),
    )
    found = _continued(path, fresh, resolved) if path.exists() else fresh
    norms = _norms(model, resolved)
    search = Search(found, path, resolved, norms, trials, limit)
    end = None if seconds is None else started + seconds
    count = 1 if fleet is None else devices.count(fleet)
    runner = Runner(fleet, count, limit, patience)
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
