"""Times that can be compared: runs in turns, the spread of their ratio, and what the machine's noise alone makes."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rmsnorm_deploy.check.machine import give_back_memory

_WARM_UP = 3
_FEWEST = 8
_MOST = 20_000
_SCORE = 1.96
"""Standard deviations on either side that hold 95 of 100."""
_LEAST = 0.01
"""Nobody can tell a smaller difference on a machine that does anything else."""


@dataclasses.dataclass(frozen=True)
class Timing:
    """Times of one variant, in microseconds.

    Attributes:
        variant: what ran.
        median: the middle of all runs.
        p10: a tenth of the runs were faster.
        p90: a tenth of the runs were slower.
        runs: how many.
    """

    variant: str
    median: float
    p10: float
    p90: float
    runs: int

    @classmethod
    def of(cls, variant: str, times: Sequence[float]) -> Timing:
        """The summary of these times."""
        return cls(variant, statistics.median(times), percentile(times, 10), percentile(times, 90), len(times))


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How many times as fast something is as something else, turn by turn.

    Attributes:
        median: of all turns.
        p10: a tenth of the turns gave less.
        p90: a tenth of the turns gave more.
        low, high: the median of more turns is between them with a probability of 95 %.
    """

    median: float
    p10: float
    p90: float
    low: float
    high: float

    @classmethod
    def of(cls, before: Sequence[float], after: Sequence[float]) -> Ratio:
        """Of the times of two variants in the same turns."""
        ratios = sorted(b / a for b, a in zip(before, after, strict=True))
        # how many of n turns are below the true median is binomial
        reach = _SCORE * math.sqrt(len(ratios)) / 2
        low = max(math.floor(len(ratios) / 2 - reach), 0)
        high = min(math.ceil(len(ratios) / 2 + reach), len(ratios) - 1)
        middle = statistics.median(ratios)
        return cls(middle, percentile(ratios, 10), percentile(ratios, 90), ratios[low], ratios[high])

    def is_beyond(self, noise: float) -> bool:
        """Whether this differs from 1 by more than ``noise``, a share."""
        return self.low > 1 + noise or self.high < 1 / (1 + noise)


def noise_of(again: Ratio) -> float:
    """What place in the turns and chance make of a ratio, as a share: ``again`` is that of one thing with itself."""
    return max(again.median - 1, 1 / again.median - 1, _LEAST)


def in_turns(
    runs: Sequence[Callable[[], Any]], seconds: float, told: Callable[[float], None] | None = None
) -> list[list[float]]:
    """Microseconds of each run, round by round, every other round in reverse order; the first rounds warm up.

    Args:
        runs: what is timed.
        seconds: for all of it.
        told: called after each round with the share that is done.
    """
    for _ in range(_WARM_UP):
        for run in runs:
            run()
    times: list[list[float]] = [[] for _ in runs]
    start = time.perf_counter()
    turn = 0
    while turn < _FEWEST or (time.perf_counter() < start + seconds and turn < _MOST):
        order = range(len(runs)) if turn % 2 == 0 else range(len(runs) - 1, -1, -1)
        for i in order:
            times[i].append(_timed(runs[i]))
        turn += 1
        if told is not None:
            told(min(max((time.perf_counter() - start) / max(seconds, 1e-9), 0), turn / _FEWEST, 1.0))
    return times


def one_at_a_time(
    opened: Sequence[Callable[[], Callable[[], Any]]],
    seconds: float,
    told: Callable[[float], None] | None = None,
    rounds: int = 2,
) -> list[list[float]]:
    """As :func:`in_turns`, with never more than one of them in memory.

    In each round each is opened, warmed up, run several times and closed. The first run of one in a round is compared
    with the first of the others, and so on.

    Args:
        opened: what makes a run; it is gone when its last reference is.
        seconds: for the runs of all of it, without opening.
        told: called with the share that is done.
        rounds: how often each is opened.
    """
    times: list[list[float]] = [[] for _ in opened]
    count: int | None = None
    for turn in range(rounds):
        order = range(len(opened)) if turn % 2 == 0 else range(len(opened) - 1, -1, -1)
        for done, i in enumerate(order):
            run = opened[i]()
            run()
            first = _timed(run)
            if count is None:
                count = min(max(int(seconds * 1e6 / first / len(opened) / rounds), _FEWEST // rounds + 1), _MOST)
            times[i] += [_timed(run) for _ in range(count)]
            del run  # before the next one is opened
            give_back_memory()
            if told is not None:
                told((turn * len(opened) + done + 1) / rounds / len(opened))
    return times


def _timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - start) / 1000


def percentile(values: Sequence[float], percent: int) -> float:
    """The number below which so many of 100 values are."""
    return float(np.percentile(values, percent))
