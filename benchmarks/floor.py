"""The floor of a norm's time: copies that move as many bytes as it has to read and write.

The copies are a small C++ file, compiled for this machine into a temporary folder. Without a compiler NumPy copies, in
one thread and with plain stores only.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.placement import cpus
from rmsnorm_deploy.errors import MissingEnvironment
from rmsnorm_deploy.run import toolchain

SOURCE = Path(__file__).with_name("floor.cpp")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-pthread")


@functools.cache
def library() -> Any:
    """The compiled copies, or None where there is no C++ compiler."""
    try:
        compiler = toolchain.compiler()
    except MissingEnvironment:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "floor.so"
        subprocess.run([*compiler, *FLAGS, str(SOURCE), "-o", str(path)], check=True)
        loaded = ctypes.CDLL(str(path))
    workers = cpus()[1:]
    loaded.floor_pin((ctypes.c_int * len(workers))(*workers), len(workers))
    return loaded


def has_streaming() -> bool:
    """Whether there are copies with non-temporal stores."""
    return library() is not None and bool(library().floor_has_streaming())


def copier(
    targets: Sequence[Any], sources: Sequence[Any], *, streaming: bool, threads: int, repetitions: int
) -> Callable[[], object]:
    """A function that copies every source to its target, ``repetitions`` times over.

    Args:
        targets: uint8 arrays that begin on a cache line.
        sources: as many, of the same size.
        streaming: with non-temporal stores.
        threads: how many copy; ignored without a compiler.
        repetitions: how often one call copies.
    """
    if library() is None:

        def copy() -> None:
            for _ in range(repetitions):
                for target, source in zip(targets, sources, strict=True):
                    np.copyto(target, source)

        return copy
    pointers = ctypes.c_void_p * len(targets)
    arguments = (
        pointers(*(t.ctypes.data for t in targets)),
        pointers(*(s.ctypes.data for s in sources)),
        ctypes.c_int(len(targets)),
        ctypes.c_size_t(targets[0].nbytes),
        ctypes.c_int(streaming),
        ctypes.c_int(threads),
        ctypes.c_int(repetitions),
    )
    call = library().floor_copy
    return lambda: call(*arguments)
