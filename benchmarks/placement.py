"""Which CPU each thread runs on, with several threads: Linux alone may leave two that wake on one CPU for a while.

onnxruntime pins its workers by itself where the number of threads is left to it; with a number given, it does not.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator


@functools.cache
def cpus() -> tuple[int, ...]:
    """The CPUs that this process may use; none where the system does not tell. As they are at the first call."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def worker_cpus(threads: int) -> tuple[int, ...]:
    """A CPU for each thread but the calling one; none where there are fewer CPUs than threads."""
    return cpus()[1:threads] if len(cpus()) >= threads else ()


def onnxruntime_affinities(threads: int) -> str:
    """The same in the form of ``session.intra_op_thread_affinities``, which counts CPUs from 1."""
    return ";".join(str(cpu + 1) for cpu in worker_cpus(threads))


@contextlib.contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Keep the calling thread on the first CPU, which no worker has. With one thread it stays free."""
    if not worker_cpus(threads):
        yield
        return
    os.sched_setaffinity(0, {cpus()[0]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cpus())
