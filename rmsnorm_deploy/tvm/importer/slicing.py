"""Slice, where bounds and sizes are expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, tirx

from rmsnorm_deploy.tvm.importer.operator import Operator
from rmsnorm_deploy.tvm.sizes.dimensions import Dimensions, expression, is_static

_FAR = 2**31 - 1
"""ONNX writes "to the end" as any number from here on."""


def _slice(o: Operator) -> Any:
    own = o.shape(0)
    if own is None:
        return None
    if "starts" in o.attr:
        starts, ends = list(o.attr["starts"]), list(o.attr["ends"])
        axes, steps = list(o.attr.get("axes", range(len(starts)))), [1] * len(starts)
    else:
        given = [o.value(i) for i in (1, 2)]
        if given[0] is None or given[1] is None:
            return None
        starts, ends = given[0], given[1]
        axes, steps = o.value(3) or list(range(len(starts))), o.value(4) or [1] * len(starts)
    if not is_static(axes) or not is_static(steps):
        return None
    axes = [a % len(own) for a in axes]
    if any(s < 1 for s in steps):
        return (
            None if is_static(own) and is_static([*starts, *ends]) else _slice_backwards(o, axes, starts, ends, steps)
        )
    begins = [_clamped(o.dims, s, own[a]) for s, a in zip(starts, axes, strict=True)]
    stops = [o.dims.most(_clamped(o.dims, e, own[a]), b) for e, a, b in zip(ends, axes, begins, strict=True)]
    if all(
        s == 1 and isinstance(b, int) and b == 0 and o.dims.equal(e, own[a])
        for a, b, e, s in zip(axes, begins, stops, steps, strict=True)
    ):
        return o.input(0)
    return relax.op.strided_slice(
        o.input(0), axes, [expression(b) for b in begins], [expression(e) for e in stops], steps, assume_inbound=True
    )


def _clamped(dims: Dimensions, position: Any, size: Any) -> Any:
    """A slice's bound as a position from 0 to ``size``."""
    if isinstance(position, int) and position >= _FAR:
        return size
    if isinstance(position, int) and position <= -_FAR:
        return 0
    negative = position < 0 if isinstance(position, int) else dims.proven(tirx.LT(position, expression(0)))
    if negative is None:
        shifted = tirx.if_then_else(
            tirx.LT(position, expression(0)), expression(dims.simple(position + size)), position
        )
        return dims.least(dims.most(shifted, 0), size)
    if negative:
        return dims.most(dims.simple(position + size), 0)
    return dims.least(position, size)


def _slice_backwards(o: Operator, axes: list[int], starts: list[Any], ends: list[Any], steps: list[Any]) -> Any:
    """Whole dimensions turned round; nothing else has been seen with sizes that vary."""
    for start, end, step in zip(starts, ends, steps, strict=True):
        if (step, start) != (-1, -1) or not isinstance(end, int) or end > -_FAR:
            return None
    value = o.input(0)
    for axis in axes:
        value = o.emit(relax.op.flip(value, axis))
    return value


CONVERTERS: dict[str, Callable[[Operator], Any]] = {"Slice": _slice}
"""By the operator's name. It returns None where TVM's own converter does as well."""
