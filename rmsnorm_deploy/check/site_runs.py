"""Sides of many sites, run together in one model: in onnxruntime, in float64, or with every stated rounding."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping

from onnx import helper

from rmsnorm_deploy.check.exact import Truth, by_definition
from rmsnorm_deploy.check.site_values import kind_of
from rmsnorm_deploy.check.sites import Side, Site, batch
from rmsnorm_deploy.errors import first_line
from rmsnorm_deploy.model.cut import value_types
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.op.dtypes import BFLOAT16, SIXTEEN_BIT
from rmsnorm_deploy.run.inputs import Array, Feeds
from rmsnorm_deploy.run.runnable import Runnable
from rmsnorm_deploy.run.runner import Runner

Outputs = dict[str, Array]


def as_stated(
    model: Runnable, sides: Mapping[str, Side], sites: Mapping[str, Site], rounds: Mapping[str, list[Feeds]]
) -> dict[str, list[Outputs | str]]:
    """What fused sides give; with every rounding that they state where they compute something in 16 bits themselves.

    onnxruntime's CPU provider leaves out 16-bit roundings that standard operators state, as those of a scale that is
    computed from weights.
    """
    whole = Part(model, sides, sites, rounds)
    found = whole.run()
    said = whole.run([k for k, s in sides.items() if _rounds_itself(s, whole.types)], stated=True)
    return found | {k: f for k, f in said.items() if not any(isinstance(one, str) for one in [*f, *found[k]])}


def _rounds_itself(side: Side, types: Mapping[str, int]) -> bool:
    standard = (n for n in side.nodes if n.domain != DOMAIN and n.op_type != "Constant")
    return any(
        types.get(o) in SIXTEEN_BIT or (n.op_type == "Cast" and helper.get_node_attr_value(n, "to") in SIXTEEN_BIT)
        for n in standard
        for o in n.output
    )


class Part:
    """The same side of several sites, run together; one by one where that does not load or run."""

    def __init__(
        self, model: Runnable, sides: Mapping[str, Side], sites: Mapping[str, Site], rounds: Mapping[str, list[Feeds]]
    ) -> None:
        self._model, self._sides, self._sites, self._rounds = model, sides, sites, rounds
        self.types = value_types(model.proto)
        self._bfloat16 = {o for s in sites.values() for o in s.outputs if self.types.get(o) == BFLOAT16.number}

    def run(
        self, keys: Iterable[str] | None = None, *, exactly: bool = False, stated: bool = False
    ) -> dict[str, list[Outputs | str]]:
        """The outputs of each site, or of those of ``keys``, for each of its sets of values, or why there are none."""
        run = functools.partial(self._some, exactly=exactly, stated=stated)
        chosen = list(self._sides if keys is None else keys)
        if not chosen:
            return {}
        together = run(chosen)
        if not isinstance(together, str):
            return together
        found: dict[str, list[Outputs | str]] = {}
        for key in chosen:
            alone = run([key])
            found |= {key: [alone] * len(self._rounds[key])} if isinstance(alone, str) else alone
        return found

    def _some(self, keys: list[str], *, exactly: bool, stated: bool) -> dict[str, list[Outputs | str]] | str:
        sides = {k: self._sides[k] for k in keys}
        feeds = {f"{k}{v}": a for k in keys for v, a in self._rounds[k][0].items() if v in sides[k].reads}
        kinds = {n: (kind_of(a), a.ndim) for n, a in feeds.items()}
        wanted = {f"{k}{o}": o for k in keys for o in self._sites[k].outputs}
        model = batch(self._model.proto, sides, kinds, wanted)
        for value in model.graph.output:
            if wanted[value.name] in self._bfloat16:  # the others' types are inferred: what is declared may be wrong
                value.CopyFrom(helper.make_tensor_value_info(value.name, BFLOAT16.number, None))
        part = Runnable(model, None, self._model.folder, 0)
        try:
            runner = self._runner(part, exactly=exactly, stated=stated)
            found: dict[str, list[Outputs | str]] = {k: [] for k in keys}
            for i in range(max(len(self._rounds[k]) for k in keys)):
                given = {
                    f"{k}{v}": a
                    for k in keys
                    for v, a in self._rounds[k][min(i, len(self._rounds[k]) - 1)].items()
                    if v in sides[k].reads
                }
                outputs = dict(zip(wanted, runner(given), strict=True))
                for name, value in () if exactly else list(outputs.items()):
                    if wanted[name] in self._bfloat16:  # the runner gives them as float32
                        outputs[name] = value.astype(BFLOAT16.dtype)
                for k in keys:
                    if i < len(self._rounds[k]):
                        found[k].append({o: outputs[f"{k}{o}"] for o in self._sites[k].outputs})
        except Exception as error:  # onnxruntime's exceptions have no common base of their own
            return first_line(error, 150)
        return found

    def _runner(self, part: Runnable, *, exactly: bool, stated: bool) -> Callable[[Feeds], list[Array]]:
        if exactly:
            truth = Truth(part)
            return lambda feeds: _there(truth(feeds), truth.why_not)
        if stated:
            return lambda feeds: _there(by_definition(part, feeds, limit=None), "onnx's evaluator does not run it")
        return Runner(part, optimise=False)


def _there(found: list[Array] | None, why_not: str) -> list[Array]:
    if found is None:
        raise ValueError(why_not)
    return found
