"""Whether an output is close enough to the original's: the tolerances, and the comparison by them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable

import numpy as np
from onnx import ModelProto, NodeProto

from rmsnorm_deploy.check.original import Outcome
from rmsnorm_deploy.check.result import OutputCheck
from rmsnorm_deploy.check.ulp import row_ulp
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.op.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FLOAT_TYPES,
    QUANTISED_TYPES,
    SIXTEEN_BIT,
    FloatType,
    float_type,
)
from rmsnorm_deploy.run.inputs import Array

TOLERANCE_ULPS: dict[FloatType, tuple[float, float]] = {
    FLOAT16: (1.5, 20),
    BFLOAT16: (1.5, 20),
    FLOAT32: (8, 160),
    FLOAT64: (2.0**29, 2.0**33),
}
"""Allowed error in ULP of the row's largest value, (norms alone in their model, whole models). In a whole model the
output is one row. An error up to twice the original's own is always allowed.

16 bits: the normalised value y is rounded, then its product with the scale: at most 1 and 1/2 ULP of y. A whole model's
layers multiply whatever the rounding of one norm changes, and onnxruntime's CPU provider leaves out float16 roundings
that the model states. For float64, epsilon is a float32 attribute: where it dominates, results move by 3e-8."""

MOVED = (0.01, 0.3)
"""Share of quantised values that may be one step off, in float32 and in 16 bits: a step of 127 to each side is a 2^-7,
and a unit in the last place of bfloat16 is not much less."""

_MOVES = frozenset(
    {"Cast", "Identity", "Constant", "ConstantOfShape", "Reshape", "Shape", "Gather", "Concat", "Squeeze", "Unsqueeze"}
    | {"Transpose", "Slice", "Split", "Expand"}
)
"""Operators that compute nothing: a model of these and norms is "norms alone"."""

Check = Callable[..., OutputCheck]
"""Makes the check of one output of one run from ``passed`` and what was found."""


def is_whole_model(fused: ModelProto) -> bool:
    """Whether a fused model computes more than norms."""
    return any(n.domain != DOMAIN and n.op_type not in _MOVES for n in fused.graph.node)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How the outputs of two models are compared.

    Attributes:
        outputs: name and data type of each.
        narrowest: the narrowest float type that the original computes in.
        whole: the models compute more than norms.
        rtol: relative tolerance of the user, against the original itself, element by element.
        atol: absolute tolerance of the user.
        more: ULP to allow in 16 bits on top: a norm's residual is added first, and that sum is rounded as well.
        quantised: the outputs that a norm of ours has quantised: a few values beside a tie may be one step off.
    """

    outputs: tuple[tuple[str, int], ...]
    narrowest: FloatType
    whole: bool
    rtol: float | None = None
    atol: float | None = None
    more: float = 0.0
    quantised: frozenset[str] = frozenset()

    def __call__(self, run: str, inputs: str, outcome: Outcome, got: list[Array]) -> list[OutputCheck]:
        """A check for each output of one run."""
        checks = []
        for i, (name, data_type) in enumerate(self.outputs):
            check = functools.partial(OutputCheck, name, run, inputs)
            exact = outcome.exact[i] if outcome.exact is not None else None
            if name in self.quantised and data_type in QUANTISED_TYPES:
                checks.append(self._steps(check, [o[i] for o in outcome.originals], got[i]))
                continue
            checks.append(self._output(check, exact, [o[i] for o in outcome.originals], got[i], data_type))
        return checks

    def _output(
        self, check: Check, exact: Array | None, originals: list[Array], got: Array, data_type: int
    ) -> OutputCheck:
        expected = originals[0]
        if got.shape != expected.shape:
            return _failure(check, f"shape {list(expected.shape)} became {list(got.shape)}")
        if data_type not in FLOAT_TYPES:
            equal = got == expected
            if np.all(equal):
                return check(passed=True)
            where = tuple(int(n) for n in np.argwhere(~np.atleast_1d(equal))[0])
            return _failure(check, f"differs at {list(where)}", where)
        originals = [np.asarray(o).astype(np.float64) for o in originals]
        got = got.astype(np.float64)
        measure = exact.astype(np.float64) if exact is not None else originals[0]
        if measure.shape != got.shape:  # the float64 graph took another branch
            measure, exact = originals[0], None
        originals = [o for o in originals if o.shape == got.shape]  # onnx's evaluator may read an attribute otherwise
        with np.errstate(all="ignore"):
            return self._floats(check, measure, originals, got, float_type(data_type), has_truth=exact is not None)

    def _steps(self, check: Check, originals: list[Array], got: Array) -> OutputCheck:
        """Values of 8 bits: what rounds otherwise before the quotient is cut to whole numbers may move it by one."""
        if got.shape != originals[0].shape:
            return _failure(check, f"shape {list(originals[0].shape)} became {list(got.shape)}")
        share = MOVED[self.narrowest.number in SIXTEEN_BIT]
        best: tuple[int, int, Array] | None = None
        for original in originals:
            steps = np.abs(_places(got) - _places(original))
            found = int(steps.max(initial=0)), int(np.count_nonzero(steps)), steps
            best = found if best is None or found[:2] < best[:2] else best
        assert best is not None
        largest, count, steps = best
        if largest <= 1 and count <= max(1, share * got.size):
            return check(passed=True)
        where = tuple(int(n) for n in np.unravel_index(int(steps.argmax()), got.shape))
        return _failure(check, f"{count} of {got.size} values differ, by at most {largest} steps", where)

    def _floats(
        self, check: Check, measure: Array, originals: list[Array], got: Array, kind: FloatType, *, has_truth: bool
    ) -> OutputCheck:
        known = np.isfinite(measure) & np.all([np.isfinite(o) for o in originals], axis=0)
        lost = known & ~np.isfinite(got)
        if lost.any():
            return _failure(check, "NaN or infinity where the original has a number", _first(lost))
        # where the original overflows and the exact value does not, anything finite is an improvement
        both = [measure, originals[0]]
        for what, test in (("NaN", np.isnan), ("infinity", np.isinf)):
            gone = np.all([test(b) for b in both], axis=0) & ~test(got)
            if gone.any():
                return _failure(check, f"a number where the original has {what}", _first(gone))
        if not known.any():
            return check(passed=True)
        if not has_truth:
            originals = [measure]
        kind = min(kind, self.narrowest, key=lambda t: t.mantissa_bits)
        if self.whole or got.ndim == 0:
            known, m, g = (v.reshape(1, -1) for v in (known, measure, got))
            originals = [o.reshape(1, -1) for o in originals]
        else:
            m, g = measure, got
        unit = row_ulp(m, kind, known=known)
        error = np.where(known, np.abs(g - m), 0)
        tolerance = TOLERANCE_ULPS[kind][self.whole] + (self.more if kind.number in SIXTEEN_BIT else 0)
        each = [np.where(known, np.abs(o - m), 0) for o in originals]
        own = np.max(each, axis=0)
        if self.rtol is not None or self.atol is not None:
            allowed = (self.atol or 0.0) + (self.rtol or 0.0) * np.abs(m)
        else:
            allowed = np.maximum(2 * own.max(axis=-1, keepdims=True), tolerance * unit)
        allowed = np.broadcast_to(np.where(known, allowed, np.inf), error.shape)
        ratio = np.where(error > 0, error / np.where(allowed > 0, allowed, 5e-324), 0)
        flat = int(ratio.argmax())
        place = np.broadcast_to(unit, error.shape).ravel()[flat]
        passed = bool(error.ravel()[flat] <= allowed.ravel()[flat])
        ulps, limit = float(error.ravel()[flat] / place), float(allowed.ravel()[flat] / place)
        original_ulps, as_run = (float((e / unit).max()) if has_truth else None for e in (own, each[0]))
        reason = "" if passed else f"error {ulps:.3g} ULP of the row's largest value, allowed {limit:.3g}"
        index = tuple(int(n) for n in np.unravel_index(flat, got.shape)) if got.ndim else ()
        return check(passed, ulps, original_ulps, limit, index, reason, as_run)


def _places(values: Array) -> Array:
    """Values of 8 bits as whole numbers, so that neighbours differ by one."""
    if values.dtype.kind in "iu":
        return values.astype(np.int64)
    bits = values.view(np.uint8).astype(np.int64)
    return np.where(bits > 127, 128 - bits, bits)


def quantised_outputs(nodes: Iterable[NodeProto]) -> frozenset[str]:
    """The values that norms of ours among ``nodes`` quantise, and their zero points."""
    ours = [n for n in nodes if n.domain == DOMAIN and "Quantize" in n.op_type]
    return frozenset(output for n in ours for output in n.output if output)


def _failure(check: Check, reason: str, index: tuple[int, ...] = ()) -> OutputCheck:
    return check(passed=False, error=float("inf"), index=index, reason=reason)


def _first(mask: Array) -> tuple[int, ...]:
    return tuple(int(n) for n in np.argwhere(mask)[0]) if mask.ndim else ()
