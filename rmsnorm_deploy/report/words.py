"""What both kinds of report say in words: counts, places, attributes, errors, times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx_ir as ir

from rmsnorm_deploy.check.measured import BenchResult, Comparison
from rmsnorm_deploy.check.result import SiteCheck, VerificationResult
from rmsnorm_deploy.errors import first_few
from rmsnorm_deploy.fusing.report import FusedNorm, FusionReport
from rmsnorm_deploy.op import ALL_FEATURES, Op
from rmsnorm_deploy.op.words import meaning
from rmsnorm_deploy.report.chart import duration
from rmsnorm_deploy.report.content import Content, Row
from rmsnorm_deploy.report.text import counted, number, visible

_MOST_INPUTS = 12
_MOST_NAMES = 8
_TYPES = ("stash_type", "scale_type", "output_type")


def place(norm: FusedNorm) -> str:
    """The node, with the graph that it stands in."""
    return f"{norm.scope}/{norm.node}" if norm.scope else norm.node


def headline_of(content: Content) -> str:
    """What was done, in a line."""
    return headline(content.fusion) if content.conversion is None else content.conversion.summary()


def layer_norms(content: Content) -> list[tuple[str, bool, str]]:
    """LayerNorms of a conversion, those of a stream together: which, whether converted, what was done or why not."""
    if content.conversion is None:
        return []
    found = []
    for stream in content.conversion.streams:
        if not stream.converted:
            found.append((_some(stream.norms), False, stream.reason))
            continue
        said = [f"{counted(len(stream.edits), 'constant')} without a mean: {_some([e.name for e in stream.edits])}"]
        said += [f"centred at run time: {_some([c.value for c in stream.centrings])}"] if stream.centrings else []
        said += [f"biases in products: {_some(list(stream.folded))}"] if stream.folded else []
        found.append((_some(stream.norms), True, "; ".join(said)))
    return found + [(visible(node, 80), False, reason) for node, reason in content.conversion.others]


def _some(names: Sequence[str]) -> str:
    return first_few([visible(name, 80) for name in names], _MOST_NAMES)


def attributes(values: dict[str, Any]) -> str:
    """Every attribute of a norm on one line."""
    return ", ".join(f"{visible(name, 40)} {_shown(name, value)}" for name, value in values.items())


def _shown(name: str, value: Any) -> str:
    if name in _TYPES and isinstance(value, int):
        try:
            return ir.DataType(value).name.lower()
        except ValueError:
            return str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join("all" if v == ALL_FEATURES else str(v) for v in value) + "]"
    return visible(str(value), 80)


def error(row: Row) -> tuple[str, str]:
    """The errors before and after, in ULP; dashes where they are not known."""
    if row.check is None:
        return number(None), number(None)
    return number(row.check.original_error), number(row.check.error)


def fault(check: SiteCheck) -> str:
    """Why a norm differs, and what is probably wrong with it; empty where it does not."""
    return "; probably ".join(t for t in (check.reason, check.fault) if t)


def time(row: Row) -> str:
    """The time within the fused model, and before and after by itself; empty where neither was measured."""
    said = [duration(row.kernel)] if row.kernel is not None else []
    if row.alone is not None:
        said.append("alone " + " \N{RIGHTWARDS ARROW} ".join(map(duration, row.alone)))
    return "; ".join(said)


def counts(content: Content) -> list[tuple[str, str]]:
    """What is counted, in words, and how many."""
    fusion = content.fusion
    verb = "would be written" if fusion.dry_run else "written"
    found = [
        (f"norms {verb}", f"{len(fusion.fused):,}"),
        ("near-misses", f"{len(fusion.near_misses):,}"),
        ("spellings", f"{content.spelling_count:,}"),
        ("nodes before", f"{sum(fusion.ops_before.values()):,}"),
    ]
    if not fusion.dry_run:
        found.append(("nodes after", f"{sum(fusion.ops_after.values()):,}"))
    if fusion.already:
        found.append(("fused before", f"{fusion.already:,}"))
    fewer = sum(f.rounding == "fewer" for f in fusion.fused)
    if fewer:
        found.append(("round less often", f"{fewer:,}"))
    return [*found, ("form", fusion.form), ("ai.onnx opset", str(fusion.opset))]


def headline(fusion: FusionReport) -> str:
    """What was done, in one line."""
    return fusion.summary().replace(" (run explain)", "")


def changed(fusion: FusionReport) -> list[tuple[str, int, int]]:
    """The operators of which there are more or fewer than before: name, before, after."""
    names = sorted({*fusion.ops_before, *fusion.ops_after})
    pairs = ((name, fusion.ops_before.get(name, 0), fusion.ops_after.get(name, 0)) for name in names)
    return [(name, before, after) for name, before, after in pairs if before != after]


def meanings(norms: Iterable[FusedNorm]) -> list[tuple[str, str]]:
    """The operators of ours that were written, and what each computes."""
    written = {norm.op for norm in norms}
    return [(op.value, meaning(op)) for op in Op if op.value in written]


def conditions(result: VerificationResult) -> str:
    """On what was verified, and where: inputs, and whether the fused nodes ran in the library's kernels."""
    shapes = [f"{visible(name, 60)} {list(shape)}" for name, shape in result.shapes.items()]
    fed = f"inputs {first_few(shapes, _MOST_INPUTS)}, seed {result.seed}" if shapes else "no inputs"
    ran = "" if result.kernel_nodes is None else f"; {result.kernel_nodes:,} of them ran in the library's kernels"
    without = f"; library not used: {result.library}" if result.library else ""
    return f"{fed}; {counted(result.fused_nodes, 'fused node')}{ran}{without}"


def verdict(content: Content) -> tuple[bool, str] | None:
    """Whether the verification passed, and its summary; None where there was none."""
    result = content.verification
    return None if result is None else (result.passed, result.summary())


def speed(comparison: Comparison) -> str:
    """How many times as fast the fused one is, or that nobody can tell."""
    return f"{comparison.ratio:.2f} times as fast" if comparison.differs else "no difference beyond noise"


def shares(result: BenchResult) -> list[str]:
    """How much of the operators' time the norms take: one sentence, or none where that was not measured."""
    said = "; ".join(map(str, result.shares))
    return [f"The norms' share of the operators' time: {said}"] if said else []
