"""The machine that measurements are made on: its processor, and its memory between them."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
from pathlib import Path


def machine() -> str:
    """The processor and its number of cores, in words."""
    name = platform.processor() or platform.machine()
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            name = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), name)
    except OSError:
        pass
    return f"{name}, {os.cpu_count()} cores"


def give_back_memory() -> None:
    """What is free returns to the system, where the C library can do that: glibc keeps large blocks for later."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
