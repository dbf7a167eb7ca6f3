"""Values for the places of a model: what they really receive, and rows on which norms go wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper

from rmsnorm_deploy.check.exact import ONLY_WAY_NODES, by_definition
from rmsnorm_deploy.check.sites import Site
from rmsnorm_deploy.model.cut import value_types
from rmsnorm_deploy.run.inputs import Array, Feeds, is_float
from rmsnorm_deploy.run.runnable import Runnable
from rmsnorm_deploy.run.runner import Runner

ROWS = ("normal", "near epsilon", "normal", "zero", "near epsilon", "huge", "constant", "normal", "tiny", "normal")
"""The kinds of made rows, in turn."""
_SIZES = {"normal": 1.0, "zero": 0.0, "constant": 0.75}
_LEAST = 1e-12
"""Stands for an epsilon of 0."""


def received(model: Runnable, names: Iterable[str], feeds: Feeds) -> Feeds:
    """The values ``names`` of the main graph in a run of ``model``, in their own types.

    Raises:
        Exception: nothing here runs the model; onnxruntime's exceptions have no common base of their own.
    """
    wanted = dict.fromkeys(names)
    direct = {n: feeds[n] for n in wanted if n in feeds}
    rest = [n for n in wanted if n not in direct]
    if not rest:
        return direct
    types = value_types(model.proto)
    probe = ModelProto()
    probe.CopyFrom(model.proto)
    del probe.graph.output[:]
    for name in rest:
        known = name in types
        value = helper.make_tensor_value_info(name, types[name], None) if known else ValueInfoProto(name=name)
        probe.graph.output.append(value)
    part = Runnable(probe, None, model.folder, model.weights)
    try:
        found = Runner(part, optimise=False)(feeds)
    except Exception:
        stated = by_definition(part, feeds, limit=ONLY_WAY_NODES)
        if stated is None:
            raise
        found = stated
    made = {
        n: v.astype(helper.tensor_dtype_to_np_dtype(types[n])) if n in types and is_float(v) else v
        for n, v in zip(rest, found, strict=True)
    }
    return direct | made


def _rows(index: int, shape: tuple[int, ...]) -> list[str]:
    """The kind of each made row of a value of this shape, in the ``index``-th set."""
    count = math.prod(shape[:-1])
    return [ROWS[(i + index * max(count, 1)) % len(ROWS)] for i in range(count)]


def sets_needed(shape: tuple[int, ...]) -> int:
    """How many sets of made rows show every kind."""
    return math.ceil(len(ROWS) / max(math.prod(shape[:-1]), 1))


def made(site: Site, values: Feeds, index: int, seed: int) -> Feeds:
    """The site's values, with made rows in place of its X, its residual and whatever else has X's shape.

    Args:
        site: with a border at its operands.
        values: what it really receives.
        index: which set.
        seed: of the generator.
    """
    assert site.norm is not None
    shape = values[site.x].shape
    kinds = _rows(index, shape)
    feeds = {}
    for number, name in enumerate(site.border):
        value = values[name]
        if value.shape != shape or not is_float(value) or not shape:
            feeds[name] = value
            continue
        rng = np.random.default_rng((seed, index, number))
        largest = 2.0**13 if value.dtype.name == "float16" else 2.0**30
        rms = math.sqrt(max(site.norm.epsilon, _LEAST))
        sizes = _SIZES | {"near epsilon": rms, "tiny": rms / 8, "huge": largest}
        rows = rng.standard_normal((len(kinds), shape[-1]))
        for i, kind in enumerate(kinds):
            rows[i] = sizes[kind] if kind == "constant" else rows[i] * sizes[kind]
            if name != site.x:
                rows[i] /= 2
        feeds[name] = rows.reshape(shape).astype(value.dtype)
    return feeds


def kind_of(array: Array) -> int:
    """The element type of an array, as ONNX numbers them."""
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))
