"""What an original model computes on given inputs: in its own types, and in float64 where that is possible."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from rmsnorm_deploy.check.exact import ONLY_WAY_NODES, Truth, by_definition
from rmsnorm_deploy.errors import MissingEnvironment, UsageError, first_line
from rmsnorm_deploy.op.dtypes import FLOAT32, SIXTEEN_BIT, TYPES, FloatType
from rmsnorm_deploy.run.inputs import Array, Feeds, element_type
from rmsnorm_deploy.run.ort import onnxruntime
from rmsnorm_deploy.run.runnable import Runnable
from rmsnorm_deploy.run.runner import Runner


def narrowest_type(model: Runnable) -> FloatType:
    """The narrowest float type in the model: what it computes in, whatever type its outputs are cast to."""
    graph = model.proto.graph
    kinds = {t.data_type for t in graph.initializer}
    kinds |= {element_type(v) for v in [*graph.input, *graph.output, *graph.value_info]}
    return min((t for t in TYPES if t.number in kinds), key=lambda t: t.mantissa_bits, default=FLOAT32)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the original gives for one set of inputs.

    Attributes:
        exact: its outputs in float64, or None.
        originals: its outputs in its own types: as onnxruntime gives them, then with every rounding that it states.
    """

    exact: list[Array] | None
    originals: list[list[Array]]


class Original:
    """The original on every set of inputs.

    Args:
        model: the original.
        sets: names and arrays; the first set has to run.
        exact: whether a run in float64 is wanted.

    Attributes:
        outcomes: one for each set; None where it does not run.
        truth: what evaluated it exactly, in words.
        notes: what a reader should know.

    Raises:
        MissingEnvironment: nothing here runs the original.
        UsageError: it does not run on the first set.
    """

    def __init__(self, model: Runnable, sets: Sequence[tuple[str, Feeds]], *, exact: bool) -> None:
        self.model = model
        self.notes: list[str] = []
        self._loads: dict[bool, bool] = {}
        runner = self._runner(sets[0][1])
        truth = Truth(model) if exact else None
        self.outcomes: list[Outcome | None] = []
        narrow = narrowest_type(model).number in SIXTEEN_BIT
        for name, feeds in sets:
            try:
                originals = [runner(feeds)]
            except Exception as error:  # onnxruntime's exceptions have no common base of their own
                if not self.outcomes:
                    raise UsageError(
                        f"the original does not run on these inputs: {first_line(error)}",
                        "Give shapes that fit (--shapes x:1,8,64) or real inputs (--inputs file.npz).",
                    ) from error
                self.notes.append(f"the original does not run on the {name} inputs, so they were left out")
                self.outcomes.append(None)
                continue
            stated = by_definition(model, feeds) if narrow and exact else None
            self.outcomes.append(Outcome(truth(feeds) if truth else None, originals + ([stated] if stated else [])))
        self.truth = truth.how if truth and truth.how else "the original in onnxruntime"
        if truth and not truth.how:
            self.notes.append(f"compared with the original itself, not with float64: {truth.why_not}")

    def _runner(self, feeds: Feeds) -> Callable[[Feeds], list[Array]]:
        """The original as it stands; with the optimizer, or by onnx's evaluator, where only that makes it run."""
        try:
            return Runner(self.model, optimise=False)
        except MissingEnvironment:
            raise
        except Exception as first:
            self._loads[False] = False
            try:
                return Runner(self.model)
            except Exception as second:
                if by_definition(self.model, feeds, limit=ONLY_WAY_NODES) is None:
                    raise MissingEnvironment(
                        f"onnxruntime {onnxruntime().__version__} does not load the original: {first_line(first)}",
                        "Verify where the original runs: with another onnxruntime, or with its own custom operators.",
                    ) from second
                self._loads[True] = False
                self.notes.append("onnxruntime does not load the original; onnx's reference evaluator ran it")
                return lambda given: by_definition(self.model, given, limit=ONLY_WAY_NODES) or []

    def loads(self, optimise: bool) -> bool:
        """Whether onnxruntime loads the original this way."""
        if optimise not in self._loads:
            try:
                Runner(self.model, optimise=optimise)
                self._loads[optimise] = True
            except Exception:
                self._loads[optimise] = False
        return self._loads[optimise]
