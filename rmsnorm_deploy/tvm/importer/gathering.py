"""Gather and its relatives: ONNX counts negative indices from the end, and TVM's kernels read wherever they are told.

An index beyond the end is an error in ONNX. A compiled kernel cannot raise one, so it takes the last element: never
memory that is not the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from rmsnorm_deploy.tvm.importer.operator import Operator
from rmsnorm_deploy.tvm.sizes.dimensions import expression, is_static
from rmsnorm_deploy.tvm.sizes.kernel import emit_kernel
from rmsnorm_deploy.tvm.sizes.shape_values import known


def _gather(o: Operator) -> Any:
    own = o.shape(0)
    if own is None or o.input(1).ty.ndim < 0:
        return None
    axis = o.attr.get("axis", 0) % len(own)
    return relax.op.take(o.input(0), _from_start(o, own[axis]), axis, mode="clip")


def _gather_nd(o: Operator) -> Any:
    own, places = o.shape(0), o.shape(1)
    if own is None or places is None or not isinstance(places[-1], int):
        return None
    first = o.attr.get("batch_dims", 0)
    return relax.op.gather_nd(o.input(0), _tuples_from_start(o, own[first : first + places[-1]]), first)


def _gather_elements(o: Operator) -> Any:
    own = o.shape(0)
    if own is None or is_static(own):
        return None
    axis = o.attr.get("axis", 0) % len(own)
    return relax.op.gather_elements(o.input(0), _from_start(o, own[axis]), axis)


def _scatter_elements(o: Operator) -> Any:
    own = o.shape(0)
    if own is None or is_static(own):
        return None
    axis = o.attr.get("axis", 0) % len(own)
    how = {b"none": "update", b"add": "add", b"mul": "mul", b"min": "min", b"max": "max"}[
        o.attr.get("reduction", b"none")
    ]
    return relax.op.scatter_elements(o.input(0), _from_start(o, own[axis]), o.input(2), axis, how)


def _scatter_nd(o: Operator) -> Any:
    own, places = o.shape(0), o.shape(1)
    if own is None or places is None or not isinstance(places[-1], int) or is_static(own):
        return None
    how = {b"none": "update", b"add": "add", b"mul": "mul", b"min": "min", b"max": "max"}[
        o.attr.get("reduction", b"none")
    ]
    return relax.op.scatter_nd(o.input(0), _tuples_from_start(o, own[: places[-1]]), o.input(2), how)


def _from_start(o: Operator, size: Any) -> Any:
    """Input 1, indices into a dimension of ``size``, from 0 to size - 1."""
    constant = known(o.inputs[1])
    if constant is not None and constant.static and isinstance(size, int):
        indices = constant.numpy()
        return relax.const(np.clip(np.where(indices < 0, indices + size, indices), 0, max(size - 1, 0)))

    def compute(indices: Any, size: Any) -> Any:
        return te.compute(indices.shape, lambda *i: _inside(indices(*i), size), name="indices")

    return emit_kernel(o.bb, "indices", compute, [o.input(1)], [size])


def _tuples_from_start(o: Operator, sizes: Sequence[Any]) -> Any:
    """Input 1, whose last dimension has one index for each of ``sizes``, likewise."""

    def compute(indices: Any, *sizes: Any) -> Any:
        def element(*i: Any) -> Any:
            size = sizes[-1]
            for number in reversed(range(len(sizes) - 1)):
                size = tirx.if_then_else(tirx.EQ(i[-1], expression(number)), sizes[number], size)
            return _inside(indices(*i), size)

        return te.compute(indices.shape, element, name="indices")

    return emit_kernel(o.bb, "indices", compute, [o.input(1)], sizes)


def _inside(index: Any, size: Any) -> Any:
    whole = index.astype("int64")
    positive = tirx.if_then_else(tirx.LT(whole, expression(0)), whole + size, whole)
    return tirx.max(tirx.min(positive, size - 1), expression(0))


CONVERTERS: dict[str, Callable[[Operator], Any]] = {
    "Gather": _gather,
    "GatherND": _gather_nd,
    "GatherElements": _gather_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
}
"""By the operator's name. Each returns None where TVM's own converter does as well."""
