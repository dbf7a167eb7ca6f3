"""Whether a fused model computes what its original computes."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from rmsnorm_deploy.check.exact import Truth, by_definition
from rmsnorm_deploy.errors import MissingEnvironment, UsageError, VerificationFailed
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.run.inputs import Array, Feeds, adversarial_inputs, element_type, fit_inputs, is_float, make_inputs
from rmsnorm_deploy.run.runner import Model, Runnable, Runner, count_ours, first_line, library_problem, onnxruntime

SCHEMA_VERSION = 1

TOLERANCE_ULPS: dict[int, tuple[float, float]] = {
    TensorProto.FLOAT16: (1, 20),
    TensorProto.BFLOAT16: (1, 20),
    TensorProto.FLOAT: (8, 160),
    TensorProto.DOUBLE: (2.0**29, 2.0**33),
}
"""Allowed error in ULP, (norms alone in their model, whole models). One ULP is the type's epsilon times the row's
largest value; in a whole model the output is one row.

A whole model's layers multiply whatever the rounding of one norm changes, and onnxruntime's CPU provider leaves out
float16 roundings that the model states. For float64, epsilon is a float32 attribute: where it dominates, results move
by 3e-8. An error up to twice the original's own is always allowed."""

_MANTISSA: dict[int, int] = {
    TensorProto.FLOAT16: 10,
    TensorProto.BFLOAT16: 7,
    TensorProto.FLOAT: 23,
    TensorProto.DOUBLE: 52,
}
_SMALLEST_ULP: dict[int, float] = {
    TensorProto.FLOAT16: 2.0**-24,
    TensorProto.BFLOAT16: 2.0**-133,
    TensorProto.FLOAT: 2.0**-149,
    TensorProto.DOUBLE: 5e-324,
}
_MOVES = frozenset(
    {"Cast", "Identity", "Constant", "ConstantOfShape", "Reshape", "Shape", "Gather", "Concat", "Squeeze", "Unsqueeze"}
    | {"Transpose", "Slice", "Split", "Expand"}
)
"""Operators that compute nothing: a model of these and norms is "norms alone"."""
_LARGEST_REWRITE = 2**30
"""onnxruntime writes a model's weights with it; above this size the kernels are not counted."""


@dataclasses.dataclass(frozen=True)
class OutputCheck:
    """One output of the fused model in one run.

    Attributes:
        output: its name.
        run: "plain" (function bodies) or "library" (kernels), and whether onnxruntime's optimizer was on.
        inputs: which inputs.
        passed: within the tolerance.
        error: the largest error, in units in the last place of the row's largest value.
        original_error: the same of the original; None where no truth is known and the original is the measure.
        allowed: the tolerance in these units where the error is closest to it.
        index: where the error is closest to its tolerance.
        reason: why it did not pass, in a sentence; empty where it did.
    """

    output: str
    run: str
    inputs: str
    passed: bool
    error: float = 0.0
    original_error: float | None = None
    allowed: float = 0.0
    index: tuple[int, ...] = ()
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class VerificationResult:
    """What a verification found.

    Attributes:
        checks: every output of every run.
        fused_nodes: nodes of our domain in the fused model.
        kernel_nodes: how many of them ran in the library's kernels; None where that was not looked at.
        library: why the library was not used; empty where it was.
        truth: what both models were measured against.
        shapes: of the inputs that were fed.
        seed: of the generator that made them.
        onnxruntime: its version.
        notes: what a reader should know, one sentence each.
    """

    checks: tuple[OutputCheck, ...]
    fused_nodes: int
    kernel_nodes: int | None
    library: str
    truth: str
    shapes: dict[str, list[int]]
    seed: int
    onnxruntime: str
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every check passed, and there was one."""
        return bool(self.checks) and all(c.passed for c in self.checks)

    @property
    def worst(self) -> OutputCheck | None:
        """The first failure, else the check that came closest to its tolerance."""
        failed = [c for c in self.checks if not c.passed]
        return failed[0] if failed else max(self.checks, key=lambda c: c.error / (c.allowed or 1), default=None)

    def summary(self) -> str:
        """One line for people."""
        worst = self.worst
        if worst is None:
            return "nothing was compared"
        if not worst.passed:
            return f"output '{worst.output}' ({worst.run}, {worst.inputs} inputs): {worst.reason}"
        return f"{len(self.checks)} comparisons agree; worst error {worst.error:.3g} ULP, allowed {worst.allowed:.3g}"

    def require(self) -> None:
        """Raise unless every check passed.

        Raises:
            VerificationFailed: one did not.
        """
        if not self.passed:
            raise VerificationFailed(
                f"the fused model differs from its original: {self.summary()}",
                "See all outputs with 'rmsnorm-deploy verify ORIGINAL FUSED'.",
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain data; keys are stable within :data:`SCHEMA_VERSION`. Infinite errors become null."""
        values = dataclasses.asdict(self)
        for check in values["checks"]:
            for key in ("error", "original_error", "allowed"):
                if check[key] is not None and not np.isfinite(check[key]):
                    check[key] = None
        return {"schema_version": SCHEMA_VERSION, "passed": self.passed, "summary": self.summary(), **values}


def verify(
    original: Model,
    fused: Model,
    *,
    inputs: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    register: bool = True,
) -> VerificationResult:
    """Run both models in onnxruntime on the CPU and compare every output.

    The original is evaluated in float64 where that is possible, and the fused model's error against it may be at most
    twice the original's, or the few units in the last place of :data:`TOLERANCE_ULPS`. The fused model runs with
    and without the library, with onnxruntime's optimizer and without, on normal inputs and on rows from 2^-10 to 2^8
    times their size (other integers where no input is a float).

    Args:
        original: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``.
        fused: the same; external data of one in memory are relative to the original's folder.
        inputs: arrays by name, instead of generated ones.
        shapes: shapes of generated inputs by name; see :func:`rmsnorm_deploy.run.inputs.make_inputs`.
        seed: of the generator.
        rtol: compare with the original itself, allowing ``atol + rtol * abs(original)`` per element.
        atol: as ``rtol``.
        register: use the library, where it is there.

    Raises:
        ModelError: a file cannot be read.
        UsageError: the inputs do not fit the model.
        MissingEnvironment: onnxruntime is not installed, or cannot run the original at all.
    """
    before = Runnable.of(original)
    after = Runnable.of(fused, before.path.parent if before.path is not None else before.folder)
    mismatch = _signature_mismatch(before.proto, after.proto)
    library = library_problem() if register else "not asked for"
    notes: list[str] = []
    sets = list(_input_sets(before, inputs, shapes, seed))
    shown = {k: list(v.shape) for k, v in sets[0][1].items()}
    if mismatch:
        failed = OutputCheck("", "signature", "no", False, reason=mismatch)
        return VerificationResult(
            (failed,), count_ours(after.proto), None, library, "", shown, seed, onnxruntime().__version__
        )
    expected = _Expectation(before, sets, custom=rtol is not None or atol is not None)
    judge = _Judge(before, after, rtol, atol)
    checks: list[OutputCheck] = []
    kernels = None
    with tempfile.TemporaryDirectory() as folder:
        for with_library in (False, True) if not library else (False,):
            for optimise in (True, False):
                run = ("library" if with_library else "plain") + ("" if optimise else ", optimizer off")
                count = with_library and optimise and after.weights < _LARGEST_REWRITE
                keep = Path(folder) / "optimized.onnx" if count else None
                try:
                    runner = Runner(after, library=with_library, optimise=optimise, keep=keep)
                except Exception as error:  # onnxruntime's exceptions have no common base of their own
                    if not expected.loads(optimise):
                        notes.append(f"{run}: onnxruntime loads neither model this way ({first_line(error)})")
                        continue
                    checks.append(OutputCheck("", run, "all", False, reason=f"does not load: {first_line(error)}"))
                    continue
                if keep is not None:
                    kernels = count_ours(onnx.load(keep, load_external_data=False))
                for (name, feeds), outcome in zip(sets, expected.outcomes, strict=True):
                    if outcome is None:
                        continue
                    try:
                        got = runner(feeds)
                    except Exception as error:  # as above
                        checks.append(OutputCheck("", run, name, False, reason=f"does not run: {first_line(error)}"))
                        continue
                    found = judge(run, name, outcome, got)
                    if optimise and not all(c.passed for c in found) and expected.optimizer_errs(judge, feeds, outcome):
                        notes.append(f"{run}: onnxruntime's optimizer gets the original wrong too; not counted")
                        continue
                    checks += found
    if not checks:
        raise MissingEnvironment(
            f"onnxruntime {onnxruntime().__version__} loads neither model, so there is nothing to compare"
            + (f" ({notes[0]})" if notes else ""),
            "Verify where they run: with another onnxruntime, or on the models' own device.",
        )
    fused_nodes = count_ours(after.proto)
    if kernels is not None and kernels < fused_nodes:
        notes.append(f"{fused_nodes - kernels} of {fused_nodes} fused nodes did not run in the library's kernels")
    return VerificationResult(
        tuple(checks),
        fused_nodes,
        kernels,
        library,
        expected.truth,
        shown,
        seed,
        onnxruntime().__version__,
        tuple(dict.fromkeys(expected.notes + notes)),
    )


def _input_sets(
    model: Runnable, inputs: Mapping[str, Array] | None, shapes: Mapping[str, Sequence[int]] | None, seed: int
) -> Iterator[tuple[str, Feeds]]:
    if inputs is not None and shapes:
        raise UsageError("both inputs and shapes are given", "Give one of them.")
    feeds = fit_inputs(inputs, model.proto) if inputs is not None else make_inputs(model.proto, shapes, seed)
    yield "given" if inputs is not None else "normal", feeds
    if any(is_float(v) for v in feeds.values()):
        yield "scaled", adversarial_inputs(model.proto, feeds, seed)
    elif inputs is None and feeds:
        # without reading weights, nothing else can be varied in a language model
        yield "other", adversarial_inputs(model.proto, feeds, seed)


def _signature_mismatch(before: onnx.ModelProto, after: onnx.ModelProto) -> str:
    for kind in ("input", "output"):
        a, b = ([(v.name, element_type(v)) for v in getattr(m.graph, kind)] for m in (before, after))
        if a != b:
            return f"the models' {kind}s differ: {[n for n, _ in a]} and {[n for n, _ in b]}, or their types do"
    return ""


@dataclasses.dataclass(frozen=True)
class _Outcome:
    """What the original gives for one set of inputs: in float64, if possible, and in its own types."""

    exact: list[Array] | None
    originals: list[list[Array]]


class _Expectation:
    """The original on every set of inputs."""

    def __init__(self, model: Runnable, sets: list[tuple[str, Feeds]], *, custom: bool) -> None:
        self.model = model
        self.notes: list[str] = []
        self._loads: dict[bool, bool] = {}
        runner = self._runner(sets[0][1])
        truth = None if custom else Truth(model)
        self.outcomes: list[_Outcome | None] = []
        narrow = _precision(model.proto) in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
        for name, feeds in sets:
            try:
                originals = [runner(feeds)]
            except Exception as error:
                if not self.outcomes:
                    raise UsageError(
                        f"the original does not run on these inputs: {first_line(error)}",
                        "Give shapes that fit (--shapes x:1,8,64) or real inputs (--inputs file.npz).",
                    ) from error
                self.notes.append(f"the original does not run on the {name} inputs, so they were left out")
                self.outcomes.append(None)
                continue
            stated = by_definition(model, feeds) if narrow and not custom else None
            self.outcomes.append(_Outcome(truth(feeds) if truth else None, originals + ([stated] if stated else [])))
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
                if by_definition(self.model, feeds) is None:
                    raise MissingEnvironment(
                        f"onnxruntime {onnxruntime().__version__} does not load the original: {first_line(first)}",
                        "Verify where the original runs: with another onnxruntime, or with its own custom operators.",
                    ) from second
                self._loads[True] = False
                self.notes.append("onnxruntime does not load the original; onnx's reference evaluator ran it")
                return lambda given: by_definition(self.model, given) or []

    def optimizer_errs(self, judge: _Judge, feeds: Feeds, outcome: _Outcome) -> bool:
        """Whether onnxruntime's own optimizer makes the original itself differ as much."""
        if not self.loads(optimise=True):
            return False
        return not all(c.passed for c in judge("", "", outcome, Runner(self.model)(feeds)))

    def loads(self, optimise: bool) -> bool:
        """Whether onnxruntime loads the original this way."""
        if optimise not in self._loads:
            try:
                Runner(self.model, optimise=optimise)
                self._loads[optimise] = True
            except Exception:
                self._loads[optimise] = False
        return self._loads[optimise]


class _Judge:
    """Compares outputs by the tolerances above."""

    def __init__(self, before: Runnable, after: Runnable, rtol: float | None, atol: float | None) -> None:
        self.rtol, self.atol = rtol, atol
        self.outputs = [(o.name, element_type(o)) for o in before.proto.graph.output]
        self.precision = _precision(before.proto)
        self.whole = any(n.domain != DOMAIN and n.op_type not in _MOVES for n in after.proto.graph.node)

    def __call__(self, run: str, inputs: str, outcome: _Outcome, got: list[Array]) -> list[OutputCheck]:
        checks = []
        for i, (name, data_type) in enumerate(self.outputs):
            exact = outcome.exact[i] if outcome.exact is not None else None
            check = self._one(exact, [o[i] for o in outcome.originals], got[i], data_type)
            checks.append(dataclasses.replace(check, output=name, run=run, inputs=inputs))
        return checks

    def _one(self, exact: Array | None, originals: list[Array], got: Array, data_type: int) -> OutputCheck:
        expected = originals[0]
        if got.shape != expected.shape:
            return _failure(f"shape {list(expected.shape)} became {list(got.shape)}")
        if data_type not in _MANTISSA:
            equal = got == expected
            where = () if np.all(equal) else tuple(int(n) for n in np.argwhere(~np.atleast_1d(equal))[0])
            return _failure(f"differs at {list(where)}", where) if where else OutputCheck("", "", "", True)
        originals = [np.asarray(o).astype(np.float64) for o in originals]
        got = got.astype(np.float64)
        measure = exact.astype(np.float64) if exact is not None else originals[0]
        if measure.shape != got.shape:  # the float64 graph took another branch
            measure, exact = originals[0], None
        with np.errstate(all="ignore"):
            return self._floats(measure, originals, got, data_type, has_truth=exact is not None)

    def _floats(
        self, measure: Array, originals: list[Array], got: Array, data_type: int, *, has_truth: bool
    ) -> OutputCheck:
        known = np.isfinite(measure) & np.all([np.isfinite(o) for o in originals], axis=0)
        lost = known & ~np.isfinite(got)
        if lost.any():
            return _failure("NaN or infinity where the original has a number", _first(lost))
        # where the original overflows and the exact value does not, anything finite is an improvement
        both = [measure, originals[0]]
        for what, test in (("NaN", np.isnan), ("infinity", np.isinf)):
            gone = np.all([test(b) for b in both], axis=0) & ~test(got)
            if gone.any():
                return _failure(f"a number where the original has {what}", _first(gone))
        if not known.any():
            return OutputCheck("", "", "", True)
        if not has_truth:
            originals = [measure]
        precision = _coarser(data_type, self.precision)
        if self.whole or got.ndim == 0:
            known, m, g = (v.reshape(1, -1) for v in (known, measure, got))
            originals = [o.reshape(1, -1) for o in originals]
        else:
            m, g = measure, got
        size = np.where(known, np.abs(m), 0).max(axis=-1, keepdims=True)
        ulp = _ulp(size, precision)
        error = np.where(known, np.abs(g - m), 0)
        own = np.max([np.where(known, np.abs(o - m), 0) for o in originals], axis=0)
        if self.rtol is not None or self.atol is not None:
            allowed = (self.atol or 0.0) + (self.rtol or 0.0) * np.abs(m)
        else:
            allowed = np.maximum(2 * own.max(axis=-1, keepdims=True), TOLERANCE_ULPS[precision][self.whole] * ulp)
        allowed = np.broadcast_to(np.where(known, allowed, np.inf), error.shape)
        ratio = np.where(error > 0, error / np.where(allowed > 0, allowed, 5e-324), 0)
        flat = int(ratio.argmax())
        place = np.broadcast_to(ulp, error.shape).ravel()[flat]
        passed = bool(error.ravel()[flat] <= allowed.ravel()[flat])
        ulps, limit = float(error.ravel()[flat] / place), float(allowed.ravel()[flat] / place)
        original_ulps = float((own / ulp).max()) if has_truth else None
        reason = "" if passed else f"error {ulps:.3g} ULP of the row's largest value, allowed {limit:.3g}"
        index = tuple(int(n) for n in np.unravel_index(flat, got.shape)) if got.ndim else ()
        return OutputCheck("", "", "", passed, ulps, original_ulps, limit, index, reason)


def _failure(reason: str, index: tuple[int, ...] = ()) -> OutputCheck:
    return OutputCheck("", "", "", False, error=float("inf"), index=index, reason=reason)


def _first(mask: Array) -> tuple[int, ...]:
    return tuple(int(n) for n in np.argwhere(mask)[0]) if mask.ndim else ()


def _ulp(size: Array, data_type: int) -> Array:
    """The type's epsilon times ``size``, at least its smallest number."""
    ulp: Array = np.maximum(size * 2.0 ** -_MANTISSA[data_type], _SMALLEST_ULP[data_type])
    return ulp


def _precision(model: onnx.ModelProto) -> int:
    """The narrowest float type in the model: what it computes in, whatever type its outputs are cast to."""
    kinds = {t.data_type for t in model.graph.initializer}
    kinds |= {element_type(v) for v in [*model.graph.input, *model.graph.output, *model.graph.value_info]}
    return next((k for k in sorted(_MANTISSA, key=_MANTISSA.__getitem__) if k in kinds), TensorProto.FLOAT)


def _coarser(a: int, b: int) -> int:
    return min(a, b, key=_MANTISSA.__getitem__)
