"""Operators that take a shape, or whose inputs' sizes must agree, where sizes are expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax, te, tirx

from rmsnorm_deploy.tvm.sizes import broadcasting
from rmsnorm_deploy.tvm.sizes.dimensions import Dimensions, expression, floordiv, is_static, shape_of
from rmsnorm_deploy.tvm.sizes.kernel import emit_kernel
from rmsnorm_deploy.tvm.sizes.shape_values import ShapeValue, known

_FAR = 2**31 - 1
"""ONNX writes "to the end" as any number from here on."""


class Operator:
    """One operator being imported.

    Attributes:
        bb: TVM's block builder.
        inputs: values, or None.
        attr: attributes by name.
        dims: what is known of sizes.
    """

    def __init__(self, bb: Any, inputs: Sequence[Any], attr: Mapping[str, Any], dims: Dimensions) -> None:
        self.bb = bb
        self.inputs = list(inputs)
        self.attr = attr
        self.dims = dims

    def input(self, i: int) -> Any:
        """Input ``i`` as a tensor, or None."""
        value = self.inputs[i] if i < len(self.inputs) else None
        return value.tensor(self.bb) if isinstance(value, ShapeValue) else value

    def value(self, i: int) -> list[Any] | None:
        """Elements of input ``i`` if they are known."""
        found = known(self.inputs[i]) if i < len(self.inputs) and self.inputs[i] is not None else None
        return None if found is None else found.list()

    def shape(self, i: int) -> list[Any] | None:
        """Sizes of input ``i`` if they are known."""
        sizes = shape_of(self.inputs[i])
        if sizes is not None:
            self.dims.bind(sizes)
        return sizes

    def known_shape(self, i: int) -> list[Any]:
        """Sizes of input ``i``.

        Raises:
            ValueError: TVM does not know them.
        """
        sizes = self.shape(i)
        if sizes is None:
            raise ValueError(f"the shape of input {i}, {self.inputs[i].ty}, is not known")
        return sizes

    def emit(self, call: Any) -> Any:
        """A variable for the result of ``call``."""
        return self.bb.emit(call)


def shape_expr(sizes: Sequence[Any]) -> Any:
    """Sizes as TVM's operators want them."""
    return relax.ShapeExpr([expression(d) for d in sizes])


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


def _concat(o: Operator) -> Any:
    """Sizes beside the axis have to be equal; what cannot be proven is checked by the model."""
    shapes = [o.shape(i) for i in range(len(o.inputs))]
    first = shapes[0]
    if first is None or any(s is None for s in shapes) or all(is_static(s) for s in shapes if s is not None):
        return None
    axis = o.attr["axis"] % len(first)
    values = []
    for i, sizes in enumerate(s for s in shapes if s is not None):
        wanted = [*first[:axis], sizes[axis], *first[axis + 1 :]]
        values.append(_cast_to(o, o.input(i), sizes, wanted))
    return relax.op.concat(values, axis)


def _cast_to(o: Operator, value: Any, sizes: Sequence[Any], wanted: Sequence[Any]) -> Any:
    if all(o.dims.equal(a, b) for a, b in zip(sizes, wanted, strict=True)):
        return value
    return o.bb.match_cast(value, relax.TensorType([expression(d) for d in wanted], value.ty.dtype.dtype))


def _elementwise(o: Operator) -> Any:
    """Never a result: only the inputs are made to fit, and TVM's converter goes on."""
    if all(i is not None for i in o.inputs):
        values = [o.input(i) for i in range(len(o.inputs))]
        fitting = broadcasting.unified(o.bb, o.dims, values)
        o.inputs = values if fitting is None else fitting


def _pairwise(name: str) -> Callable[[Operator], Any]:
    def convert(o: Operator) -> Any:
        shapes = [o.shape(i) for i in range(len(o.inputs))]
        if any(s is None for s in shapes) or all(is_static(s) for s in shapes if s is not None):
            return None
        _elementwise(o)
        total = o.inputs[0]
        for value in o.inputs[1:]:
            total = o.emit(broadcasting.PAIRWISE[name](total, value))
        return total

    return convert


CONVERTERS: dict[str, Callable[[Operator], Any]] = {
    "Reshape": _reshape,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Slice": _slice,
    "Tile": _tile,
    "Split": _split,
    "Trilu": _trilu,
    "Concat": _concat,
    **{name: _elementwise for name in broadcasting.ELEMENTWISE},
    **{name: _pairwise(name) for name in broadcasting.PAIRWISE},
}
"""By the operator's name. Each returns None where TVM's own converter does as well."""
