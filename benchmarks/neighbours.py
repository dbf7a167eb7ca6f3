"""How much of the machine other processes use meanwhile: what they take is in every wall clock time."""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
IDLE = (3, 4)
"""Columns of the first line of /proc/stat, without its name, in which no CPU works: idle and iowait."""
GUEST = 8
"""Columns from this one on are part of earlier ones."""


def _busy_seconds() -> float | None:
    """CPU seconds since the machine started that some process, or the host of a virtual machine, used."""
    if not STAT.exists():
        return None
    ticks = [int(value) for value in STAT.read_text().splitlines()[0].split()[1:]][:GUEST]
    return sum(v for i, v in enumerate(ticks) if i not in IDLE) / float(os.sysconf("SC_CLK_TCK"))


class Neighbours:
    """What others used since this was made."""

    def __init__(self) -> None:
        self._busy, self._own, self._wall = _busy_seconds(), time.process_time(), time.perf_counter()

    def share(self) -> float | None:
        """The part of all CPUs' time, 0 to 1; None where the system does not tell."""
        busy = _busy_seconds()
        if busy is None or self._busy is None:
            return None
        wall = time.perf_counter() - self._wall
        used = busy - self._busy - (time.process_time() - self._own)
        return min(1.0, max(0.0, used / wall / (os.cpu_count() or 1)))
