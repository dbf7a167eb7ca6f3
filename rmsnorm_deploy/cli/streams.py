"""The streams of the process."""

from __future__ import annotations

import contextlib
import io
import os
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


def silence(stream: Any) -> None:
    """What is left in a stream that cannot be written goes nowhere: the interpreter's last flush does not fail."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or it is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def silence_stdout() -> None:
    """See :func:`silence`."""
    silence(sys.__stdout__)


def open_streams() -> None:
    """Make stdout and stderr usable: a closed one ("1>&-") is None, and a terminal may lack a name's characters."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: PTH123, SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
