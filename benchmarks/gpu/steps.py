"""Steps that share a number of seconds: none starves those behind it, and what is known is on disk at any second."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_PDEATHSIG = 1  # PR_SET_PDEATHSIG
PASSED, FAILED, SKIPPED, NO_TIME = "passed", "failed", "skipped", "no time"


@dataclasses.dataclass(frozen=True)
class Share:
    """Seconds of one step.

    Attributes:
        least: kept for it by all steps in front of it.
        most: it gets no more, however much is left.
    """

    least: float
    most: float


class Budget:
    """Seconds for everything, divided among the steps that are still to come."""

    def __init__(self, seconds: float, full: float, shares: dict[str, Share]) -> None:
        """``shares`` are those of ``full`` seconds, in the order of the steps; with fewer seconds they shrink."""
        self.end = time.monotonic() + seconds
        part = min(1.0, seconds / full)
        self.shares = {name: Share(part * s.least, part * s.most) for name, s in shares.items()}

    def left(self) -> float:
        return self.end - time.monotonic()

    def limit(self, name: str) -> float:
        """Seconds that a step may take from now on, with the least of all steps behind it put aside."""
        names = list(self.shares)
        behind = sum(self.shares[other].least for other in names[names.index(name) + 1 :])
        return max(0.0, min(self.shares[name].most, self.left() - behind))

    def pays(self, name: str) -> bool:
        """Whether there is time enough for a step to begin with it."""
        return self.limit(name) >= 0.5 * self.shares[name].least


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a command.

    Attributes:
        status: its exit status; None where it ran past its limit.
        text: its output.
        still: seconds since it last said something.
    """

    status: int | None
    text: str
    still: float

    @property
    def last(self) -> str:
        return (self.text.strip().splitlines() or [""])[-1]


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started: what stays behind would use the GPU beside the measurement."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def with_parent() -> None:
    """In a child, before its program: it ends with the process that started it, however that ends (on Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def start(command: Sequence[str | Path], output: Any, **options: Any) -> subprocess.Popen[bytes]:
    """Start a command in a group of its own, with both its streams in ``output``."""
    return subprocess.Popen(
        [str(part) for part in command],
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=with_parent,
        **options,
    )


def run(command: Sequence[str | Path], limit: float, log: Path, name: str, **options: Any) -> Outcome:
    """Run a command for at most ``limit`` seconds; its output is appended to ``log``, under a line with ``name``."""
    with log.open("ab") as file:
        file.write(f"=== {name}\n".encode())
        file.flush()
        begin = log.stat().st_size
        process = start(command, file, **options)
        status: int | None = None
        try:
            status = process.wait(max(limit, 1))
        except subprocess.TimeoutExpired:
            pass
        finally:
            if status is None:
                end(process)
    with log.open("rb") as file:
        file.seek(begin)
        text = file.read().decode(errors="replace")
    return Outcome(status, text, time.time() - log.stat().st_mtime)


def save(path: Path, value: object) -> None:
    """Write JSON so that at any second there is a whole file: the old one or the new one."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(json.dumps(value, indent=1) + "\n")
    fresh.replace(path)


class Steps:
    """What came of each step, told when it is done and handed to ``keep`` at once."""

    def __init__(
        self,
        budget: Budget,
        known: list[dict[str, Any]],
        keep: Callable[[list[dict[str, Any]]], None],
        say: Callable[[str], None],
    ) -> None:
        """``known`` are steps of an earlier run that need not be done again."""
        self.budget, self.keep, self.say = budget, keep, say
        self.done: list[dict[str, Any]] = []
        self.known = {step["name"]: step for step in known}

    def step(self, name: str, work: Callable[[float], tuple[str, str]]) -> str:
        """Run ``work(seconds that it may take)``, which answers with a status and a sentence; the status."""
        if name in self.known:
            step = self.known[name] | {"earlier": True}
        elif not self.budget.pays(name):
            step = {"name": name, "status": NO_TIME, "seconds": 0.0, "detail": "it was not begun"}
        else:
            start = time.monotonic()
            status, detail = work(self.budget.limit(name))
            step = {
                "name": name,
                "status": status,
                "seconds": round(time.monotonic() - start, 1),
                "detail": detail,
            }
        self.done.append(step)
        self.keep(self.done)
        earlier = " (of an earlier run)" if step.get("earlier") else ""
        self.say(f"{step['status']:<8} {name:<10} {step['seconds']:5.1f} s  {step['detail']}{earlier}")
        return str(step["status"])
