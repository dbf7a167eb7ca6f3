"""One schedule, measured beside the default one: on this machine, or on a device that TVM's RPC tracker lends.

Everything here runs in a child process (:mod:`rmsnorm_deploy.tvm.tuning.worker`). Both kernels run in turns in one
session on one device, so that devices may differ and clocks may change: what counts is how much faster one is than
the other.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tvm

from rmsnorm_deploy.errors import last_line
from rmsnorm_deploy.tvm.artefact import cubin, linking
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.protocol import Schedules
from rmsnorm_deploy.tvm.targets.device import device_name
from rmsnorm_deploy.tvm.targets.registry import GPUS
from rmsnorm_deploy.tvm.targets.resolve import triple_of
from rmsnorm_deploy.tvm.tuning import devices, judge

SYMBOL = "norm"
TURN_SECONDS = 0.01
"""Length of one turn of one kernel."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What to measure.

    Attributes:
        norm: as a kernel sees it.
        schedules: those of the target.
        target: its text, which is JSON.
        default: the default schedule.
        candidate: the one that is measured; it may be the default, beside itself.
        rows: row counts.
        turns: how often both are timed.
        seconds: a device ends a session that is longer.
    """

    norm: Norm
    schedules: Schedules[Any]
    target: str
    default: Any
    candidate: Any
    rows: tuple[int, ...]
    turns: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a job.

    Attributes:
        unfit: why the candidate is out of the question, or empty.
        lost: why nothing is known, as the device was lost, or empty.
        microseconds: median of the candidate's turns, for each row count.
        default_microseconds: the same of the default.
        speedups: one for each turn.
    """

    unfit: str = ""
    lost: str = ""
    microseconds: dict[str, float] = dataclasses.field(default_factory=dict)
    default_microseconds: dict[str, float] = dataclasses.field(default_factory=dict)
    speedups: list[float] = dataclasses.field(default_factory=list)


class _Unfit(Exception):
    pass


def build(job: Job) -> Outcome:
    """Build both kernels for :func:`measure`, so that no device waits for it. Only ``unfit`` is set."""
    try:
        _libraries(job)
    except Exception as error:  # from the schedule to the linker
        return Outcome(unfit=f"does not compile: {_said(error)}")
    return Outcome()


def measure(job: Job, remote: bool) -> Outcome:
    """Check the candidate against float64 and time it and the default, in turns.

    Args:
        job: what.
        remote: on the device that :func:`~rmsnorm_deploy.tvm.tuning.devices.reserve` got, which needs TVM's runtime and
            no compiler.
    """
    session = devices.reserved()
    try:
        return _on_device(job, _libraries(job), session if remote else None)
    except _Unfit as error:
        return Outcome(unfit=str(error))
    except Exception as error:  # the device's word, or the loss of it
        if "RPCSessionTimeoutError" in str(error):
            return Outcome(unfit=f"took longer than {job.seconds:g} s")
        if remote and not _alive(session):
            return Outcome(lost=_said(error))
        return Outcome(unfit=f"does not run: {_said(error)}")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {last_line(error)}"


def _alive(session: Any) -> bool:
    try:
        session.get_function("tvm.rpc.server.workpath")
    except Exception:  # whatever TVM calls a closed connection
        return False
    return True


def _libraries(job: Job) -> list[Path]:
    return [_library(job.norm, job.schedules, job.target, s) for s in (job.default, job.candidate)]


@functools.lru_cache(maxsize=8)
def _library(norm: Norm, schedules: Schedules[Any], target: str, schedule: Any) -> Path:
    """The linked library of a kernel; the default's is made once."""
    kernel = schedules.kernel(norm, schedule).with_attr("global_symbol", SYMBOL)
    resolved = tvm.target.Target(json.loads(target))
    with cubin.taken_out() as cuda_sources:
        made = tvm.compile(tvm.IRModule({SYMBOL: kernel}), target=resolved)
    folder = Path(_folder().name) / str(len(list(Path(_folder().name).iterdir())))
    folder.mkdir()
    if cuda_sources:
        cubin.detach(made.mod, cuda_sources)
        cubin.save(cuda_sources, [str(resolved.attrs["arch"])], folder)
    path = folder / f"kernel_{folder.name}.so"
    linking.export(made, path, triple_of(resolved))
    return path


def _loaded(path: Path, kind: str) -> Any:
    """The library of a kernel, on this machine."""
    library = tvm.runtime.load_module(str(path))
    if kind in GPUS and GPUS[kind].kernels_beside:
        cubin.attach(library, path.parent)
    return library


@functools.cache
def _folder() -> Any:
    """Goes with the process, or else with the machine's folder for temporary files."""
    return tempfile.TemporaryDirectory(prefix="rmsnorm-deploy-")


def _on_device(job: Job, libraries: list[Path], session: Any) -> Outcome:
    kind = str(json.loads(job.target)["kind"])
    name = device_name(kind)
    if session is None:
        device = tvm.runtime.device(name)
        modules = [_loaded(path, kind) for path in libraries]
    else:
        device = session.device(name)
        for path in dict.fromkeys(libraries):
            session.upload(str(path))
        modules = [session.load_module(path.name) for path in libraries]
    candidate = modules[1]
    cases = {}
    for rows in job.rows:
        inputs = judge.inputs_of(job.norm, rows)
        values = [tvm.runtime.tensor(value, device) for value in inputs]
        shape, dtype = inputs[0].shape, inputs[0].dtype
        results = [tvm.runtime.tensor(np.zeros(shape, dtype), device) for _ in job.norm.parameters.op.outputs]
        candidate[SYMBOL](*values, *results)
        wrong = judge.error_of(job.norm, inputs, [r.numpy() for r in results])
        if wrong:
            raise _Unfit(f"is wrong: {wrong} at {rows} rows")
        cases[str(rows)] = [*values, *results]
    timers = [{rows: _timer(m, device, values) for rows, values in cases.items()} for m in modules]
    turns: list[list[dict[str, float]]] = [
        [{rows: float(timers[i][rows](*values).mean) * 1e6 for rows, values in cases.items()} for i in (0, 1)]
        for _ in range(job.turns)
    ]
    return Outcome(
        microseconds={rows: round(median(t[1][rows] for t in turns), 4) for rows in cases},
        default_microseconds={rows: round(median(t[0][rows] for t in turns), 4) for rows in cases},
        speedups=[round(math.exp(sum(math.log(d[r] / c[r]) for r in cases) / len(cases)), 6) for d, c in turns],
    )


def _timer(module: Any, device: Any, values: list[Any]) -> Any:
    """An evaluator that runs as often as makes up a turn."""
    once = module.time_evaluator(SYMBOL, device, number=1, repeat=3)(*values).min
    number = max(1, min(100_000, round(TURN_SECONDS / max(once, 1e-9))))
    return module.time_evaluator(SYMBOL, device, number=number, repeat=1)
