"""One norm of a model alone, before and after fusing, on the values that it receives there."""

from __future__ import annotations

import math

import numpy as np
from onnx import ModelProto, helper

from rmsnorm_deploy.fusing.report import FusedNorm
from rmsnorm_deploy.model.cut import cut, value_types, with_outputs
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.run.inputs import Array, Feeds, is_float
from rmsnorm_deploy.run.runnable import Runnable
from rmsnorm_deploy.run.runner import Runner

NORM_ELEMENTS = 2**18
"""Elements of the norm that is timed alone (128 tokens of a 2,048 wide model): enough to measure more than the call."""


def one_norm(
    before: Runnable, after: Runnable, norm: FusedNorm, feeds: Feeds
) -> tuple[str, Runnable, Runnable, Feeds] | None:
    """The chain of one norm and the fused node that replaced it, as two models with one set of inputs.

    The values at its border are taken from a run of the original, so shapes and types are the model's own; where the
    norm is over the last axis, the rows are repeated until there are :data:`NORM_ELEMENTS`.
    """
    if norm.scope:
        return None
    original, fused = before.proto, after.proto
    node = next((n for n in fused.graph.node if n.domain == DOMAIN and n.output[0] == norm.output), None)
    if node is None:
        return None
    names = {v for n in original.graph.node for v in n.output}
    inputs = [v.name for v in original.graph.input]
    constant = {t.name for t in original.graph.initializer}
    constant |= {v for n in original.graph.node if n.op_type == "Constant" for v in n.output}
    border = list(dict.fromkeys([norm.x, *([norm.residual] if norm.residual else [])]))
    if norm.scale in names and norm.scale not in constant and cut(original, [], [(norm.scale, 1)]) is None:
        border.append(norm.scale)  # computed from the model's inputs
    if any(v not in names and v not in inputs for v in border):
        return None
    types = value_types(original) | value_types(fused)
    outputs = [(v, types.get(v, 1)) for v in node.output if v in names]
    try:
        values = _values(before, original, border, feeds)
        for elements in (NORM_ELEMENTS, 0):
            fed = _repeat(values, norm, elements)
            typed = [(v, int(helper.np_dtype_to_tensor_dtype(a.dtype)), list(a.shape)) for v, a in fed.items()]
            chain, single = cut(original, typed, outputs), cut(fused, typed, outputs)
            if chain is None or single is None:
                return None
            pair = Runnable.of(chain[0], before.home), Runnable.of(single[0], before.home)
            try:
                for part in pair:
                    Runner(part)(fed)
            except Exception:  # shapes are baked in: once more with the model's own
                continue
            x = fed[norm.x]
            detail = f"{x.dtype}{list(x.shape)}, {chain[1]} nodes to {single[1]}"
            return detail, *pair, fed
    except Exception:  # a part that does not stand alone is not worth an error: the model itself has been timed
        return None
    return None


def _values(before: Runnable, original: ModelProto, names: list[str], feeds: Feeds) -> dict[str, Array]:
    """The values ``names`` in a run of the original, in their own types."""
    direct = {n: feeds[n] for n in names if n in feeds}
    rest = [n for n in names if n not in direct]
    if not rest:
        return direct
    probe = with_outputs(original, rest)
    found = Runner(Runnable.of(probe, before.home), optimise=False)(feeds)
    types = value_types(before.proto)
    made = {
        n: v.astype(helper.tensor_dtype_to_np_dtype(types[n])) if n in types and is_float(v) else v
        for n, v in zip(rest, found, strict=True)
    }
    return {n: (direct | made)[n] for n in names}


def _repeat(values: dict[str, Array], norm: FusedNorm, elements: int) -> Feeds:
    shape = values[norm.x].shape
    if not elements or norm.axes != (-1,) or len(shape) < 2 or 0 in shape:
        return values
    rows = max(shape[-2], elements // (math.prod(shape) // shape[-2]))
    grown = (*shape[:-2], rows, shape[-1])
    return {k: np.resize(v, grown).astype(v.dtype) if v.shape == shape else v for k, v in values.items()}
