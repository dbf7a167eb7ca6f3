"""Timing the variants of a model and of one of its norms, in turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from rmsnorm_deploy.check.alone import one_norm
from rmsnorm_deploy.check.machine import give_back_memory, machine
from rmsnorm_deploy.check.measured import BenchResult, Comparison
from rmsnorm_deploy.check.shares import Profile, profile_of, with_names
from rmsnorm_deploy.check.timing import Ratio, Timing, in_turns, noise_of, one_at_a_time
from rmsnorm_deploy.errors import MissingEnvironment, first_few, first_line
from rmsnorm_deploy.fusing.report import FusedNorm
from rmsnorm_deploy.model.copying import Told
from rmsnorm_deploy.model.graphs import nodes_of
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.run.inputs import Feeds
from rmsnorm_deploy.run.ort import onnxruntime
from rmsnorm_deploy.run.runnable import Runnable
from rmsnorm_deploy.run.runner import Runner

ORIGINAL, WITH, WITHOUT, ORT_FORM = "original", "fused, library's kernels", "fused, function bodies", "fused, form ort"


@dataclasses.dataclass(frozen=True)
class Clock:
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
        *,
        alternating: bool,
    ) -> BenchResult:
        """Time the model, its first norm that can be cut out, and the norms' share.

        Args:
            before: the original.
            after: the fused model.
            made: what the fuser makes of the original; the norm is cut out of it.
            own: the original in onnxruntime's own form, where it is timed.
            norms: those of ``made``.
            feeds: inputs of all.
            alternating: one variant is in memory at a time.

        Raises:
            MissingEnvironment: onnxruntime is not installed or does not load the original.
        """
        comparisons = [self.compare("model", _shapes(feeds), before, after, feeds, own, alternating)]
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


def _kernels(model: Runnable, profile: Profile) -> dict[str, float]:
    """What each node of ours takes, by its output."""
    ours = {n.output[0]: n.name for n in nodes_of(model.proto.graph) if n.domain == DOMAIN}
    return {output: profile.nodes[name] for output, name in ours.items() if name in profile.nodes}


def _shapes(feeds: Feeds) -> str:
    """The first inputs: a decoder has dozens."""
    return first_few([f"{name} {value.dtype}{list(value.shape)}" for name, value in feeds.items()], 3)
