"""A process that answers one call after another, and may crash or hang without taking the caller with it."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from typing import Any

START_SECONDS = 300
"""Importing is slow on a busy machine, and happens once."""


class WorkerFailed(Exception):
    """The call raised, or its process ended or hung.

    Attributes:
        survived: the process is still there, so the call raised.
    """

    def __init__(self, reason: str, *, survived: bool = False) -> None:
        super().__init__(reason)
        self.survived = survived


class WorkerMissing(Exception):
    """The process lacks a module that it needs."""


def _serve(connection: Connection, factory: str, arguments: tuple[Any, ...], quiet: bool) -> None:
    """The process's own loop: make the handler, then answer calls until the other end closes."""
    if quiet:
        # peers print, from C++ as well: both streams go, not only sys.stdout
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
    else:
        os.dup2(2, 1)  # stdout is for data
    module, _, function = factory.partition(":")
    try:
        handle = getattr(importlib.import_module(module), function)(*arguments)
    except ImportError as error:
        connection.send({"missing": str(error)})
        return
    except Exception as error:
        connection.send({"error": f"{type(error).__name__}: {error}"})
        return
    connection.send({})
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            request = connection.recv()
            start = time.perf_counter()
            try:
                answer = {"answer": handle(**request)}
            except Exception as error:
                text = (str(error).strip().splitlines() or [""])[0][:200]
                answer = {"error": f"{type(error).__name__}: {text}"}
            answer["seconds"] = time.perf_counter() - start
            connection.send(answer)


class Worker:
    """One process, started when first needed and again after it ended.

    Args:
        factory: "module:function" that makes the handler in the process; its calls take keywords, return plain data.
        arguments: of the factory.
        timeout: seconds for one call.
        quiet: drop what the process prints.
    """

    def __init__(self, factory: str, *arguments: Any, timeout: float = 60, quiet: bool = True) -> None:
        self._factory, self._arguments, self._timeout, self._quiet = factory, arguments, timeout, quiet
        self._process: Any = None
        self._connection: Connection | None = None

    def start(self) -> None:
        """Start the process, unless it runs.

        Raises:
            WorkerMissing: it lacks a module.
            WorkerFailed: it did not start for another reason.
        """
        if self._process is not None:
            return
        # spawn, not fork: a forked child inherits locks that threads of the parent hold
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, self._factory, self._arguments, self._quiet), daemon=True
        )
        self._process.start()
        theirs.close()  # or the end of the process would not end the stream
        reply = self._receive(START_SECONDS)
        if "missing" in reply:
            self.close()
            raise WorkerMissing(reply["missing"])
        if "error" in reply:
            self.close()
            raise WorkerFailed(reply["error"])

    def call(self, **request: Any) -> tuple[Any, float]:
        """The handler's answer and the seconds it took in the process.

        Raises:
            WorkerFailed: it raised, ended or took too long.
        """
        self.start()
        assert self._connection is not None
        try:
            self._connection.send(request)
        except OSError as error:
            self.close()
            raise WorkerFailed("the process had ended") from error
        reply = self._receive(self._timeout)
        if "error" in reply:
            raise WorkerFailed(reply["error"], survived=True)
        return reply["answer"], reply["seconds"]

    def close(self) -> None:
        """End the process, politely first."""
        if self._process is None:
            return
        assert self._connection is not None
        self._connection.close()
        self._process.join(0.5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()
        self._process = self._connection = None

    def _receive(self, timeout: float) -> dict[str, Any]:
        assert self._connection is not None
        try:
            if self._connection.poll(timeout):
                reply: dict[str, Any] = self._connection.recv()
                return reply
            reason = f"no answer in {timeout:g} s"
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode
            reason = f"the process ended by signal {-code}" if code and code < 0 else f"the process ended with {code}"
        self.close()
        raise WorkerFailed(reason)
