"""The clock: several contestants in one process, turn and turn about, until their medians are known well enough."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence

import numpy as np

LEAST_ROUNDS = 11


class Contestant:
    """Something to run, with its time in each round.

    Attributes:
        rounds: microseconds per unit, one number a round.
    """

    def __init__(
        self,
        runs: Sequence[Callable[[], object]],
        units: int,
        *,
        threads: int,
        round_us: float = 1000.0,
        warm_us: float = 1.0,
        pause_us: float = 0.0,
    ) -> None:
        """Run it a few times and choose how many calls make a round.

        Args:
            runs: the same work on different buffers, called in turn: one where the data shall stay in the cache.
            units: how much work one call is; times are divided by it.
            threads: with one, the clock is the thread's own CPU time, which other processes do not disturb; with more
                it is the wall clock.
            round_us: about how many microseconds a round shall take at least.
            warm_us: how long it runs untimed before each round, at least once unless this is 0: so that no contestant
                pays for what another left in the cache, or for threads that sleep.
            pause_us: how long it sleeps before that, until the threads of the contestant before sleep too.
        """
        self._runs = itertools.cycle(runs)
        self._units, self._pause = units, pause_us / 1e6
        self._calls = self._warm_calls = 1
        self._clock = time.thread_time_ns if threads == 1 else time.perf_counter_ns
        self.rounds: list[float] = []
        for _ in range(2):
            self.round()
        call_us = max(0.1, self.rounds[-1] * units)
        self._calls = max(1, round(round_us / call_us))
        self._warm_calls = math.ceil(warm_us / call_us)
        self.rounds.clear()

    def round(self) -> None:
        """Measure once more."""
        if self._pause:
            time.sleep(self._pause)
        for _ in range(self._warm_calls):
            next(self._runs)()
        runs = [next(self._runs) for _ in range(self._calls)]
        start = self._clock()
        for run in runs:
            run()
        self.rounds.append((self._clock() - start) / 1000 / self._calls / self._units)


def ratios(ours: Contestant, other: Contestant) -> list[float]:
    """How many times as long the other took, round by round."""
    return [b / a for a, b in zip(ours.rounds, other.rounds, strict=True)]


def median(values: Sequence[float]) -> float:
    """The median."""
    return float(np.median(values))


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third quartile."""
    low, high = np.quantile(values, [0.25, 0.75])
    return float(low), float(high)


def relative_error(values: Sequence[float]) -> float:
    """The standard error of the median over the median, from the quartiles as if the values were normal."""
    low, high = quartiles(values)
    return 0.93 * (high - low) / float(np.sqrt(len(values))) / median(values)


def alternate(
    contestants: Sequence[Contestant],
    *,
    judged: int,
    most_rounds: int,
    seconds: float,
    precision: float,
    least_rounds: int = LEAST_ROUNDS,
) -> None:
    """Let all run in every round, in an order that is rotated and reversed in turn.

    Args:
        contestants: the first is the one that the others are compared with.
        judged: how many of them, from the first, must be measured with ``precision``.
        most_rounds: the end in any case.
        seconds: the end after this time, once there are ``least_rounds``.
        precision: the end once the standard error of each median ratio is below this part of it.
        least_rounds: not before this many.
    """
    start = time.perf_counter()
    for i in range(most_rounds):
        first = i % len(contestants)
        order = [*contestants[first:], *contestants[:first]]
        for one in order if i % 2 else reversed(order):
            one.round()
        if i + 1 < least_rounds:
            continue
        others = contestants[1:judged]
        if time.perf_counter() - start > seconds or all(
            relative_error(ratios(contestants[0], other)) < precision for other in others
        ):
            return
