"""Work in processes of their own, with limits of time and memory: what a death and an excess belong to.

A worker is a process that is told numbers, one a line, and answers each with ``done`` and JSON; before each step it
says ``at STEP``. It is a module with a function ``work(number, say)`` that returns plain data.
"""

import contextlib
import dataclasses
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 10
"""Of processor time, for one piece of work."""
MEMORY = 2**30
"""Most memory that a process has in use."""
PATIENCE = 12
"""How many times SECONDS a piece of work may take by the clock, where others use the machine."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of one piece of work: what it returned, or how its process ended, and at which step."""

    answer: object
    death: str
    step: str


class Worker:
    """A process that does one piece of work after another; it starts anew after a death."""

    def __init__(self, module, *arguments):
        self.command = [sys.executable, "-m", "tests.fuzz.process", module, *map(str, arguments)]
        self.process = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.end()

    def end(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
            self.process = None

    def _start(self):
        # one thread each: the machine is others', too
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            self.command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=_limited,
        )
        self.left = b""
        self._line(time.monotonic() + 120)

    def _line(self, until):
        """The next line; None where there is none before ``until``, or too much time or memory is used."""
        while b"\n" not in self.left:
            ready, _, _ = select.select([self.process.stdout], [], [], 0.05)
            if ready:
                part = os.read(self.process.stdout.fileno(), 2**20)
                if not part:
                    return None
                self.left += part
                continue
            excess = self._excess(until)
            if excess:
                self.excess = excess
                return None
        line, self.left = self.left.split(b"\n", 1)
        return line.decode()

    def _excess(self, until):
        if time.monotonic() > until:
            return "time by the clock"
        with contextlib.suppress(OSError, IndexError, ValueError):
            stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks, pages = int(stat[11]) + int(stat[12]), int(stat[21])
            if ticks / os.sysconf("SC_CLK_TCK") - getattr(self, "used", 0) > SECONDS:
                return f"more than {SECONDS} s"
            if pages * os.sysconf("SC_PAGE_SIZE") > MEMORY:
                return f"more than {MEMORY >> 20} MiB"
        return ""

    def __call__(self, work):
        """Do one piece of work, a JSON value."""
        if self.process is None:
            self._start()
        self.excess, step = "", ""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        self.used = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
        self.process.stdin.write(json.dumps(work).encode() + b"\n")
        self.process.stdin.flush()
        until = time.monotonic() + PATIENCE * SECONDS
        while (line := self._line(until)) is not None:
            if line.startswith("at "):
                step = line[3:]
            elif line.startswith("done "):
                answer = json.loads(line[5:])
                if answer.pop("leave", False):  # it has grown: the next piece of work gets a fresh one
                    self.end()
                return Result(answer["answer"], answer["excess"], step)
        if not self.excess:
            status = self.process.wait()
            self.excess = f"died by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        self.end()
        return Result(None, self.excess, step)


def _limited():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # far above what is allowed: what goes on growing between two looks at it must not take the machine
    resource.setrlimit(resource.RLIMIT_AS, (12 * 2**30, 12 * 2**30))


def _memory(key):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return 0


def serve(work, source, sink):
    """Answer every line of ``source``; ``work`` is a function of a JSON value and ``say``."""

    def send(text):
        sink.write(text.encode() + b"\n")
        sink.flush()

    send("ready")
    for line in source:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the highest mark of memory starts anew
        before = _memory("VmRSS:")
        answer = work(json.loads(line), lambda step: send(f"at {step}"))
        most = _memory("VmHWM:")
        excess = f"more than {MEMORY >> 20} MiB" if most > MEMORY else ""
        leave = before > MEMORY // 2 or most > MEMORY // 2
        send("done " + json.dumps({"answer": answer, "excess": excess, "leave": leave}))


def main():
    """``python -m tests.fuzz.process MODULE``: a worker."""
    import importlib
    import logging

    logging.disable(logging.CRITICAL)
    # what is printed on the way must not be taken for an answer
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    module = importlib.import_module(sys.argv[1])
    serve(module.work, sys.stdin.buffer, sink)


if __name__ == "__main__":
    main()
