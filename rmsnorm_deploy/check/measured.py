"""What a measurement of a model found, as data."""

from __future__ import annotations

import dataclasses
from typing import Any

from rmsnorm_deploy.check.shares import Share
from rmsnorm_deploy.check.timing import Timing

SCHEMA_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The same work in several variants, in one process, in turns.

    Attributes:
        what: "model" or "one norm".
        detail: shapes and types.
        before: the original.
        after: the fused model, in the library's kernels where the library is there.
        baseline: what ``before`` is.
        ratio: how many times as fast ``after`` is: median of before / after, turn by turn.
        ratio_p10: a tenth of the turns gave less.
        ratio_p90: a tenth of the turns gave more.
        others: the fused model without the library, and in the form of onnxruntime's own operator, where they run.
        other_ratios: how many times as fast ``after`` is as each of them.
        low, high: the median of more turns is between them with a probability of 95 %.
        noise: what the ratio of the original with itself, measured in the same turns, differs from 1; at least 0.01.
        differs: whether ``ratio`` differs from 1 by more than that.
        place: the output of the norm that was timed alone; empty for the model.
    """

    what: str
    detail: str
    before: Timing
    after: Timing
    baseline: str
    ratio: float
    ratio_p10: float
    ratio_p90: float
    others: tuple[Timing, ...] = ()
    other_ratios: tuple[float, ...] = ()
    low: float = 0.0
    high: float = 0.0
    noise: float = 0.0
    differs: bool = True
    place: str = ""

    def verdict(self) -> str:
        """In words, how many times as fast the fused one is."""
        if not self.differs:
            return f"no difference beyond noise ({self.low:.2f}x to {self.high:.2f}x; noise {self.noise:.1%})"
        return f"{self.ratio:.2f}x ({self.low:.2f}x to {self.high:.2f}x; noise {self.noise:.1%})"


@dataclasses.dataclass(frozen=True)
class BenchResult:
    """What a measurement found.

    Attributes:
        comparisons: the model, and one norm alone where the model has one that can be cut out.
        library: why the library was not used; empty where it was.
        machine: processor and number of cores.
        onnxruntime: its version.
        threads: threads within an operator; 0 is onnxruntime's choice.
        notes: what a reader should know.
        shares: how much of the time of the operators goes into norms, before and after.
        alternating: one variant was in memory at a time, as the weights are large.
        kernels: microseconds of every fused norm within the fused model, by its output, in the library's kernels.
    """

    comparisons: tuple[Comparison, ...]
    library: str
    machine: str
    onnxruntime: str
    threads: int
    notes: tuple[str, ...] = ()
    shares: tuple[Share, ...] = ()
    alternating: bool = False
    kernels: dict[str, float] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; keys are stable within :data:`SCHEMA_VERSION`."""
        return {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(self)}
