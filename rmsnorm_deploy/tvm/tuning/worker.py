"""A process of its own for work that may crash or hang: only that call is lost, and the next one gets a new process."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


class WorkerLost(Exception):
    """The process ended before it answered; the text says how."""


# TVM's PopenWorker does not do. A thread of the child watches the time, so a kernel that hangs with the interpreter's
# lock is waited for without end; it does not say which signal ended the child; another thread cannot end a call.
class Worker:
    """Calls functions in a child process, which starts with the first call and again after it was lost.

    One call at a time. :meth:`stop` may come from another thread while a call waits.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._calling = threading.Lock()

    def call(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
        """``function(*arguments)`` in the child.

        Args:
            function: of a module, which the child imports by its name.
            arguments: anything that can be pickled, as the result has to be.
            seconds: the child is ended after that time, with whatever it is doing.

        Raises:
            WorkerLost: the child crashed, or its time was over, or :meth:`stop` was called.
        """
        with self._calling:
            process = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                pickle.dump((function, arguments, seconds), process.stdin)
                process.stdin.flush()
                worked, result = pickle.load(process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                self._forget()
                raise WorkerLost(_ending(process.returncode, seconds)) from error
        if not worked:
            raise result
        return result

    def stop(self) -> None:
        """End the child, whatever it is doing; later calls raise :class:`WorkerLost`."""
        self._stopped = True
        process = self._process
        if process is not None:
            _kill(process)  # a call that waits ends with it
        with self._calling:
            self._forget()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None and not self._stopped:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from rmsnorm_deploy.tvm.tuning.worker import serve; serve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # TVM's stack traces, which say nothing that the exit status does not
                # the parent's modules are the child's, wherever they come from
                env=os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(p).absolute()) for p in sys.path)},
                start_new_session=True,  # Ctrl-C is the parent's business, and a linker ends with the child
            )
        if self._stopped:  # perhaps while it was being started
            self._forget()
            raise WorkerLost("was stopped")
        assert self._process is not None
        return self._process

    def _forget(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        _kill(process)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # what was not sent any more
                if pipe is not None:
                    pipe.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _ending(status: int | None, seconds: float) -> str:
    if status == -signal.SIGALRM:
        return f"took longer than {seconds:g} s"
    if status is not None and status < 0 and status != -signal.SIGKILL:
        return f"crashed with {signal.Signals(-status).name}"
    return f"ended with status {status}"


def serve() -> None:
    """The child: answers calls on stdin until there are no more."""
    with os.fdopen(os.dup(0), "rb") as calls, os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)  # what TVM prints is not an answer
        _answer(calls, answers)


def _answer(calls: IO[bytes], answers: IO[bytes]) -> None:
    while True:
        try:
            function, arguments, seconds = pickle.load(calls)
        except EOFError:  # the parent has gone
            return
        # no handler: the system ends the process, even where no Python code is running
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            answer = (True, function(*arguments))
        except Exception as error:  # it is the caller's
            answer = (False, error)
        signal.setitimer(signal.ITIMER_REAL, 0)
        pickle.dump(answer, answers)
        answers.flush()
