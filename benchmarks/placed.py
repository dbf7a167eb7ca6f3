"""Sessions as contestants, each with its tensors where it is fastest."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto

from benchmarks.buffers import memory_at, sets_needed
from benchmarks.timing import Contestant
from rmsnorm_deploy.run.registering import register

KINDS: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
}
PLACES = (64, 1088, 2112, 3136)
"""Where in a page the tensors of a session may begin."""


def cpu_session(model: ModelProto, *, threads: int = 1, ours: bool = True) -> Any:
    """A session on the CPU.

    Args:
        model: what it runs.
        threads: intra-op threads.
        ours: with our library.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    if ours:
        register(options)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def contestant(session: Any, rows: int, size: int, units: int) -> Contestant:
    """What runs a session on one thread, with its tensors at that of some places of a page at which it is fastest.

    Where one is read and another written a multiple of a page apart, some processors wait. What a session allocates for
    the values between two nodes has a place of its own, which nobody here chooses.

    Args:
        session: all of its inputs and outputs have ``rows`` rows of ``size`` values.
        rows: of every tensor.
        size: of every row.
        units: what its times are divided by.
    """
    each = [Contestant(_calls(session, rows, size, place), units, threads=1, round_us=2000) for place in PLACES]
    for _ in range(5):
        for one in each:
            one.round()
    best = min(each, key=lambda one: min(one.rounds))
    best.rounds.clear()
    return best


def _calls(session: Any, rows: int, size: int, place: int) -> list[Callable[[], object]]:
    """A call with all tensors in place; of several sets of them where they are too large for the caches."""
    tensors = [(each.name, np.dtype(KINDS[each.type])) for each in (*session.get_inputs(), *session.get_outputs())]
    inputs = len(session.get_inputs())
    moved = sum(rows * size * kind.itemsize for _, kind in tensors)
    found: list[Callable[[], object]] = []
    for seed in range(sets_needed(moved)):
        binding, kept = session.io_binding(), []
        rng = np.random.default_rng(seed)
        for i, (name, kind) in enumerate(tensors):
            value = memory_at(rows * size * kind.itemsize, (place + 320 * i) % 4096).view(kind)
            kept.append(value)
            if i < inputs:
                value[:] = rng.standard_normal(value.size, np.float32)
            bind = binding.bind_input if i < inputs else binding.bind_output
            bind(name, "cpu", 0, kind, [rows, size], value.ctypes.data)
        found.append(functools.partial(_run, session, binding, kept))
    return found


def _run(session: Any, binding: Any, _kept: list[Any]) -> None:
    session.run_with_iobinding(binding)
