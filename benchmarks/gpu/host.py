"""How long the host is busy with one launch, which is what counts where nothing is captured in graphs."""

from __future__ import annotations

import ctypes
import functools
import statistics
import time
from collections.abc import Callable

from benchmarks.gpu.cases import EPSILON, Case
from benchmarks.gpu.contestants import Arena, Ours
from benchmarks.gpu.contract import Kernels
from benchmarks.gpu.driver import Gpu
from benchmarks.gpu.peers import Peer
from benchmarks.gpu.tvm_norm import TvmKernels

LAUNCHES = 100


def host_times(
    gpu: Gpu, kernels: Kernels, arena: Arena, others: list[Peer], tvm: TvmKernels | None, stream: int, seconds: float
) -> tuple[dict[str, float], list[str]]:
    """Microseconds of the host for one launch of a row, called from Python, and what went wrong.

    "no rows" is a call that launches nothing: what is over it is the launch.

    So few are launched in a row that the host never waits for the GPU's queue.
    """
    notes: list[str] = []
    case = Case("RMSNorm", "bfloat16", 1, 4096, telling=True)
    arena.fill(case.dtype)
    ours = Ours(kernels, arena, case, stream)
    call, where = kernels.lib.rmsnorm_deploy_cuda_run, ctypes.c_void_p(stream)
    full, nothing = ours.calls[0], case.params(EPSILON)
    nothing.shape[0] = 0
    for name in ("x", "scale", "y"):
        setattr(nothing, name, getattr(full, name))
    runs: dict[str, Callable[[], object]] = {
        "ours": functools.partial(call, ctypes.byref(full), where),
        "no rows": functools.partial(call, ctypes.byref(nothing), where),
    }
    buffers = [arena.buffers(case, 0)]
    if tvm and tvm.takes(case):
        launch = tvm.prepare(case, buffers, stream)
        runs[tvm.name] = lambda: launch(0)
    for peer in others:
        try:
            if peer.takes(case.op, case.dtype):
                run = peer.prepare(case.op, case.dtype, (case.rows, case.size), EPSILON, buffers)
                runs[peer.name] = functools.partial(run, 0)
        except Exception as error:  # whatever a peer of another project may raise
            notes.append(f"host time: {peer.name}: {type(error).__name__}: {error}"[:200])
    found: dict[str, float] = {}
    for name, one in runs.items():
        samples = []
        stop = time.monotonic() + seconds / len(runs)
        while len(samples) < 3 or (len(samples) < 15 and time.monotonic() < stop):
            gpu.synchronize()
            start = time.perf_counter()
            for _ in range(LAUNCHES):
                one()
            samples.append((time.perf_counter() - start) * 1e6 / LAUNCHES)
        found[name] = statistics.median(samples)
    gpu.synchronize()
    for peer in others:
        peer.forget()
    return found, notes
