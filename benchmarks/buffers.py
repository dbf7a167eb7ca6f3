"""The memory that every contestant of a case reads and writes: the same buffers for all, rotated where they must be."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.chains import DTYPES, Chain

IN_CACHE_BYTES = 4 << 20
BEYOND_BYTES = 16 << 20
CACHES = 4
"""How many times the last-level cache the rotated buffers are together, beyond the cache."""
UNKNOWN_CACHE = 32 << 20


@functools.cache
def last_level_cache() -> int:
    """Bytes of the largest cache of the first CPU, from sysfs; 32 MiB where that does not tell."""
    found = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        found.append(int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0))
    return max(found, default=UNKNOWN_CACHE)


def size_class(moved_bytes: int) -> str:
    """By input + output: "in cache" up to 4 MiB, "beyond" from 16 MiB, "middle" between."""
    if moved_bytes <= IN_CACHE_BYTES:
        return "in cache"
    return "beyond" if moved_bytes >= BEYOND_BYTES else "middle"


def sets_needed(moved_bytes: int) -> int:
    """How many sets of tensors: one, or beyond the caches as many as exceed the last of them several times."""
    return -(-CACHES * last_level_cache() // moved_bytes) if size_class(moved_bytes) == "beyond" else 1


def memory_at(length: int, place: int) -> Any:
    """A uint8 array of ``length`` bytes that begins ``place`` bytes, less than 4096, behind the beginning of a page."""
    raw = np.zeros(length + 8192, np.uint8)
    start = -raw.ctypes.data % 4096 + place
    return raw[start : start + length]


def _aligned(count: int, length: int) -> Any:
    """``count`` uint8 arrays of ``length`` bytes; each begins on a cache line and at another place of its page."""
    return [memory_at(length, i % 8 * 320) for i in range(count)]


class Buffers:
    """Sets of inputs and outputs of one case.

    Attributes:
        moved_bytes: input + output of one norm.
        size_class: see :func:`size_class`.
        sets: for each, the input buffers and as many output buffers. One set, unless the class is "beyond": then as
            many as exceed the last-level cache several times, so that the data come from memory.
    """

    def __init__(self, rows: int, size: int, dtype: str, tensors: int) -> None:
        """Allocate and fill them.

        Args:
            rows: of X.
            size: features.
            dtype: element type.
            tensors: number of inputs, and of outputs.
        """
        numpy_type = DTYPES[dtype][1]
        length = rows * size * np.dtype(numpy_type).itemsize
        self.moved_bytes = 2 * tensors * length
        self.size_class = size_class(self.moved_bytes)
        rng = np.random.default_rng(1)
        block = rng.standard_normal(min(rows * size, 1 << 20), np.float32).astype(numpy_type).view(np.uint8)
        self.sets = []
        for _ in range(sets_needed(self.moved_bytes)):
            memory = _aligned(2 * tensors, length)
            for target in memory[:tensors]:
                target[:] = np.resize(block, length)
            for target in memory[tensors:]:
                target[:] = 0  # the pages exist before the first round
            self.sets.append((memory[:tensors], memory[tensors:]))

    def bind(self, session: Any, chain: Chain) -> list[Callable[[], object]]:
        """For each set, a function that runs the session on it."""
        data_type = DTYPES[chain.dtype][0]
        shape = [chain.rows, chain.size]
        runs: list[Callable[[], object]] = []
        for inputs, outputs in self.sets:
            binding = session.io_binding()
            for name, memory in zip(chain.inputs, inputs, strict=False):
                binding.bind_input(name, "cpu", 0, data_type, shape, memory.ctypes.data)
            for name, memory in zip(chain.outputs, outputs, strict=False):
                binding.bind_output(name, "cpu", 0, data_type, shape, memory.ctypes.data)
            runs.append(functools.partial(session.run_with_iobinding, binding))
        return runs
