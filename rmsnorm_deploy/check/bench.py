"""How long a model and one of its norms take, before and after fusing."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, helper

from rmsnorm_deploy.check.machine import machine
from rmsnorm_deploy.errors import MissingEnvironment, UsageError, first_line
from rmsnorm_deploy.fusing.fuse import fuse
from rmsnorm_deploy.fusing.report import FusedNorm
from rmsnorm_deploy.model.cut import cut, value_types, with_outputs
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.run.inputs import Array, Feeds, fit_inputs, is_float, make_inputs
from rmsnorm_deploy.run.ort import onnxruntime
from rmsnorm_deploy.run.registering import library_problem
from rmsnorm_deploy.run.runnable import Model, Runnable
from rmsnorm_deploy.run.runner import Runner

SCHEMA_VERSION = 1
NORM_ELEMENTS = 2**18
"""Elements of the norm that is timed alone (128 tokens of a 2,048 wide model): enough to measure more than the call."""


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


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The same work before and after fusing, in one process, in turns.

    Attributes:
        what: "model" or "one norm".
        detail: shapes and types.
        before: the original.
        after: the fused model, in the library's kernels where the library is there.
        baseline: what ``before`` is.
        ratio: how many times as fast the fused one is: median of before / after, turn by turn.
        ratio_p10: a tenth of the turns gave less.
        ratio_p90: a tenth of the turns gave more.
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
    place: str = ""


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
    """

    comparisons: tuple[Comparison, ...]
    library: str
    machine: str
    onnxruntime: str
    threads: int
    notes: tuple[str, ...] = ()

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
) -> BenchResult:
    """Time ``model`` against ``fused``, and one of its norms alone, in onnxruntime on the CPU.

    Both have onnxruntime's own optimizer at its default, which is everything it can do.

    Args:
        model: the original: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``.
        fused: the fused model; made from ``model`` when left out.
        inputs: arrays by name, instead of generated ones.
        shapes: shapes of generated inputs by name.
        seed: of the generator.
        seconds: time for each comparison.
        threads: threads within an operator; 0 is onnxruntime's choice.

    Raises:
        ModelError: a file cannot be read.
        UsageError: the inputs do not fit the model, or the two models have different inputs or outputs.
        MissingEnvironment: onnxruntime is not installed or does not load the original.
    """
    before = Runnable.of(model)
    made, report = fuse(model)
    after = Runnable.of(fused if fused is not None else made, before.home)
    for what in ("input", "output"):
        names = [{v.name for v in getattr(one.proto.graph, what)} for one in (before, after)]
        if names[0] != names[1]:
            odd = ", ".join(sorted(names[0] ^ names[1])[:3])
            raise UsageError(
                f"the two models are not one and the same: only one of them has the {what} {odd}",
                "Name the original and what was made from it.",
            )
    library = library_problem()
    feeds = fit_inputs(inputs, before.proto) if inputs is not None else make_inputs(before.proto, shapes, seed)
    notes: list[str] = []
    if not report.fused and fused is None:
        notes.append("the model has no norm to fuse: both sides are the same")
    shown = ", ".join(f"{k} {v.dtype}{list(v.shape)}" for k, v in feeds.items())
    comparisons = [_compare("model", shown, before, after, feeds, seconds, threads, not library)]
    for norm in report.fused:
        alone = _one_norm(before, Runnable.of(made, before.home), norm, feeds)
        if alone is not None:
            detail, chain, single, norm_feeds = alone
            timed = _compare("one norm", detail, chain, single, norm_feeds, seconds, threads, not library)
            comparisons.append(dataclasses.replace(timed, place=norm.output))
            break
    else:
        if report.fused:
            notes.append("no norm of this model can be cut out and run alone")
    if library:
        notes.append(f"without the library's kernels: {library}")
    return BenchResult(tuple(comparisons), library, machine(), onnxruntime().__version__, threads, tuple(notes))


def _compare(
    what: str, detail: str, before: Runnable, after: Runnable, feeds: Feeds, seconds: float, threads: int, library: bool
) -> Comparison:
    baseline = f"onnxruntime {onnxruntime().__version__}, its optimizer on"
    try:
        runs = [Runner(before, threads=threads).timed(feeds)]
        runs[0]()
    except MissingEnvironment:
        raise
    except Exception as error:
        raise MissingEnvironment(
            f"onnxruntime {onnxruntime().__version__} does not run the original: {first_line(error)}",
            "Time it where it runs.",
        ) from error
    runs.append(Runner(after, library=library, threads=threads).timed(feeds))
    times = _in_turns(runs, seconds)
    ratios = [a / b for a, b in zip(*times, strict=True)]
    after_name = "fused, library's kernels" if library else "fused, function bodies"
    return Comparison(
        what=what,
        detail=detail,
        before=_timing("original", times[0]),
        after=_timing(after_name, times[1]),
        baseline=baseline,
        ratio=statistics.median(ratios),
        ratio_p10=_percentile(ratios, 10),
        ratio_p90=_percentile(ratios, 90),
    )


def _in_turns(runs: list[Callable[[], Any]], seconds: float) -> list[list[float]]:
    """Microseconds of each run, round by round, every other round in reverse order; the first rounds warm up."""
    for _ in range(3):
        for run in runs:
            run()
    times: list[list[float]] = [[] for _ in runs]
    end = time.perf_counter() + seconds
    turn = 0
    while turn < 8 or (time.perf_counter() < end and turn < 20_000):
        order = range(len(runs)) if turn % 2 == 0 else range(len(runs) - 1, -1, -1)
        for i in order:
            start = time.perf_counter_ns()
            runs[i]()
            times[i].append((time.perf_counter_ns() - start) / 1000)
        turn += 1
    return times


def _timing(variant: str, times: list[float]) -> Timing:
    return Timing(variant, statistics.median(times), _percentile(times, 10), _percentile(times, 90), len(times))


def _percentile(values: list[float], percent: int) -> float:
    return float(np.percentile(values, percent))


def _one_norm(
    before: Runnable, after: Runnable, norm: FusedNorm, feeds: Feeds
) -> tuple[str, Runnable, Runnable, Feeds] | None:
    """The chain of one norm and the fused node that replaced it, as two models with one set of inputs.

    The values at its border are taken from a run of the original, so shapes and types are the model's own; where the
    norm is over the last axis, the rows are repeated until there are :data:`NORM_ELEMENTS`.
    """
    if norm.scope:
        return None
    original, fused = before.loaded(), after.loaded()
    node = next((n for n in fused.graph.node if n.domain == DOMAIN and n.output[0] == norm.output), None)
    if node is None:
        return None
    names = {v for n in original.graph.node for v in n.output}
    inputs = [v.name for v in original.graph.input]
    constant = {t.name for t in original.graph.initializer}
    constant |= {v for n in original.graph.node if n.op_type == "Constant" for v in n.output}
    border = list(dict.fromkeys([norm.x, *([norm.residual] if norm.residual else [])]))
    if norm.scale in names and norm.scale not in constant and cut(original, [], [(norm.scale, 1)]) is None:
        border.append(norm.scale)  # computed from the model's inputs
    if any(v not in names and v not in inputs for v in border):
        return None
    types = value_types(original) | value_types(fused)
    outputs = [(v, types.get(v, 1)) for v in node.output if v in names]
    try:
        values = _values(before, original, border, feeds)
        for elements in (NORM_ELEMENTS, 0):
            fed = _repeat(values, norm, elements)
            typed = [(v, int(helper.np_dtype_to_tensor_dtype(a.dtype)), list(a.shape)) for v, a in fed.items()]
            chain, single = cut(original, typed, outputs), cut(fused, typed, outputs)
            if chain is None or single is None:
                return None
            pair = Runnable.in_memory(chain[0]), Runnable.in_memory(single[0])
            try:
                for part in pair:
                    Runner(part)(fed)
            except Exception:  # shapes are baked in: once more with the model's own
                continue
            x = fed[norm.x]
            detail = f"{x.dtype}{list(x.shape)}, {chain[1]} nodes to {single[1]}"
            return detail, *pair, fed
    except Exception:  # a part that does not stand alone is not worth an error: the model itself has been timed
        return None
    return None


def _values(before: Runnable, original: ModelProto, names: list[str], feeds: Feeds) -> dict[str, Array]:
    """The values ``names`` in a run of the original, in their own types."""
    direct = {n: feeds[n] for n in names if n in feeds}
    rest = [n for n in names if n not in direct]
    if not rest:
        return direct
    probe = with_outputs(original, rest)
    found = Runner(Runnable.in_memory(probe), optimise=False)(feeds)
    types = value_types(before.proto)
    made = {
        n: v.astype(helper.tensor_dtype_to_np_dtype(types[n])) if n in types and is_float(v) else v
        for n, v in zip(rest, found, strict=True)
    }
    return {n: (direct | made)[n] for n in names}


def _repeat(values: dict[str, Array], norm: FusedNorm, elements: int) -> Feeds:
    shape = values[norm.x].shape
    if not elements or norm.axes != (-1,) or len(shape) < 2 or 0 in shape:
        return values
    rows = max(shape[-2], elements // (math.prod(shape) // shape[-2]))
    grown = (*shape[:-2], rows, shape[-1])
    return {k: np.resize(v, grown).astype(v.dtype) if v.shape == shape else v for k, v in values.items()}
