"""The steps of a compilation: which one is running, and how long each took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

Told = Callable[[str, int, int], None]
"""A function of a step's name, how many are done, and how many there are: called when a step begins, and at the end."""


class Steps:
    """A clock that is told when a step begins.

    Args:
        names: of all steps, in order.
        told: who wants to know.

    Attributes:
        seconds: time taken by step, of those that are over.
    """

    def __init__(self, names: Sequence[str], told: Told | None) -> None:
        self.names = tuple(names)
        self.seconds: dict[str, float] = {}
        self._told = told
        self._running: str | None = None
        self._since = 0.0

    def begin(self, name: str) -> None:
        """End the step before, and begin ``name``."""
        self._end()
        self._running, self._since = name, time.perf_counter()
        self._tell(name)

    def finish(self) -> None:
        """End the last step."""
        self._end()
        self._tell("")

    def _end(self) -> None:
        if self._running is not None:
            self.seconds[self._running] = time.perf_counter() - self._since
            self._running = None

    def _tell(self, name: str) -> None:
        if self._told is not None:
            self._told(name, len(self.seconds), len(self.names))
