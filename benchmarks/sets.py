"""Two models in several sets of sessions, the first in two of each set: what the second saves, and what chance makes.

Where a session's weights happen to lie in memory is worth some percent for as long as it lives. A set of sessions is
therefore one observation, however many rounds it has, and sets are what an interval is taken from; two sessions of the
same model say whether that interval holds. Where the weights of all sessions lie in the same place, little of it is
left.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, helper

from benchmarks.timing import Contestant, alternate, median, ratios

LEAST_SETS, MOST_SETS = 6, 16
LEAST_ROUNDS = 4
MOST_SECONDS = 60
"""No more sets after this time, once there are the least."""
PRECISION = 0.005
"""No more sets once the standard errors of what is saved, and of the model against itself, are below this."""
SHARED_BYTES = 64 * 1024
"""Smaller weights stay where they are when others are handed in."""


@dataclasses.dataclass
class Sets:
    """What was measured: a number for each set of sessions.

    Attributes:
        saved: logarithm of how many times as long the first model took as the second.
        control: that of the first model against itself.
        first_us, second_us: microseconds of a run.
    """

    saved: list[float] = dataclasses.field(default_factory=list)
    control: list[float] = dataclasses.field(default_factory=list)
    first_us: list[float] = dataclasses.field(default_factory=list)
    second_us: list[float] = dataclasses.field(default_factory=list)


def interval(logarithms: Sequence[float]) -> tuple[float, float, float]:
    """The part of the time that is saved, and the 95 % interval of it, from logarithms of ratios; at least two."""
    count, mean = len(logarithms), float(np.mean(logarithms))
    student = 1.96 + 3.1 / (count - 1)  # Student's quantile for 95 %, at most 2 % too large from 6 sets on
    around = student * float(np.std(logarithms, ddof=1)) / math.sqrt(count)
    low, high = (1 - math.exp(-x) for x in (mean - around, mean + around))
    return 1 - math.exp(-mean), low, high


def measure(first: Callable[[], Any], second: Callable[[], Any], *, quick: bool, seconds: float = 0.4) -> Sets:
    """Sets of three sessions each, made and run in an order that changes.

    Args:
        first: makes what runs a model once.
        second: makes what runs another.
        quick: two short sets.
        seconds: about how long the rounds of a set take.
    """
    sets = Sets()
    makers, start = (first, first, second), time.perf_counter()
    for i in range(2 if quick else MOST_SETS):
        order = list(itertools.permutations(range(3)))[i % 6]
        made = {which: makers[which]() for which in order}
        three = [Contestant([made[w]], 1, threads=1, round_us=100 if quick else 5000, warm_us=0) for w in range(3)]
        alternate(
            three,
            judged=3,
            most_rounds=11 if quick else 200,
            seconds=seconds,
            precision=0.001,
            least_rounds=LEAST_ROUNDS,
        )
        a, b, ours = three
        # against both sessions of the first model, which halves what their places do to it
        of_both = [math.log(median(ratios(ours, one))) for one in (a, b)]
        sets.saved.append(sum(of_both) / 2)
        sets.control.append(math.log(median(ratios(b, a))))
        sets.first_us.append((median(a.rounds) + median(b.rounds)) / 2)
        sets.second_us.append(median(ours.rounds))
        del made, three, a, b, ours
        gc.collect()
        errors = (np.std(found, ddof=1) / math.sqrt(i + 1) for found in (sets.saved, sets.control) if i)
        is_late = time.perf_counter() - start > MOST_SECONDS
        if i + 1 >= LEAST_SETS and (is_late or max(errors) < PRECISION):
            break
    return sets


class Place:
    """Memory for the weights of products, the same for every session: the n-th matrix of a shape is always there.

    What is in it is not what the models have, so that only times mean anything.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[tuple[int, ...], int], Any] = {}

    def runner(self, session: Callable[[ModelProto], Any], model: ModelProto, feeds: dict[str, Any]) -> Any:
        """What runs ``model`` once, with its matrices handed in instead of held.

        Args:
            session: makes a session.
            model: in which matrices of float32 that only products read become inputs.
            feeds: the inputs of the model.
        """
        outside = ModelProto.FromString(model.SerializeToString())
        matrices = _matrices(outside)
        kept = [t for t in model.graph.initializer if t.name not in matrices]
        del outside.graph.initializer[:]
        outside.graph.initializer.extend(kept)
        outside.graph.input.extend(helper.make_tensor_value_info(name, 1, shape) for name, shape in matrices.items())
        made = session(outside)
        binding = made.io_binding()
        count: collections.Counter[tuple[int, ...]] = collections.Counter()
        for name, shape in matrices.items():
            binding.bind_ortvalue_input(name, self._matrix(shape, count[shape]))
            count[shape] += 1
        for name, value in feeds.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(value))
        for output in made.get_outputs():
            binding.bind_output(output.name)
        return functools.partial(made.run_with_iobinding, binding)

    def _matrix(self, shape: tuple[int, ...], number: int) -> Any:
        key = (shape, number)
        if key not in self._held:
            values = np.random.default_rng(number).standard_normal(shape, np.float32) / math.sqrt(shape[0])
            self._held[key] = ort.OrtValue.ortvalue_from_numpy(values.astype(np.float32))
        return self._held[key]


def _matrices(model: ModelProto) -> dict[str, tuple[int, ...]]:
    """The large matrices that nothing but products read, in the order in which those do, with their shapes."""
    held = {t.name: t for t in model.graph.initializer}
    others = {
        name for node in model.graph.node for i, name in enumerate(node.input) if node.op_type != "MatMul" or not i
    }
    found = {}
    for node in model.graph.node:
        tensor = held.get(node.input[1]) if node.op_type == "MatMul" else None
        if tensor is None or tensor.name in others or tensor.data_type != 1 or len(tensor.dims) != 2:
            continue
        if 4 * math.prod(tensor.dims) >= SHARED_BYTES:
            found[tensor.name] = tuple(tensor.dims)
    return found
