"""Operators that take a shape, where sizes are expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax, te, tirx

from rmsnorm_deploy.tvm.importer.operator import Operator, shape_expr
from rmsnorm_deploy.tvm.sizes import broadcasting
from rmsnorm_deploy.tvm.sizes.dimensions import expression, floordiv, is_static
from rmsnorm_deploy.tvm.sizes.kernel import emit_kernel
from rmsnorm_deploy.tvm.sizes.shape_values import known


def _reshape(o: Operator) -> Any:
    shape, own = o.value(1), o.shape(0)
    if shape is None or own is None:
        return None
    if not o.attr.get("allowzero", 0):
        shape = [own[i] if isinstance(d, int) and d == 0 else d for i, d in enumerate(shape)]
    unknown = [i for i, d in enumerate(shape) if isinstance(d, int) and d == -1]
    if unknown:
        rest = [d for i, d in enumerate(shape) if i not in unknown]
        shape[unknown[0]] = o.dims.quotient(own, rest)
    if len(own) == len(shape) and all(o.dims.equal(a, b) for a, b in zip(own, shape, strict=True)):
        return o.input(0)
    return relax.op.reshape(o.input(0), shape_expr(shape))


def _expand(o: Operator) -> Any:
    shape, own = o.value(1), o.shape(0)
    if shape is None or own is None:
        return None
    # -1 is not in the standard, but TVM and onnxruntime take it for "as it is"
    aligned = [1] * (len(shape) - len(own)) + own
    shape = [
        aligned[len(aligned) - len(shape) + i] if isinstance(d, int) and d == -1 else d for i, d in enumerate(shape)
    ]
    full = broadcasting.common_shape(o.bb, o.dims, [own, shape])
    return broadcasting.broadcast(o.bb, o.dims, o.input(0), full)


def _constant_of_shape(o: Operator) -> Any:
    shape = o.value(0)
    if shape is None:
        return None
    fill = numpy_helper.to_array(o.attr["value"]).reshape(()) if "value" in o.attr else np.float32(0)
    if not shape:
        return relax.const(np.asarray(fill))
    return relax.op.full(shape_expr(shape), relax.const(np.asarray(fill)), str(fill.dtype))


def _range(o: Operator) -> Any:
    found = [known(i) for i in o.inputs]
    if len(found) != 3 or any(f is None or f.dtype not in ("int64", "int32") for f in found):
        return None
    start, limit, delta = (f.list()[0] for f in found if f is not None)
    dtype = found[0].dtype if found[0] is not None else "int64"
    if is_static([start, limit, delta]) or not isinstance(delta, int) or delta == 0:
        return None
    distance = o.dims.simple(limit - start if delta > 0 else start - limit)
    size = o.dims.simple(o.dims.most(floordiv(distance + (abs(delta) - 1), abs(delta)), 0))

    def compute(size: Any, start: Any) -> Any:
        return te.compute((size,), lambda i: (start + i * delta).astype(dtype), name="range")

    return emit_kernel(o.bb, "range", compute, [], [size, start], [size])


def _tile(o: Operator) -> Any:
    repeats, own = o.value(1), o.shape(0)
    if repeats is None or own is None or (is_static(repeats) and is_static(own)):
        return None
    split = [d for size in own for d in (1, size)]
    full = [d for repeat, size in zip(repeats, own, strict=True) for d in (repeat, size)]
    value = o.emit(relax.op.reshape(o.input(0), shape_expr(split)))
    value = o.emit(relax.op.broadcast_to(value, shape_expr(full)))
    return relax.op.reshape(value, shape_expr([o.dims.simple(r * s) for r, s in zip(repeats, own, strict=True)]))


def _split(o: Operator) -> Any:
    own = o.shape(0)
    count = o.attr["tvm_custom"]["num_outputs"]
    if own is None or is_static(own):
        return None
    axis = o.attr.get("axis", 0) % len(own)
    sizes = list(o.attr["split"]) if "split" in o.attr else o.value(1)
    if sizes is None:
        if len(o.inputs) > 1 and o.inputs[1] is not None:
            return None
        part = o.dims.simple(floordiv(own[axis] + (count - 1), count))
        sizes = [part] * (count - 1) + [o.dims.simple(own[axis] - part * (count - 1))]
    parts, begin = [], 0
    for size in sizes:
        end = o.dims.simple(begin + size)
        parts.append(
            o.emit(
                relax.op.strided_slice(
                    o.input(0), [axis], [expression(begin)], [expression(end)], [1], assume_inbound=True
                )
            )
        )
        begin = end
    return relax.Tuple(parts) if len(parts) > 1 else parts[0]


def _trilu(o: Operator) -> Any:
    own = o.shape(0)
    offsets = o.value(1) if len(o.inputs) > 1 and o.inputs[1] is not None else [0]
    if own is None or offsets is None or (is_static(own) and is_static(offsets)):
        return None
    upper = bool(o.attr.get("upper", 1))

    def compute(x: Any, offset: Any) -> Any:
        def element(*index: Any) -> Any:
            distance = index[-1] - index[-2]
            kept = tirx.GE(distance, offset) if upper else tirx.LE(distance, offset)
            return tirx.if_then_else(kept, x(*index), tirx.const(0, x.dtype))

        return te.compute(x.shape, element, name="trilu")

    return emit_kernel(o.bb, "trilu", compute, [o.input(0)], offsets)


CONVERTERS: dict[str, Callable[[Operator], Any]] = {
    "Reshape": _reshape,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Tile": _tile,
    "Split": _split,
    "Trilu": _trilu,
}
"""By the operator's name. Each returns None where TVM's own converter does as well."""
