"""What a verification found, as data."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from rmsnorm_deploy.errors import VerificationFailed

SCHEMA_VERSION = 1
_LUCK = 1.5
"""How many times the original's worst error that of an equally exact model may be: each is of a few sets of inputs."""
_LEAST_ULPS = 2.0
"""In ULP of the row's largest value: that much comes of rounding changed weights, where an original has no error."""
_TOLD_ULPS = 1.0
"""The same: a larger error is told where it is larger than the original's in onnxruntime, but for luck."""


@dataclasses.dataclass(frozen=True)
class OutputCheck:
    """One output of the fused model in one run.

    Attributes:
        output: its name; empty where the whole run failed.
        run: "plain" (function bodies) or "library" (kernels), and whether onnxruntime's optimizer was on.
        inputs: which inputs.
        passed: within the tolerance.
        error: the largest error, in ULP of the row's largest value (:func:`rmsnorm_deploy.check.ulp.row_ulp`).
        original_error: the same of the original; None where no truth is known and the original is the measure. The
            larger one of two where it computes in 16 bits: as onnxruntime runs it, and with every rounding it states.
        as_run_error: the first of the two, which may leave out roundings that the original states; None as before.
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
    as_run_error: float | None = None


@dataclasses.dataclass(frozen=True)
class SiteCheck:
    """One norm of the fused model, alone, against its place in the original.

    Attributes:
        name: the module of its scale, else its output.
        output: the value that both models compute.
        passed: within the tolerance, and rounded as the original is where the operator can round so.
        error: the largest error of the fused norm, in ULP of the row's largest value, against float64.
        original_error: the same of the original; None where there is no float64.
        allowed: the tolerance in these units where the error is closest to it.
        inputs: "received" in a run of the original, or "made": near the root of epsilon, huge, zero, constant rows.
            In subgraphs, whose values are none of the model's, all are made.
        index: where.
        reason: why it did not pass, in a sentence; empty where it did.
        fault: what is probably wrong, such as "epsilon: epsilon is 2e-06, expected 1e-06"; empty where it passed.
        scope: the path of the subgraph it stands in; "" is the main graph.
    """

    name: str
    output: str
    passed: bool
    error: float
    original_error: float | None
    allowed: float
    inputs: str
    index: tuple[int, ...] = ()
    reason: str = ""
    fault: str = ""
    scope: str = ""

    def __str__(self) -> str:
        """The line for people."""
        own = "" if self.original_error is None else f", original {self.original_error:.2g} ULP"
        place = f"{self.scope}/{self.name}" if self.scope else self.name
        text = f"norm {place}: fused {self.error:.2g} ULP{own}"
        if not self.passed:
            text += f"; {self.reason} ({self.inputs} rows)"
        return text + (f"; probably {self.fault}" if self.fault else "")


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
        sites: every norm alone, in the order of the graph.
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
    sites: tuple[SiteCheck, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every check passed, of outputs and of norms, and there was one of an output."""
        return bool(self.checks) and all(c.passed for c in self.checks) and self.first_fault is None

    @property
    def first_fault(self) -> SiteCheck | None:
        """The first norm in the order of the graph that differs from its original by itself."""
        return next((s for s in self.sites if not s.passed), None)

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
        if self.first_fault is not None:
            return str(self.first_fault)
        if not worst.output:
            return worst.reason
        if not worst.passed:
            return f"output '{worst.output}' ({worst.run}, {worst.inputs} inputs): {worst.reason}"
        count, error = len(self.sites), f"worst error {worst.error:.3g} ULP, allowed {worst.allowed:.3g}"
        alone = "as does the one norm alone" if count == 1 else f"as do {count} norms alone"
        return f"{len(self.checks)} comparisons agree, {alone if count else 'no norm was compared alone'}; {error}"

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

    @property
    def less_exact(self) -> str:
        """That the model is less exact than onnxruntime runs the original, in a sentence; empty where it is not.

        onnxruntime's CPU provider computes in float32 what a model states in 16 bits, and leaves out most roundings. A
        model without those may be more exact than its original wherever that is run as it states, and less so there.
        """
        found: dict[float, str] = {}
        for run in dict.fromkeys(c.run for c in self.checks):
            checks = [c for c in self.checks if c.run == run and c.as_run_error is not None]
            worst = max((c.error for c in checks), default=0.0)
            own = max((c.as_run_error or 0.0 for c in checks), default=0.0)
            stated = max((c.original_error or 0.0 for c in checks), default=0.0)
            if worst > max(_LUCK * own, _TOLD_ULPS):
                text = f"{worst:.3g} ULP ({run}), where onnxruntime runs the original with {own:.3g}"
                more = f"; with the roundings that it states it has {stated:.3g}" if stated > own else ""
                found[worst] = text + more
        return found[max(found)] if found else ""

    def require_no_less_exact(self) -> None:
        """Raise where the worst error of a way to run the model is larger than the original's own, but for luck.

        Nothing can be said where there is no truth that the original has an error against.

        Raises:
            VerificationFailed: it is.
        """
        for run in dict.fromkeys(c.run for c in self.checks):
            pairs = [(c.error, c.original_error) for c in self.checks if c.run == run and c.original_error is not None]
            worst, own = (max((p[i] or 0.0 for p in pairs), default=0.0) for i in (0, 1))
            if worst > max(_LUCK * own, _LEAST_ULPS):
                raise VerificationFailed(
                    f"the result is less exact than its original: {worst:.3g} ULP ({run}), the original {own:.3g}",
                    "Nothing was written; --no-verify writes it all the same.",
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain data; keys are stable within :data:`SCHEMA_VERSION`. Infinite errors become null."""
        values = dataclasses.asdict(self)
        for check in [*values["checks"], *values["sites"]]:
            for key in ("error", "original_error", "as_run_error", "allowed"):
                if check.get(key) is not None and not np.isfinite(check[key]):
                    check[key] = None
        return {"schema_version": SCHEMA_VERSION, "passed": self.passed, "summary": self.summary(), **values}
