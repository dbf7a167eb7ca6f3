"""Every norm of a fused model against its place in the original, alone, by the values that it receives there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
from onnx import ModelProto

from rmsnorm_deploy.check.comparison import Comparison, quantised_outputs
from rmsnorm_deploy.check.guess import guess
from rmsnorm_deploy.check.inner import bodies, stand_ins
from rmsnorm_deploy.check.original import Outcome
from rmsnorm_deploy.check.result import OutputCheck, SiteCheck
from rmsnorm_deploy.check.site_runs import Outputs, Part, as_stated
from rmsnorm_deploy.check.site_values import kind_of, made, received, sets_needed
from rmsnorm_deploy.check.sites import Site, find_sites
from rmsnorm_deploy.errors import first_line
from rmsnorm_deploy.fusing.fuse import fuse
from rmsnorm_deploy.fusing.neighbours import neighbours_in
from rmsnorm_deploy.fusing.report import FusedNorm
from rmsnorm_deploy.model.graphs import nodes_of
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.op.dtypes import FLOAT64, FLOAT_TYPES, SIXTEEN_BIT, FloatType, float_type
from rmsnorm_deploy.run.inputs import Feeds
from rmsnorm_deploy.run.runnable import Runnable

ALIKE = 0.005
"""Of 16-bit elements, how many may differ in their last bit where two norms round at the same places: float32 sums in
another order move a few results over a boundary. A rounding more or less moves a tenth of them and more."""
READY_MADE = ("RMSNormalization", "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization")
"""Norms of onnx and onnxruntime, which round where they do: the fuser says where these forms round less often."""
_LARGEST_MADE = 2**22
"""Elements of an X beyond which only what it really receives is compared."""

RECEIVED, MADE = "received", "made"
"""What :attr:`rmsnorm_deploy.check.result.SiteCheck.inputs` says."""


def check_sites(before: Runnable, after: Runnable, feeds: Feeds, seed: int = 0) -> tuple[list[SiteCheck], list[str]]:
    """Compare every norm of ``after`` with its place in ``before``, each alone, and say what a reader should know.

    Args:
        before: the original.
        after: the fused model.
        feeds: inputs of both.
        seed: of the made rows.
    """
    ours = [n.op_type for n in nodes_of(after.proto.graph) if n.domain == DOMAIN]
    fresh, report = fuse(before.proto, also=neighbours_in(ours))
    sites = find_sites(before.proto, after.proto, report.fused)
    placed = [s for s in sites if s.norm is not None]
    notes = []
    if len(placed) < len(sites):
        # such as a LayerNorm that was converted, with other values before and behind it
        notes.append(
            f"{len(sites) - len(placed)} norms stand where the original has no RMSNorm, and were compared by the "
            "model's outputs only"
        )
    checks: list[SiteCheck] = []
    if placed:
        try:
            values = received(before, (v for s in placed for v in s.border), feeds)
        except Exception as error:  # onnxruntime's exceptions have no common base of their own
            notes.append(f"the norms were not compared one by one: {first_line(error, 150)}")
        else:
            expected = {s.outputs[0]: s for s in find_sites(before.proto, fresh, report.fused)}
            checker = _Checker(before, after, Runnable.of(fresh, before.home), values, seed, RECEIVED)
            checks += checker(placed, expected)
    inside = _check_bodies(before, after, fresh, report.fused, seed)
    checks += inside
    others = len(ours) - sum(n.domain == DOMAIN for n in after.proto.graph.node) - len(inside)
    if others > 0:
        notes.append(f"{others} norms in subgraphs were compared by the model's outputs only")
    return checks, notes


def _check_bodies(
    before: Runnable, after: Runnable, fresh: ModelProto, norms: Iterable[FusedNorm], seed: int
) -> list[SiteCheck]:
    checks: list[SiteCheck] = []
    for body in bodies(before.proto, after.proto, fresh, norms):
        sites = find_sites(body.original, body.fused, body.norms)
        values = stand_ins(body, sites, seed)
        known = [s for s in sites if s.outputs[0] in values]
        if not known:
            continue
        original, fused = Runnable(body.original, None, before.home, 0), Runnable(body.fused, None, after.home, 0)
        expected = {s.outputs[0]: s for s in find_sites(body.original, body.fresh, body.norms)}
        feeds = {name: value for s in known for name, value in values[s.outputs[0]].items()}
        checker = _Checker(original, fused, Runnable(body.fresh, None, before.home, 0), feeds, seed, MADE)
        checks += (dataclasses.replace(c, scope=body.scope) for c in checker(known, expected))
    return checks


class _Checker:
    def __init__(
        self, before: Runnable, after: Runnable, fresh: Runnable, values: Feeds, seed: int, first: str
    ) -> None:
        self._before, self._after, self._fresh = before, after, fresh
        self._values, self._seed, self._first = values, seed, first

    def __call__(self, sites: list[Site], expected: Mapping[str, Site]) -> list[SiteCheck]:
        keyed = {f"{i}/": s for i, s in enumerate(sites)}
        rounds = self._rounds(keyed)
        sides = {k: s.original for k, s in keyed.items()}
        before = Part(self._before, sides, keyed, rounds)
        own = before.run()
        exact = before.run(exactly=True)
        narrow = {k: s for k, s in keyed.items() if self._is_narrow(s)}
        stated = before.run(narrow, stated=True)
        # both models' places have the same Y
        again = {k: expected[s.outputs[0]].fused for k, s in narrow.items() if s.outputs[0] in expected}
        same = as_stated(self._fresh, again, {k: keyed[k] for k in again}, rounds)
        got = as_stated(self._after, {k: s.fused for k, s in keyed.items()}, keyed, rounds)
        checks = []
        for key, site in keyed.items():
            twin = expected.get(site.outputs[0])
            checks.append(self._site(site, twin, own[key], exact[key], stated.get(key), same.get(key), got[key]))
        return checks

    def _rounds(self, keyed: Mapping[str, Site]) -> dict[str, list[Feeds]]:
        rounds = {}
        for key, site in keyed.items():
            real = {v: self._values[v] for v in site.border}
            rounds[key] = [real]
            if site.bordered and site.norm is not None and real[site.x].size:
                x = real[site.x]
                sets = sets_needed(x.shape) if x.size <= _LARGEST_MADE else 0
                rounds[key] += [made(site, real, i, self._seed) for i in range(sets)]
        return rounds

    def _is_narrow(self, site: Site) -> bool:
        return any(kind_of(self._values[v]) in SIXTEEN_BIT for v in site.border)

    def _site(
        self,
        site: Site,
        twin: Site | None,
        own: list[Outputs | str],
        exact: list[Outputs | str],
        stated: list[Outputs | str] | None,
        same: list[Outputs | str] | None,
        got: list[Outputs | str],
    ) -> SiteCheck:
        found: list[OutputCheck] = []
        differing: list[tuple[float, float]] = []
        kinds = [float_type(t) for t in map(kind_of, (self._values[v] for v in site.border)) if t in FLOAT_TYPES]
        narrowest = min(kinds, key=lambda t: t.mantissa_bits, default=FLOAT64)
        for i, result in enumerate(got):
            name = self._first if i == 0 else MADE
            originals = [o for o in (own[i], stated[i] if stated else "") if not isinstance(o, str)]
            if not originals:
                continue
            if isinstance(result, str):
                found.append(OutputCheck("", "plain", name, False, float("inf"), reason=f"does not run: {result}"))
                break
            truth = exact[i]
            found += self._outputs(site, narrowest, name, truth, originals, result)
            twins = same[i] if same else ""
            if stated and not isinstance(twins, str) and not isinstance(stated[i], str):
                differing.append(_differing(site, originals[-1], twins, result))
        y = site.outputs[0]
        failed = [c for c in found if not c.passed]
        free = not any(n.op_type in READY_MADE for n in site.fused.nodes)
        rounded = free and not failed and _rounds_otherwise(differing)
        worst = failed[0] if failed else max(found, key=lambda c: c.error / (c.allowed or 1), default=None)
        reason = failed[0].reason if failed else ""
        if rounded:
            share = sum(d for _, d in differing) / len(differing)
            reason = f"{share:.0%} of the elements differ in their last bit from what the original's roundings give"
        fault = ""
        if failed or rounded:
            pairs = zip(exact, got, strict=True)
            rows = [(e[y], g[y]) for e, g in pairs if not isinstance(e, str) and not isinstance(g, str)]
            fault = guess(site, twin, self._after.proto, self._fresh.proto, rows, rounding=rounded)
        return SiteCheck(
            name=site.name,
            output=y,
            passed=bool(found) and not failed and not rounded,
            error=max((c.error for c in found), default=0.0),
            original_error=max((c.original_error for c in found if c.original_error is not None), default=None),
            allowed=worst.allowed if worst else 0.0,
            inputs=worst.inputs if worst else "",
            index=worst.index if worst else (),
            reason=reason if found else "the original's part does not run alone",
            fault=fault,
        )

    def _outputs(
        self,
        site: Site,
        narrowest: FloatType,
        name: str,
        truth: Outputs | str,
        originals: list[Outputs],
        result: Outputs,
    ) -> Iterable[OutputCheck]:
        quantised = quantised_outputs(site.fused.nodes)
        more = 1.0 if site.norm is not None and site.norm.residual else 0.0
        for output in site.outputs:
            kind, other = (kind_of(o[output]) for o in (originals[0], result))
            if kind != other:
                reason = f"type {originals[0][output].dtype} became {result[output].dtype}"
                yield OutputCheck(output, "plain", name, False, float("inf"), reason=reason)
                continue
            compare = Comparison(((output, kind),), narrowest, whole=False, more=more, quantised=quantised)
            exact = None if isinstance(truth, str) else [truth[output]]
            yield from compare("plain", name, Outcome(exact, [[o[output]] for o in originals]), [result[output]])


def _differing(site: Site, stated: Outputs, twin: Outputs, got: Outputs) -> tuple[float, float]:
    """Of the elements, how many of the fuser's own norm and of the one in question are not the original's."""
    y = site.outputs[0]
    shares = []
    for one in (twin[y], got[y]):
        if one.shape != stated[y].shape:
            return 1.0, 1.0
        a, b = stated[y].astype(np.float64), one.astype(np.float64)
        counted = np.isfinite(a) & (a != 0)
        shares.append(float(np.mean((a != b)[counted])) if counted.any() else 0.0)
    return shares[0], shares[1]


def _rounds_otherwise(differing: list[tuple[float, float]]) -> bool:
    if not differing:
        return False
    twin, got = (sum(d[i] for d in differing) / len(differing) for i in (0, 1))
    return twin <= ALIKE and got > 4 * ALIKE
