"""Where the values of two models that differ as a whole begin to differ."""

from __future__ import annotations

import numpy as np

from rmsnorm_deploy.check.comparison import TOLERANCE_ULPS
from rmsnorm_deploy.check.site_values import received
from rmsnorm_deploy.check.sites import Graph
from rmsnorm_deploy.check.ulp import units
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.op.dtypes import TYPES, FloatType
from rmsnorm_deploy.run.inputs import Array, Feeds
from rmsnorm_deploy.run.runnable import Runnable

_KINDS = {t.name: t for t in TYPES}


def where_it_begins(before: Runnable, after: Runnable, feeds: Feeds) -> list[str]:
    """The first of the norms' inputs and outputs that differs when both models run as a whole, in a sentence or none.

    Args:
        before: the original.
        after: the fused model.
        feeds: inputs of both.
    """
    one, other = Graph(before.proto), Graph(after.proto)
    shared = one.values & other.values
    names = [
        (v, n.name, "into" if v in n.input else "out of")
        for n in other.nodes
        if n.domain == DOMAIN
        for v in [*n.input, *n.output]
        if v in shared and not one.is_fixed(v) and not other.is_fixed(v)
    ]
    if not names:
        return []
    try:
        expected, got = (received(model, (v for v, _, _ in names), feeds) for model in (before, after))
    except Exception:  # what failed has its own check
        return []
    for name, node, side in names:
        if name not in feeds and _differ(expected[name], got[name]):
            return [f"run as a whole, the first value that differs is '{name}', {side} the norm {node}"]
    return ["run as a whole, no value into or out of a norm differs: the difference is behind the last one"]


def _differ(expected: Array, got: Array) -> bool:
    kind: FloatType | None = _KINDS.get(expected.dtype.name)
    if kind is None or expected.shape != got.shape or expected.dtype != got.dtype:
        return expected.shape != got.shape or expected.dtype != got.dtype or not np.array_equal(expected, got)
    return units(got, expected, kind, None) > TOLERANCE_ULPS[kind][True]
