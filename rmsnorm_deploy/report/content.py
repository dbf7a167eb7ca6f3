"""What a report says, whatever it is written in: norms with errors and times, spellings, near-misses, versions."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from rmsnorm_deploy import __version__
from rmsnorm_deploy.check.measured import BenchResult
from rmsnorm_deploy.check.result import SiteCheck, VerificationResult
from rmsnorm_deploy.converting.report import ConversionReport
from rmsnorm_deploy.fusing.report import FusedNorm, FusionReport
from rmsnorm_deploy.installed import TRIED, version
from rmsnorm_deploy.recognise.match import Miss
from rmsnorm_deploy.report.layout import Picture
from rmsnorm_deploy.report.neighbourhood import Places

MOST_NORMS = 500
"""Norms that get a line of their own."""
MOST_SPELLINGS = 24
"""Spellings that are drawn."""
MOST_MISSES = 60
"""Near-misses that are told one by one; half of them are drawn."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One norm.

    Attributes:
        number: its place in the order of the graph, from 1.
        norm: what was written.
        spelling: the number of its spelling, from 1.
        check: its comparison with the original, where it was verified.
        alone: microseconds before and after, where it was timed by itself.
        kernel: microseconds within the fused model, where they were measured.
    """

    number: int
    norm: FusedNorm
    spelling: int
    check: SiteCheck | None = None
    alone: tuple[float, float] | None = None
    kernel: float | None = None

    @property
    def timed(self) -> bool:
        """Whether anything is known about its time."""
        return self.alone is not None or self.kernel is not None


@dataclasses.dataclass(frozen=True)
class Spelling:
    """One way in which norms were spelled, and what it became.

    Attributes:
        number: from 1.
        norm: the first norm that is spelled so.
        count: how many norms are.
        before: that norm in the original; None where it is not drawn.
        after: the same in the fused model.
    """

    number: int
    norm: FusedNorm
    count: int
    before: Picture | None
    after: Picture | None


@dataclasses.dataclass(frozen=True)
class NearMiss:
    """One near-miss and what stands around it; None where that is not drawn."""

    miss: Miss
    picture: Picture | None


@dataclasses.dataclass(frozen=True)
class Content:
    """Everything that a report says.

    Attributes:
        name: of the model.
        fusion: what was done to it.
        rows: norms, at most :data:`MOST_NORMS`, in graph order.
        spellings: how they were spelled, the most frequent first.
        spelling_count: of all of them.
        misses: near-misses, at most :data:`MOST_MISSES`.
        verification: where there was one.
        alone: norms that were compared one by one and are not in ``rows``.
        bench: where there was one.
        versions: releases of what took part, by name.
        commands: the commands that were run.
        date: of the caller's; empty without one.
        conversion: what became of LayerNorms, where that was asked for.
    """

    name: str
    fusion: FusionReport
    rows: tuple[Row, ...]
    spellings: tuple[Spelling, ...]
    spelling_count: int
    misses: tuple[NearMiss, ...]
    verification: VerificationResult | None
    alone: tuple[SiteCheck, ...]
    bench: BenchResult | None
    versions: Mapping[str, str]
    commands: tuple[str, ...]
    date: str
    conversion: ConversionReport | None = None


def content(
    name: str,
    original: ir.Model,
    fused: ir.Model | None,
    fusion: FusionReport,
    *,
    verification: VerificationResult | None = None,
    bench: BenchResult | None = None,
    commands: Sequence[str] = (),
    date: str = "",
    conversion: ConversionReport | None = None,
) -> Content:
    """Put together what a report of ``original`` says. Models are not changed, and weights are not read.

    Args:
        name: of the model, for people.
        original: the model before.
        fused: the model after; None where there is none.
        fusion: what was done to it.
        verification: of the two, where there was one.
        bench: of the two, where there was one.
        commands: what was run.
        date: shown where it is given.
        conversion: of LayerNorms, where there was one.
    """
    before, after = Places(original), Places(fused) if fused is not None else None
    spellings, numbers = _spellings(fusion, before, after)
    checks = {(s.scope, s.output): s for s in verification.sites} if verification is not None else {}
    times = {c.place: (c.before.median, c.after.median) for c in bench.comparisons if c.place} if bench else {}
    kernels = bench.kernels if bench else {}
    rows = [
        Row(
            i + 1,
            f,
            numbers[_key(f)],
            checks.get((f.scope, f.output)),
            times.get(f.output) if not f.scope else None,
            kernels.get(f.output),
        )
        for i, f in enumerate(fusion.fused)
    ]
    # a norm that differs is told whatever its place
    told = sorted(sorted(rows, key=_interest)[:MOST_NORMS], key=lambda row: row.number)
    known = {(f.scope, f.output) for f in fusion.fused}
    near = [
        NearMiss(m, before.around(m) if i < MOST_MISSES // 2 else None)
        for i, m in enumerate(fusion.near_misses[:MOST_MISSES])
    ]
    return Content(
        name=name,
        fusion=fusion,
        rows=tuple(told),
        spellings=tuple(spellings),
        spelling_count=len(numbers),
        misses=tuple(near),
        verification=verification,
        alone=tuple(s for s in checks.values() if (s.scope, s.output) not in known)[:MOST_NORMS],
        bench=bench,
        versions=_versions(verification, bench),
        commands=tuple(commands),
        date=date,
        conversion=conversion,
    )


def _key(norm: FusedNorm) -> tuple[str, str]:
    return norm.op, norm.spelling


def _interest(row: Row) -> tuple[bool, bool, int]:
    return row.check is None or row.check.passed, row.alone is None, row.number


def _spellings(
    fusion: FusionReport, before: Places, after: Places | None
) -> tuple[list[Spelling], dict[tuple[str, str], int]]:
    groups: dict[tuple[str, str], list[FusedNorm]] = {}
    for norm in fusion.fused:
        groups.setdefault(_key(norm), []).append(norm)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    numbers = {key: i + 1 for i, (key, _) in enumerate(ordered)}
    found = []
    for key, norms in ordered[:MOST_SPELLINGS]:
        first = norms[0]
        new = after.after(first, before.names.get(first.scope, ())) if after is not None else None
        found.append(Spelling(numbers[key], first, len(norms), before.before(first), new))
    return found, numbers


def _versions(verification: VerificationResult | None, bench: BenchResult | None) -> dict[str, str]:
    found = {"rmsnorm_deploy": __version__, "Python": platform.python_version()}
    for package in TRIED:
        installed = version(package)
        if installed is not None and package not in ("typer", "rich", "onnxruntime"):
            found[package] = installed
    ran = [r.onnxruntime for r in (verification, bench) if r is not None]
    return found | ({"onnxruntime": ran[0]} if ran else {})
