"""Ctrl-C and SIGTERM: they end a command without a traceback and leave nothing half-written, whenever they arrive.

It imports nothing slow: signals are taken care of before anything slow is imported.
"""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False  # that of the module typing, whose import is slow

if TYPE_CHECKING:
    import threading
    from types import CodeType, FrameType
    from typing import Any


class Terminated(BaseException):
    """SIGTERM arrived: unwinds like Ctrl-C, so that nothing half-written stays."""


STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}
MESSAGE = {signal.SIGINT: "interrupted", signal.SIGTERM: "stopped by SIGTERM"}
_ERROR: dict[int, type[BaseException]] = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}

_TOGETHER = 0.5
"""Seconds for which what follows a signal is the same one: a key that repeats, or one that a whole group gets."""
_AGAIN = 0.05
"""Seconds until a signal that arrived at a bad moment is tried again."""


class Signals:
    """What the two signals do while a command runs.

    At first, while the command line itself is imported, they end the process at once: nothing has begun, and an
    exception in the middle of an extension module's initialisation ends in a crash. After :meth:`unwind` they raise
    KeyboardInterrupt and :class:`Terminated`, except inside an import, where they wait for its end.

    Attributes:
        arrived: the signal that was raised as an exception; None before. Foreign code may turn the exception into
            another one.
    """

    def __init__(self, *, process: bool) -> None:
        """Take no signal yet.

        Args:
            process: the command is all that this process does.
        """
        self.arrived: signal.Signals | None = None
        self._process = process
        self._before: dict[signal.Signals, Any] = {}
        self._leave = process
        self._raised_at = -_TOGETHER
        self._root: CodeType | None = None
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Signals:
        for number in STATUS:
            try:
                self._before[number] = signal.signal(number, self._handle)
            except ValueError:  # not in the main thread, which is the one that signals go to
                break
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()
        if not self._process:
            for number, before in self._before.items():
                signal.signal(number, before)

    def unwind(self, root: CodeType) -> None:
        """From now on signals are exceptions. ``root`` is the code below which imports are ours to wait for."""
        self._root = root
        self._leave = False

    def finish(self) -> None:
        """The outcome is settled: signals change it no more."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)
        if self._timer is not None:
            self._timer.cancel()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        which = signal.Signals(number)
        if self._leave:
            try:
                os.write(2, f"error: {MESSAGE[which]}\n".encode())
            finally:
                os._exit(STATUS[which])
        if time.monotonic() - self._raised_at < _TOGETHER:
            return
        if self._is_importing(frame):
            import threading

            # to this thread: a signal that another one gets would not wake it
            self._timer = threading.Timer(_AGAIN, signal.pthread_kill, [threading.get_ident(), number])
            self._timer.daemon = True
            self._timer.start()
            return
        self._raised_at = time.monotonic()
        self.arrived = which
        raise _ERROR[which]

    def _is_importing(self, frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code is not self._root:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                return True
            frame = frame.f_back
        return False


def finished() -> None:
    """A command's outcome is settled: what it made is in place and told. Signals change it no more."""
    owner = _owner()
    if owner is not None:
        owner.finish()


def has_arrived() -> bool:
    """Whether a signal has ended the command, whatever foreign code has made of its exception."""
    owner = _owner()
    return owner is not None and owner.arrived is not None


def _owner() -> Signals | None:
    found = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    return found if isinstance(found, Signals) else None
