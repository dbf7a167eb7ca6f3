"""The processor that measurements were made on."""

from __future__ import annotations

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
