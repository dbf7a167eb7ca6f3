"""Norms in the bodies of If, Loop and Scan: each body as a model of its own, and values for its norms.

What a body computes is no value of the model, so its norms cannot be given what they receive in a run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

from rmsnorm_deploy.check.sites import Graph, Site
from rmsnorm_deploy.fusing.report import FusedNorm
from rmsnorm_deploy.model.calls import is_bounded
from rmsnorm_deploy.model.cut import reads
from rmsnorm_deploy.model.graphs import scope_part, subgraphs
from rmsnorm_deploy.run.inputs import Feeds

_UNKNOWN = 2
"""Stands for a size that is not declared, where no scale says it."""
_RANK = 3
"""Stands for a rank that is not declared."""


@dataclasses.dataclass(frozen=True)
class Body:
    """One subgraph of a model, in its original, in the fused model, and in what the fuser makes of the original.

    Attributes:
        scope: the path that names it, as in :class:`rmsnorm_deploy.fusing.report.FusedNorm`.
        original: the body as a model: what it captures are inputs, and what depends on no input is computed in it.
        fused: the same.
        fresh: the same.
        norms: what the fuser finds in it, as if it were a main graph.
    """

    scope: str
    original: ModelProto
    fused: ModelProto
    fresh: ModelProto
    norms: tuple[FusedNorm, ...]


def bodies(original: ModelProto, fused: ModelProto, fresh: ModelProto, norms: Iterable[FusedNorm]) -> Iterator[Body]:
    """Every subgraph of the main graph that has a norm, and that all three models have.

    Args:
        original: the model before.
        fused: the one in question.
        fresh: what the fuser makes of ``original``.
        norms: what it finds.
    """
    by_scope: dict[str, list[FusedNorm]] = {}
    for norm in norms:
        by_scope.setdefault(norm.scope, []).append(dataclasses.replace(norm, scope=""))
    yield from _bodies("", (original, fused, fresh), by_scope)


def _bodies(path: str, models: Sequence[ModelProto], norms: dict[str, list[FusedNorm]]) -> Iterator[Body]:
    parts = [_parts(model.graph) for model in models]
    for part in parts[0]:
        scope = f"{path}/{part}" if path else part
        if not any(name == scope or name.startswith(f"{scope}/") for name in norms) or not all(
            part in p for p in parts
        ):
            continue
        inner = [_as_model(model, p[part]) for model, p in zip(models, parts, strict=True)]
        original, fused, fresh = inner
        if scope in norms:
            yield Body(scope, original, fused, fresh, tuple(norms[scope]))
        yield from _bodies(scope, inner, norms)


def _parts(graph: GraphProto) -> dict[str, GraphProto]:
    found = {}
    for node in graph.node:
        inner = list(subgraphs(node))
        for name, i, one in inner:
            count = sum(other == name for other, _, _ in inner)
            found[scope_part(node.name, node.output, node.op_type, name, i, count)] = one
    return found


def _as_model(outer: ModelProto, graph: GraphProto) -> ModelProto:
    around = Graph(outer)
    own = {v for n in graph.node for v in n.output} | {t.name for t in graph.initializer}
    own |= {v.name for v in graph.input}
    read = [v for n in graph.node for v in reads(n)] + [o.name for o in graph.output]
    captured = list(dict.fromkeys(v for v in read if v and v not in own))
    fixed = around.up((v for v in captured if around.is_fixed(v)), frozenset())
    declared = {v.name: v for v in (*outer.graph.input, *outer.graph.value_info, *outer.graph.output)}
    fed = [declared.get(v, ValueInfoProto(name=v)) for v in captured if not around.is_fixed(v)]
    made = helper.make_graph(
        [*fixed.nodes, *graph.node],
        graph.name,
        [*graph.input, *fed],
        graph.output,
        [*graph.initializer, *(around.initializers[name] for name in sorted(fixed.initializers))],
        value_info=graph.value_info,
    )
    model = helper.make_model(made, opset_imports=outer.opset_import, functions=outer.functions)
    model.ir_version = outer.ir_version
    return model


def stand_ins(body: Body, sites: Iterable[Site], seed: int) -> dict[str, Feeds]:
    """Values for the border of each site of a body, by its first output; none of one whose border is not known.

    Args:
        body: where they are.
        sites: its sites.
        seed: of the generator.
    """
    shapes = _shapes(body.original)
    found = {}
    for number, site in enumerate(sites):
        norm = site.norm
        if norm is None or not site.bordered:
            continue
        scale = shapes.get(norm.scale) or []
        shape = _filled(shapes.get(site.x), scale, norm.axes)
        of = {v: shape for v in (site.x, norm.residual, norm.gate) if v} | {norm.scale: _of_scale(scale, shape, norm)}
        if not of.keys() >= set(site.border):
            continue
        rng = np.random.default_rng((seed, number))
        dtype = helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(norm.type))
        found[site.outputs[0]] = {v: np.asarray(rng.standard_normal(of[v])).astype(dtype) for v in site.border}
    return found


def _shapes(model: ModelProto) -> dict[str, list[int | None]]:
    """The sizes of values; None for those that are not known."""
    inferred = model
    if is_bounded(model):
        try:
            inferred = onnx.shape_inference.infer_shapes(model)
        except Exception:  # inference raises on models that runtimes accept
            inferred = model
    found: dict[str, list[int | None]] = {t.name: list(t.dims) for t in model.graph.initializer}
    for value in (*inferred.graph.output, *inferred.graph.input, *inferred.graph.value_info):
        if value.type.tensor_type.HasField("shape"):
            found[value.name] = [d.dim_value or None for d in value.type.tensor_type.shape.dim]
    return found


def _filled(x: list[int | None] | None, scale: list[int | None], axes: Sequence[int]) -> list[int]:
    rank = max(_RANK, len(scale), *(-a if a < 0 else a + 1 for a in axes)) if x is None else len(x)
    sizes: list[int | None] = [None] * rank if x is None else list(x)
    for i, size in enumerate(reversed(scale[-rank:]) if rank else (), start=1):
        if sizes[-i] is None and size not in (None, 1):
            sizes[-i] = size
    return [size or _UNKNOWN for size in sizes]


def _of_scale(scale: list[int | None], shape: list[int], norm: FusedNorm) -> list[int]:
    """Of a scale that is computed: as declared, else as long as X has features."""
    if not scale:
        return [shape[a] for a in sorted(norm.axes)]
    return [size or shape[i - len(scale)] for i, size in enumerate(scale)]
