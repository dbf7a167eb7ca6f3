"""Whether a fused model computes what its original computes."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx

from rmsnorm_deploy.check.beginning import where_it_begins
from rmsnorm_deploy.check.comparison import Comparison, is_whole_model, quantised_outputs
from rmsnorm_deploy.check.condition import condition_of
from rmsnorm_deploy.check.original import Original, narrowest_type
from rmsnorm_deploy.check.result import OutputCheck, VerificationResult
from rmsnorm_deploy.check.site_check import check_sites
from rmsnorm_deploy.errors import MissingEnvironment, UsageError, first_few, first_line
from rmsnorm_deploy.fusing.fuse import repaired
from rmsnorm_deploy.model.copying import Told
from rmsnorm_deploy.model.graphs import nodes_of
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.run.inputs import (
    Array,
    Feeds,
    adversarial_inputs,
    element_type,
    fit_inputs,
    is_float,
    make_inputs,
    write_inputs,
)
from rmsnorm_deploy.run.ort import onnxruntime
from rmsnorm_deploy.run.registering import library_problem
from rmsnorm_deploy.run.runnable import Model, Runnable
from rmsnorm_deploy.run.runner import Runner

_LARGEST_REWRITE = 2**30
"""onnxruntime writes a model's weights with it; above this size the kernels are not counted."""


def verify(
    original: Model,
    fused: Model,
    *,
    inputs: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    library: bool = True,
    save_inputs: str | os.PathLike[str] | None = None,
    progress: Told | None = None,
) -> VerificationResult:
    """Run both models in onnxruntime on the CPU and compare every output.

    The original is evaluated in float64 where that is possible, and the fused model's error against it may be at most
    twice the original's, or the few ULP of :data:`rmsnorm_deploy.check.comparison.TOLERANCE_ULPS`. The fused model runs
    with and without the library, with onnxruntime's optimizer and without, on normal inputs and on rows from 2^-10 to
    2^8 times their size (other integers where no input is a float).

    Then every norm of the fused model is compared alone with its place in the original, on the values that it receives
    in a run of the original and on rows near the root of epsilon, huge, zero and constant ones: ``sites`` of the
    result. Not with ``rtol`` or ``atol``.

    Args:
        original: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``.
        fused: the same; external data of one in memory are relative to the original's folder.
        inputs: arrays by name, instead of generated ones.
        shapes: shapes of generated inputs by name; see :func:`rmsnorm_deploy.run.inputs.make_inputs`.
        seed: of the generator.
        rtol: compare with the original itself, allowing ``atol + rtol * abs(original)`` per element.
        atol: as ``rtol``.
        library: run the fused model in the library's kernels too, where they are there.
        save_inputs: a folder, made where it is missing, that gets every set of inputs as an ``.npz`` file.
        progress: called when each step begins, with its name, how many are done, and how many there are.

    Raises:
        ModelError: a file cannot be read.
        UsageError: the inputs do not fit the model, or cannot be saved.
        MissingEnvironment: onnxruntime is not installed, or cannot run the original at all.
    """
    before = Runnable.of(original)
    after = Runnable.of(fused, before.home)
    problem = library_problem() if library else "not asked for"
    sets = list(_input_sets(before, inputs, shapes, seed))
    if save_inputs is not None:
        for name, feeds in sets:
            write_inputs(Path(save_inputs) / f"{name}.npz", feeds)
    result = VerificationResult(
        checks=(),
        fused_nodes=count_ours(after.proto),
        kernel_nodes=None,
        library=problem,
        truth="",
        shapes={k: list(v.shape) for k, v in sets[0][1].items()},
        seed=seed,
        onnxruntime=onnxruntime().__version__,
    )
    if mismatch := _signature_mismatch(before.proto, after.proto):
        return dataclasses.replace(result, checks=(OutputCheck("", "signature", "no", False, reason=mismatch),))
    notes: list[str] = []
    ways = [(kernels, optimise) for kernels in ((False,) if problem else (False, True)) for optimise in (True, False)]
    steps = [
        "running the original",
        *(f"running the fused model, {_run_name(*way)}" for way in ways),
        "comparing norms",
    ]

    def begin(step: int) -> None:
        if progress is not None:
            progress(steps[step], step, len(steps))

    begin(0)
    try:
        expected = Original(before, sets, exact=rtol is None and atol is None)
    except MissingEnvironment:
        # such as a fused model that has lost its function bodies
        proto, mended = repaired(before.proto)
        if not mended.repaired:
            raise
        before = dataclasses.replace(before, proto=proto, path=None, folder=before.home)
        expected = Original(before, sets, exact=rtol is None and atol is None)
        notes.append(f"the original was repaired first: {', '.join(mended.repaired)}")
    comparison = Comparison(
        outputs=tuple((o.name, element_type(o)) for o in before.proto.graph.output),
        narrowest=narrowest_type(before),
        whole=is_whole_model(after.proto),
        rtol=rtol,
        atol=atol,
        quantised=quantised_outputs(after.proto.graph.node),
    )
    runs = _Runs(after, sets, expected, comparison)
    with tempfile.TemporaryDirectory() as folder:
        for step, way in enumerate(ways, start=1):
            begin(step)
            runs.add(*way, Path(folder) / "optimized.onnx")
    if not runs.checks:
        raise MissingEnvironment(
            f"onnxruntime {result.onnxruntime} loads neither model, so there is nothing to compare"
            + (f" ({runs.notes[0]})" if runs.notes else ""),
            "Verify where they run: with another onnxruntime, or on the models' own device.",
        )
    begin(len(steps) - 1)
    sites, said = check_sites(before, after, sets[0][1], seed) if rtol is None and atol is None else ([], [])
    notes += said
    if sites and not all(c.passed for c in runs.checks):
        failing = next(c.inputs for c in runs.checks if not c.passed)
        notes += where_it_begins(before, after, dict(sets).get(failing, sets[0][1]))
    notes += expected.notes + runs.notes + condition_of(after.proto).sentences
    if runs.kernels is not None and runs.kernels < result.fused_nodes:
        missing = result.fused_nodes - runs.kernels
        notes.append(f"{missing} of {result.fused_nodes} fused nodes did not run in the library's kernels")
    return dataclasses.replace(
        result,
        checks=tuple(runs.checks),
        kernel_nodes=runs.kernels,
        truth=expected.truth,
        notes=tuple(dict.fromkeys(notes)),
        sites=tuple(sites),
    )


def _run_name(with_library: bool, optimise: bool) -> str:
    return ("library" if with_library else "plain") + ("" if optimise else ", optimizer off")


class _Runs:
    """The fused model, run in several ways.

    Attributes:
        checks: every output of every run so far.
        kernels: fused nodes that ran in the library's kernels; None while that was not looked at.
        notes: what a reader should know.
    """

    def __init__(
        self, fused: Runnable, sets: list[tuple[str, Feeds]], expected: Original, comparison: Comparison
    ) -> None:
        self.checks: list[OutputCheck] = []
        self.kernels: int | None = None
        self.notes: list[str] = []
        self._fused, self._sets, self._expected, self._comparison = fused, sets, expected, comparison

    def add(self, with_library: bool, optimise: bool, scratch: Path) -> None:
        """Run it this way on every set of inputs."""
        run = _run_name(with_library, optimise)
        count = with_library and optimise and self._fused.weights < _LARGEST_REWRITE
        keep = scratch if count else None
        try:
            runner = Runner(self._fused, library=with_library, optimise=optimise, keep=keep)
        except Exception as error:  # onnxruntime's exceptions have no common base of their own
            if self._expected.loads(optimise):
                self.checks.append(OutputCheck("", run, "all", False, reason=f"does not load: {first_line(error)}"))
            else:
                self.notes.append(f"{run}: onnxruntime loads neither model this way ({first_line(error)})")
            return
        if keep is not None:
            self.kernels = count_ours(onnx.load(keep, load_external_data=False))
        for (name, feeds), outcome in zip(self._sets, self._expected.outcomes, strict=True):
            if outcome is None:
                continue
            try:
                got = runner(feeds)
            except Exception as error:  # as above
                self.checks.append(OutputCheck("", run, name, False, reason=f"does not run: {first_line(error)}"))
                continue
            found = self._comparison(run, name, outcome, got)
            if optimise and not _all_passed(found) and self._expected.loads(optimise=True):
                optimised = Runner(self._expected.model)(feeds)
                if not _all_passed(self._comparison(run, name, outcome, optimised)):
                    self.notes.append(f"{run}: onnxruntime's optimizer gets the original wrong too; not counted")
                    continue
            self.checks += found


def count_ours(proto: onnx.ModelProto) -> int:
    """Nodes of our domain in the graph and its subgraphs; function bodies are not counted."""
    return sum(n.domain == DOMAIN for n in nodes_of(proto.graph))


def _all_passed(checks: list[OutputCheck]) -> bool:
    return all(c.passed for c in checks)


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
            one, other = ([v for v in mine if v not in its] or mine for mine, its in ((a, b), (b, a)))
            return f"the models' {kind}s differ: {_listed(one)} in the original, {_listed(other)} in the other"
    return ""


def _listed(values: Sequence[tuple[str, int]]) -> str:
    shown = [f"'{name}' ({onnx.TensorProto.DataType.Name(kind).lower()})" for name, kind in values]
    return first_few(shown, 3) or "none"
