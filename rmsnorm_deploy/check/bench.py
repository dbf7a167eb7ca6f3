"""How long a model and one of its norms take: as exported, fused, without the library, in onnxruntime's own form."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rmsnorm_deploy.check.alone import one_norm
from rmsnorm_deploy.check.machine import give_back_memory, machine
from rmsnorm_deploy.check.outside import inside, moved_out
from rmsnorm_deploy.check.shares import Profile, Share, profile_of, with_names
from rmsnorm_deploy.check.timing import Ratio, Timing, in_turns, noise_of, one_at_a_time
from rmsnorm_deploy.errors import MissingEnvironment, RmsNormDeployError, UsageError, first_line
from rmsnorm_deploy.fusing.forms import Form
from rmsnorm_deploy.fusing.fuse import fuse
from rmsnorm_deploy.fusing.report import FusedNorm
from rmsnorm_deploy.model.copying import Told
from rmsnorm_deploy.model.graphs import nodes_of
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.run.inputs import Array, Feeds, fit_inputs, make_inputs
from rmsnorm_deploy.run.ort import onnxruntime
from rmsnorm_deploy.run.registering import library_problem
from rmsnorm_deploy.run.runnable import Model, Runnable
from rmsnorm_deploy.run.runner import Runner

SCHEMA_VERSION = 1
TOGETHER = 2**28
"""Bytes of weights up to which all variants are in memory at once, and take turns run by run."""
ORIGINAL, WITH, WITHOUT, ORT_FORM = "original", "fused, library's kernels", "fused, function bodies", "fused, form ort"


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


def bench(
    model: Model,
    fused: Model | None = None,
    *,
    inputs: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    seconds: float = 2.0,
    threads: int = 0,
    progress: Told | None = None,
) -> BenchResult:
    """Time ``model`` against ``fused``, and one of its norms alone, in onnxruntime on the CPU.

    The fused model runs with the library and without it, and a third one has the norms in the form of onnxruntime's own
    operator. All have onnxruntime's own optimizer at its default, which is everything it can do. They take turns; from
    :data:`TOGETHER` bytes of weights on, one at a time is in memory.

    Args:
        model: the original: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``.
        fused: the fused model; made from ``model`` when left out.
        inputs: arrays by name, instead of generated ones.
        shapes: shapes of generated inputs by name.
        seed: of the generator.
        seconds: time for each comparison.
        threads: threads within an operator; 0 is onnxruntime's choice.
        progress: called with what is being timed, and how much of 100 is done.

    Raises:
        ModelError: a file cannot be read.
        UsageError: the inputs do not fit the model, or the two models have different inputs or outputs.
        MissingEnvironment: onnxruntime is not installed or does not load the original.
    """
    home = Runnable.of(model).home
    with tempfile.TemporaryDirectory(prefix="rmsnorm-deploy.") as scratch:
        model = _lean(model, None, Path(scratch), "original")
        fused = None if fused is None else _lean(fused, home, Path(scratch), "fused")
        before = Runnable.of(model)
        made, report = fuse(model)
        after = Runnable.of(made, before.home) if fused is None else Runnable.of(fused, home)
        clock = _Clock(seconds, threads, library_problem(), progress, [])
        if not report.fused and fused is None:
            clock.notes.append("the model has no norm to fuse: both sides are the same")
        _require_one_signature(before, after)
        feeds = fit_inputs(inputs, before.proto) if inputs is not None else make_inputs(before.proto, shapes, seed)
        own = _own_form(model, before, report.fused, clock.notes)
        return clock.result(before, after, Runnable.of(made, before.home), own, report.fused, feeds)


def _lean(model: Model, home: Path | None, scratch: Path, name: str) -> Model:
    """``model``, or a file with its weights beside it where it has so many inside that no variant may copy them."""
    runnable = Runnable.of(model, home)
    if inside(runnable) <= TOGETHER:
        return model
    try:
        return moved_out(runnable, scratch, name)
    except OSError:  # no space: then it takes more memory
        return model


def _require_one_signature(before: Runnable, after: Runnable) -> None:
    for what in ("input", "output"):
        names = [{v.name for v in getattr(one.proto.graph, what)} for one in (before, after)]
        if names[0] != names[1]:
            odd = ", ".join(sorted(names[0] ^ names[1])[:3])
            raise UsageError(
                f"the two models are not one and the same: only one of them has the {what} {odd}",
                "Name the original and what was made from it.",
            )


def _own_form(model: Model, before: Runnable, norms: Sequence[FusedNorm], notes: list[str]) -> Runnable | None:
    """The model with its norms in the form of onnxruntime's own operator, where that expresses all of them."""
    if not norms:
        return None
    try:
        proto, report = fuse(model, form=Form.ORT)
        if len(report.fused) < len(norms):
            notes.append(f"onnxruntime's own operator expresses {len(report.fused)} of {len(norms)} norms")
        return Runnable.of(proto, before.home) if report.fused else None
    except RmsNormDeployError as error:
        notes.append(f"not timed in onnxruntime's own form: {error.message}")
        return None


def _kernels(model: Runnable, profile: Profile) -> dict[str, float]:
    """What each node of ours takes, by its output."""
    ours = {n.output[0]: n.name for n in nodes_of(model.proto.graph) if n.domain == DOMAIN}
    return {output: profile.nodes[name] for output, name in ours.items() if name in profile.nodes}


@dataclasses.dataclass(frozen=True)
class _Clock:
    """What times variants.

    Attributes:
        seconds: for each comparison.
        threads: within an operator.
        library: why the library is not used; empty where it is.
        progress: who wants to know.
        notes: what a reader should know; it grows.
    """

    seconds: float
    threads: int
    library: str
    progress: Told | None
    notes: list[str]

    def result(
        self,
        before: Runnable,
        after: Runnable,
        made: Runnable,
        own: Runnable | None,
        norms: Sequence[FusedNorm],
        feeds: Feeds,
    ) -> BenchResult:
        """Time the model, its first norm that can be cut out of ``made``, and the norms' share."""
        shown = ", ".join(f"{k} {v.dtype}{list(v.shape)}" for k, v in feeds.items())
        alternating = max(before.weights, after.weights) > TOGETHER
        comparisons = [self.compare("model", shown, before, after, feeds, own, alternating)]
        for norm in norms:
            alone = one_norm(before, made, norm, feeds)
            if alone is not None:
                comparisons.append(dataclasses.replace(self.compare("one norm", *alone), place=norm.output))
                break
        else:
            if norms:
                self.notes.append("no norm of this model can be cut out and run alone")
        profiles = self.profiles(before, after, norms, feeds) if norms else (None, None)
        if self.library:
            self.notes.append(f"without the library's kernels: {self.library}")
        if alternating:
            self.notes.append("the weights are large, so one variant at a time was in memory")
        return BenchResult(
            tuple(comparisons),
            self.library,
            machine(),
            onnxruntime().__version__,
            self.threads,
            tuple(self.notes),
            shares=tuple(p.share for p in profiles if p is not None),
            alternating=alternating,
            kernels={} if self.library or profiles[1] is None else _kernels(after, profiles[1]),
        )

    def compare(
        self,
        what: str,
        detail: str,
        before: Runnable,
        after: Runnable,
        feeds: Feeds,
        own: Runnable | None = None,
        alternating: bool = False,
    ) -> Comparison:
        """Time the variants of a model or a part of one."""
        ours = any(n.domain == DOMAIN for n in nodes_of(after.proto.graph))
        variants = [(ORIGINAL, before, False)]
        if not self.library or not ours:
            variants.append((WITH if ours else "fused", after, not self.library and ours))
        if ours:
            variants.append((WITHOUT, after, False))
        if own is not None:
            variants.append((ORT_FORM, own, False))
        runs: list[Callable[[], None]] = []
        openers: list[Callable[[], Callable[[], None]]] = []
        names: list[str] = []
        for variant, one, with_library in variants:
            run = self._first_run(variant, one, with_library, feeds, needed=len(names) < 2)
            if run is not None:
                names.append(variant)
                openers.append(self._opener(one, with_library, feeds))
                if not alternating:
                    runs.append(run)
            del run
            if alternating:
                give_back_memory()
        told = (
            None if self.progress is None else self._told("timing the model" if what == "model" else f"timing {what}")
        )
        if alternating:
            times = one_at_a_time([*openers, openers[0]], self.seconds, told)
        else:
            times = in_turns([*runs, runs[0]], self.seconds, told)
        ratio, again = Ratio.of(times[0], times[1]), Ratio.of(times[0], times[-1])
        noise = noise_of(again)
        rest = range(2, len(names))
        return Comparison(
            what=what,
            detail=detail,
            before=Timing.of(ORIGINAL, times[0]),
            after=Timing.of(names[1], times[1]),
            baseline=f"onnxruntime {onnxruntime().__version__}, its optimizer on",
            ratio=ratio.median,
            ratio_p10=ratio.p10,
            ratio_p90=ratio.p90,
            others=tuple(Timing.of(names[i], times[i]) for i in rest),
            other_ratios=tuple(Ratio.of(times[i], times[1]).median for i in rest),
            low=ratio.low,
            high=ratio.high,
            noise=noise,
            differs=ratio.is_beyond(noise),
        )

    def profiles(
        self, before: Runnable, after: Runnable, norms: Sequence[FusedNorm], feeds: Feeds
    ) -> tuple[Profile | None, Profile | None]:
        """What the operators take before and after; None where onnxruntime does not say."""
        name = WITHOUT if self.library else WITH
        return (
            self._profile(ORIGINAL, with_names(before), norms, feeds, library=False),
            self._profile(name, after, norms, feeds, library=not self.library),
        )

    def _profile(
        self, variant: str, model: Runnable, norms: Sequence[FusedNorm], feeds: Feeds, *, library: bool
    ) -> Profile | None:
        if self.progress is not None:
            self.progress(f"profiling: {variant}", 0, 0)
        try:
            return profile_of(variant, model, norms, feeds, library=library, threads=self.threads)
        except Exception as error:  # a profile that cannot be had is not worth an error: the model has been timed
            self.notes.append(f"no profile of the {variant}: {first_line(error)}")
            return None

    def _first_run(
        self, name: str, model: Runnable, library: bool, feeds: Feeds, *, needed: bool
    ) -> Callable[[], None] | None:
        """A variant that has run once; None where onnxruntime does not run it, and it is not needed."""
        try:
            run = self._opener(model, library, feeds)()
            run()
        except MissingEnvironment:
            raise
        except Exception as error:
            if name == ORIGINAL:
                raise MissingEnvironment(
                    f"onnxruntime {onnxruntime().__version__} does not run the original: {first_line(error)}",
                    "Time it where it runs.",
                ) from error
            if needed:
                raise
            self.notes.append(f"not timed: {name}: onnxruntime does not run it ({first_line(error)})")
            return None
        return run

    def _opener(self, model: Runnable, library: bool, feeds: Feeds) -> Callable[[], Callable[[], None]]:
        return lambda: Runner(model, library=library, threads=self.threads).timed(feeds)

    def _told(self, words: str) -> Callable[[float], None]:
        return lambda share: None if self.progress is None else self.progress(words, int(100 * share), 100)
