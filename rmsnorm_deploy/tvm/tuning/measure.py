"""One schedule, measured beside the default one: on this machine, or on a device that TVM's RPC tracker lends.

Everything here runs in a child process (:mod:`rmsnorm_deploy.tvm.tuning.worker`). Both kernels run in turns in one
session on one device, so that devices may differ and clocks may change: what counts is how much faster one is than
the other.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import math
import socket
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import rpc

from rmsnorm_deploy.op import reference
from rmsnorm_deploy.tvm import targets
from rmsnorm_deploy.tvm.artefact import cubin, linking
from rmsnorm_deploy.tvm.schedules.norm import Norm

SYMBOL = "norm"
ANY_SIZE = 1024
"""Features to measure a norm with where their number is known at run time only."""
TURN_SECONDS = 0.01
"""Length of one turn of one kernel."""
BAR = 4.0
"""A result is wrong that is further off than so many times its type's epsilon times the row's largest value."""

Array = NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Fleet:
    """Devices behind a tracker.

    Attributes:
        host: of the tracker.
        port: of the tracker.
        key: under which the devices have registered.
    """

    host: str
    port: int
    key: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclasses.dataclass(frozen=True)
class Job:
    """What to measure.

    Attributes:
        norm: as a kernel sees it.
        schedules: name of the module that has the schedules.
        target: its text, which is JSON.
        default: the default schedule.
        candidate: the one that is measured; it may be the default, beside itself.
        rows: row counts.
        turns: how often both are timed.
        seconds: a device ends a session that is longer.
    """

    norm: Norm
    schedules: str
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


_session: Any = None
"""The device that :func:`reserve` got and :func:`measure` uses and gives back."""


def devices(fleet: Fleet) -> tuple[int, list[str]]:
    """How many devices have the fleet's key, and the keys that there are.

    Raises:
        OSError: there is no tracker.
        RuntimeError: something else answers there.
    """
    socket.create_connection((fleet.host, fleet.port), timeout=5).close()  # TVM would try for a minute
    tracker = rpc.connect_tracker(fleet.host, fleet.port)
    keys = [str(server["key"]).partition(":")[2] for server in tracker.summary()["server_info"]]
    tracker.close()
    return keys.count(fleet.key), sorted(set(keys))


def reserve(fleet: Fleet, session_seconds: float, wait: float) -> bool:
    """Take a free device for the next :func:`measure`.

    Args:
        fleet: whose device.
        session_seconds: the device ends the session after that time.
        wait: so many seconds at most.

    Returns:
        Whether there was one.
    """
    global _session
    _session = None
    end = time.monotonic() + wait
    while True:
        try:
            socket.create_connection((fleet.host, fleet.port), timeout=1).close()
            tracker = rpc.connect_tracker(fleet.host, fleet.port)
            try:
                # a request waits without limit: only where it will be answered
                if tracker.summary()["queue_info"].get(fleet.key, {}).get("free", 0):
                    _session = tracker.request(fleet.key, session_timeout=session_seconds, max_retry=1)
                    return True
            finally:
                tracker.close()
        except (OSError, RuntimeError):
            pass  # the tracker starts again, or the device has just died
        if time.monotonic() > end:
            return False
        time.sleep(0.1)


def build(job: Job) -> Outcome:
    """Build both kernels for :func:`measure`, so that no device waits for it. Only ``unfit`` is set."""
    try:
        _libraries(job)
    except Exception as error:  # from the schedule to the linker
        return Outcome(unfit=f"does not compile: {_last_line(error)}")
    return Outcome()


def measure(job: Job, remote: bool) -> Outcome:
    """Check the candidate against float64 and time it and the default, in turns.

    Args:
        job: what.
        remote: on the device that :func:`reserve` got; it needs TVM's runtime and no compiler.
    """
    global _session
    session, _session = _session, None
    try:
        return _on_device(job, _libraries(job), session if remote else None)
    except _Unfit as error:
        return Outcome(unfit=str(error))
    except Exception as error:  # the device's word, or the loss of it
        if "RPCSessionTimeoutError" in str(error):
            return Outcome(unfit=f"took longer than {job.seconds:g} s")
        if remote and not _alive(session):
            return Outcome(lost=_last_line(error))
        return Outcome(unfit=f"does not run: {_last_line(error)}")


def _last_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[-1]}"


def _alive(session: Any) -> bool:
    try:
        session.get_function("tvm.rpc.server.workpath")
    except Exception:  # whatever TVM calls a closed connection
        return False
    return True


def _libraries(job: Job) -> list[Path]:
    return [_library(job.norm, job.schedules, job.target, s) for s in (job.default, job.candidate)]


@functools.lru_cache(maxsize=8)
def _library(norm: Norm, schedules: str, target: str, schedule: Any) -> Path:
    """The linked library of a kernel; the default's is made once."""
    kernel = importlib.import_module(schedules).kernel(norm, schedule).with_attr("global_symbol", SYMBOL)
    resolved = tvm.target.Target(json.loads(target))
    with cubin.taken_out() as cuda_sources:
        made = tvm.compile(tvm.IRModule({SYMBOL: kernel}), target=resolved)
    folder = Path(_folder().name) / str(len(list(Path(_folder().name).iterdir())))
    folder.mkdir()
    if cuda_sources:
        cubin.detach(made.mod, cuda_sources)
        cubin.save(cuda_sources, [str(resolved.attrs["arch"])], folder)
    path = folder / f"kernel_{folder.name}.so"
    linking.export(made, path, targets.triple_of(resolved))
    return path


def _loaded(path: Path, kind: str) -> Any:
    """The library of a kernel, on this machine."""
    library = tvm.runtime.load_module(str(path))
    if kind == "cuda":
        cubin.attach(library, path.parent)
    return library


@functools.cache
def _folder() -> Any:
    """Goes with the process, or else with the machine's folder for temporary files."""
    return tempfile.TemporaryDirectory(prefix="rmsnorm-deploy-")


def _on_device(job: Job, libraries: list[Path], session: Any) -> Outcome:
    kind = str(json.loads(job.target)["kind"])
    name = "cpu" if kind == "llvm" else kind
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
        inputs = _inputs(job.norm, rows)
        values = [tvm.runtime.tensor(value, device) for value in inputs]
        shape, dtype = inputs[0].shape, inputs[0].dtype
        results = [tvm.runtime.tensor(np.zeros(shape, dtype), device) for _ in job.norm.parameters.op.outputs]
        candidate[SYMBOL](*values, *results)
        _check(job.norm, rows, inputs, [r.numpy() for r in results])
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


def _inputs(norm: Norm, rows: int) -> list[Array]:
    """Random arguments, in the kernel's order."""
    generator = np.random.default_rng(0)
    size = ANY_SIZE if norm.size is None else norm.size
    outer, inner = (1,) * (norm.outer_rank - 1), (1,) * (norm.inner_rank - 1)
    shape = (1, *outer, size, *inner, rows) if norm.columns else (*outer, rows, size)

    def array(dims: tuple[int, ...], dtype: str) -> Array:
        return generator.standard_normal(dims).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    arrays = [array(shape, norm.dtype)] + ([array(shape, norm.dtype)] if norm.adds else [])
    arrays += [array(shape if norm.full_scale else (size,), norm.scale_dtype)]
    return arrays + ([array(shape if norm.full_bias else (size,), norm.scale_dtype)] if norm.biased else [])


def _check(norm: Norm, rows: int, inputs: list[Array], results: list[Array]) -> None:
    p = norm.parameters

    def parameter(value: Array) -> Array:
        return value.reshape(-1, *(1,) * norm.inner_rank) if norm.columns and value.ndim == 1 else value

    x, *rest = inputs
    y, total = reference.rms_norm(
        x,
        parameter(rest[1 if norm.adds else 0]),
        axes=(norm.outer_rank,),
        epsilon=p.epsilon,
        stash_type=p.stash_type,
        scale_type=p.scale_type,
        residual=rest[0] if norm.adds else None,
        bias=parameter(rest[1]) if norm.biased else None,
        epsilon_outside=p.epsilon_outside,
        rms_floor=p.rms_floor,
        partial_size=p.partial_size,
        exact=True,
    )
    for name, result, truth in zip(p.op.outputs, results, (y, total), strict=False):
        truth = truth.astype(np.float64)
        epsilon = float(ml_dtypes.finfo(result.dtype).eps)  # type: ignore[no-untyped-call]
        unit = epsilon * np.abs(truth).max(axis=norm.outer_rank, keepdims=True)
        error = float(np.max(np.abs(result.astype(np.float64) - truth) / np.maximum(unit, np.finfo(np.float64).tiny)))
        if not error <= BAR:
            raise _Unfit(f"is wrong: {name} is {error:.3g} ULP off at {rows} rows")
