"""The streams and signals of the process."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def to_stderr() -> Iterator[None]:
    """What TVM and the linker write to the process's stdout goes to stderr: stdout is for data."""
    sys.stdout.flush()
    try:
        saved = os.dup(1)
    except OSError:  # there is none
        yield
        return
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def silence_stdout() -> None:
    """The interpreter's last flush goes nowhere."""
    if sys.__stdout__ is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())


class Terminated(BaseException):
    """SIGTERM arrived: unwinds like Ctrl-C, so that nothing half-written stays."""


def stop_on_sigterm() -> Any:
    """Turn SIGTERM into an exception; the previous handler, or None outside the main thread."""

    def stop(*_: object) -> None:
        raise Terminated

    try:
        return signal.signal(signal.SIGTERM, stop)
    except ValueError:
        return None


def open_streams() -> None:
    """Make stdout and stderr usable: a closed one ("1>&-") is None, and a terminal may lack a name's characters."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: PTH123, SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
