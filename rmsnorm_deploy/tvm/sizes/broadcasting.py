"""Operands whose sizes may or may not be equal when the model runs: ONNX lets a size of 1 be any other's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx

from rmsnorm_deploy.tvm.sizes.dimensions import Dimensions, expression, is_static, shape_of
from rmsnorm_deploy.tvm.sizes.kernel import emit_kernel

_NAMES = """
    Add Sub Mul Div Pow Mod And Or Xor Equal Less LessOrEqual Greater GreaterOrEqual Where PRelu BitwiseAnd
    BitwiseOr BitwiseXor BitShift
"""
ELEMENTWISE = frozenset(_NAMES.split())
"""Operators that broadcast their inputs, one element of each to one of the result."""
PAIRWISE: dict[str, Callable[[Any, Any], Any]] = {
    "Min": relax.op.minimum,
    "Max": relax.op.maximum,
    "Sum": relax.op.add,
}
"""The same for any number of inputs; TVM's converters stack them and reduce, which takes known sizes."""


def common_shape(bb: Any, dims: Dimensions, shapes: Sequence[Sequence[Any]]) -> list[Any]:
    """The shape that all ``shapes`` broadcast to; the model checks what cannot be proven here.

    Raises:
        ValueError: there is no such shape.
    """
    return [_common_size(bb, dims, sizes) for sizes in _aligned(shapes)]


def _common_size(bb: Any, dims: Dimensions, sizes: Sequence[Any]) -> Any:
    result: Any = 1
    for size in sizes:
        if _is(size, 1) or dims.equal(result, size):
            continue
        if _is(result, 1):
            result = size
        elif isinstance(result, int) and isinstance(size, int):
            raise ValueError(f"sizes {result} and {size} do not broadcast")
        else:
            a, b = expression(result), expression(size)
            fits = tirx.any(tirx.EQ(a, b), tirx.EQ(a, expression(1)), tirx.EQ(b, expression(1)))
            check = bb.emit(relax.ShapeExpr([tirx.if_then_else(fits, expression(1), expression(0))]))
            bb.match_cast(check, relax.ShapeType([1]))
            result = result if isinstance(result, int) else size if isinstance(size, int) else tirx.max(a, b)
    return result


def broadcast(bb: Any, dims: Dimensions, value: Any, shape: Sequence[Any]) -> Any:
    """``value`` in ``shape``, which it broadcasts to."""
    own = shape_of(value)
    if own is None:
        raise ValueError(f"the shape of {value.ty} is not known")
    added = len(shape) - len(own)
    aligned = [1] * added + own
    if not added and all(dims.equal(a, b) for a, b in zip(own, shape, strict=True)):
        return value
    if all(_is(a, 1) or dims.equal(a, b) for a, b in zip(aligned, shape, strict=True)):
        return bb.emit(relax.op.broadcast_to(value, relax.ShapeExpr([expression(d) for d in shape])))

    def compute(x: Any, *sizes: Any) -> Any:
        def element(*index: Any) -> Any:
            place = []
            # sizes as the kernel knows them, not as the model does
            for size, wanted, i, inner in zip(own, shape[added:], index[added:], x.shape, strict=True):
                if _is(size, 1):
                    place.append(expression(0))
                elif dims.equal(size, wanted):
                    place.append(i)
                else:
                    place.append(tirx.if_then_else(tirx.EQ(inner, expression(1)), expression(0), i))
            return x(*place)

        return te.compute(list(sizes), element, name="broadcast")

    return emit_kernel(bb, "broadcast", compute, [value], shape, shape)


def unified(bb: Any, dims: Dimensions, values: Sequence[Any]) -> list[Any] | None:
    """``values`` broadcast to one shape where TVM could not tell that they have one; None where it can."""
    shapes = [shape_of(v) for v in values]
    found = [s for s in shapes if s is not None]
    if len(found) < len(shapes) or all(is_static(s) for s in found):
        return None
    if agree(dims, found):
        return None
    shape = common_shape(bb, dims, found)
    return [broadcast(bb, dims, v, shape) for v in values]


def agree(dims: Dimensions, shapes: Sequence[Sequence[Any]]) -> bool:
    """Whether ``shapes`` are known to broadcast."""
    for sizes in _aligned(shapes):
        rest = [s for s in sizes if not _is(s, 1)]
        if not all(dims.equal(rest[0], s) for s in rest[1:]):
            return False
    return True


def _aligned(shapes: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    rank = max(len(s) for s in shapes)
    return list(zip(*([1] * (rank - len(s)) + list(s) for s in shapes), strict=True))


def _is(size: Any, number: int) -> bool:
    return isinstance(size, int) and size == number
