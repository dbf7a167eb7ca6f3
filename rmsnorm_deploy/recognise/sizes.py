"""Sizes that a graph computes from Shapes: integers where they are known, products of unknown dimensions elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from rmsnorm_deploy.model.graphs import AI_ONNX
from rmsnorm_deploy.recognise.inference import Shape
from rmsnorm_deploy.recognise.origin import origin
from rmsnorm_deploy.recognise.size import Size, product

Array = NDArray[Any]
_MAX_DEPTH = 24
"""Longest chain of expressions that is followed."""
_MAX_ELEMENTS = 64
"""Most elements of a value made of sizes: a shape has a handful."""


class Known(Protocol):
    """What has to be known of values."""

    def shape(self, value: ir.Value | None) -> Shape | None:
        """Dimensions, or None."""

    def constant(self, value: ir.Value | None, depth: int = 0) -> Array | None:
        """The constant that it holds, or None."""


class Sizes:
    """What values hold that are made of Shapes.

    Args:
        known: types, shapes and constants.
    """

    def __init__(self, known: Known) -> None:
        self._facts = known
        self._held: dict[ir.Value, tuple[Array, bool] | None] = {}

    def of_axis(self, value: ir.Value, axis: int) -> Size:
        """The size of one dimension of ``value``; a negative axis counts from the end, also where the rank is unknown.

        Raises:
            IndexError: there is no such dimension.
        """
        shape = self._facts.shape(value)
        d = None if shape is None else shape[axis]
        if isinstance(d, int):
            return Size(d)
        first = origin(value)
        if first is not value:  # what stands in front is what others are compared with
            return self.of_axis(first, axis)
        if d is not None:
            return Size(1, ((d, 1),))
        return Size(1, (((value, axis if shape is None else axis % len(shape) - len(shape)), 1),))

    def scalar(self, value: ir.Value | None) -> Size | None:
        """The size that a value of one element holds, or None."""
        found = self.elements(value)
        return found[0] if found is not None and len(found) == 1 else None

    def elements(self, value: ir.Value | None) -> list[Size] | None:
        """The sizes that a value holds, in order, or None."""
        held = None if value is None else self._of(value, 0)
        return None if held is None else list(held[0].reshape(-1))

    def integers(self, value: ir.Value) -> Array | None:
        """The value as an array of integers, where it holds integers computed from Shapes and all of them are known."""
        held = self._computed(value, 0)
        if held is None or not held[1]:
            return None
        numbers = [size.whole for size in held[0].reshape(-1)]
        if any(n is None or abs(n) >= 2**63 for n in numbers):
            return None
        return np.array(numbers, np.int64).reshape(held[0].shape)

    def _of(self, value: ir.Value, depth: int) -> tuple[Array, bool] | None:
        """The sizes in the shape that they have, and whether the value is of an integer type."""
        constant = self._facts.constant(value, depth)
        if constant is None:
            return self._computed(value, depth)
        if constant.size > _MAX_ELEMENTS or constant.dtype.kind not in "iuf":
            return None
        if constant.dtype.kind == "f" and not np.isfinite(constant).all():
            return None
        return _array([Size(n.item()) for n in constant.reshape(-1)], constant.shape), constant.dtype.kind in "iu"

    def _computed(self, value: ir.Value, depth: int) -> tuple[Array, bool] | None:
        if value in self._held:
            return self._held[value]
        node = value.producer()
        evaluate = None if node is None or node.domain not in AI_ONNX else _OPERATORS.get(node.op_type)
        if evaluate is None or node is None or depth > _MAX_DEPTH or any(a.is_ref() for a in node.attributes.values()):
            return None
        self._held[value] = None  # guards against cycles in broken graphs
        try:
            found = evaluate(_Node(self, node, value, depth))
        except (ValueError, IndexError, TypeError, KeyError, OverflowError, ZeroDivisionError):
            found = None  # a malformed node holds nothing
        if found is not None and found[0].size > _MAX_ELEMENTS:
            found = None
        self._held[value] = found
        return found


def _array(sizes: list[Size], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(sizes), object)
    array[:] = sizes
    return array.reshape(shape)


@dataclasses.dataclass(frozen=True)
class _Node:
    """A node that computes with sizes, asked for its output ``value``."""

    sizes: Sizes
    node: ir.Node
    value: ir.Value
    depth: int

    def held(self, index: int) -> tuple[Array, bool]:
        """What the input ``index`` holds; ValueError where that is unknown."""
        given = self.node.inputs[index]
        found = None if given is None else self.sizes._of(given, self.depth + 1)
        if found is None:
            raise ValueError("not made of sizes")
        return found

    def integers(self, index: int, name: str = "") -> list[int] | None:
        """Constant integers from an input, or from the attribute ``name``; None where there are none."""
        if name in self.node.attributes:
            return [int(v) for v in np.reshape(self.node.attributes[name].value, -1)]
        if len(self.node.inputs) <= index or self.node.inputs[index] is None:
            return None
        numbers = [size.whole for size in self.held(index)[0].reshape(-1)]
        if None in numbers:
            raise ValueError("not known")
        return [n for n in numbers if n is not None]

    def integer(self, name: str, default: int) -> int:
        attribute = self.node.attributes.get(name)
        return default if attribute is None else int(attribute.value)


Held = tuple[Array, bool] | None


def _shape(o: _Node) -> Held:
    value = o.node.inputs[0]
    shape = None if value is None else o.sizes._facts.shape(value)
    if value is None or shape is None:
        return None
    axes = range(len(shape))[o.integer("start", 0) : o.integer("end", len(shape))]
    return _array([o.sizes.of_axis(value, a) for a in axes], (len(axes),)), True


def _size(o: _Node) -> Held:
    shape = _shape(o)
    return None if shape is None else (_array([product(shape[0])], ()), True)


def _of_unknown_rank(o: _Node, shape: ir.Value | None) -> ir.Value | None:
    """The value of which ``shape`` is the Shape, where not even its rank is known; else None."""
    producer = None if shape is None else shape.producer()
    if producer is None or producer.op_type != "Shape" or producer.attributes:
        return None
    value = producer.inputs[0]
    return value if value is not None and o.sizes._facts.shape(value) is None else None


def _gather(o: _Node) -> Held:
    if o.integer("axis", 0) != 0:
        return None
    data, index = o.node.inputs[:2]
    at = o.integers(1)
    assert index is not None
    shape = o.held(1)[0].shape
    whole = _of_unknown_rank(o, data)
    if whole is not None:  # only places from the end are places
        if at is None or any(a >= 0 for a in at):
            return None
        return _array([o.sizes.of_axis(whole, a) for a in at], shape), True
    array, whole_numbers = o.held(0)
    if at is None or array.ndim != 1 or any(not -len(array) <= a < len(array) for a in at):
        return None
    return _array([array[a] for a in at], shape), whole_numbers


def _slice(o: _Node) -> Held:
    starts, ends = o.integers(1, "starts"), o.integers(2, "ends")
    axes, steps = o.integers(3, "axes"), o.integers(4, "steps")
    if starts is None or ends is None or len(starts) != 1 or len(ends) != 1 or (axes or [0]) not in ([0], [-1]):
        return None
    step = (steps or [1])[0]
    value = _of_unknown_rank(o, o.node.inputs[0])
    if value is not None:
        if step != 1 or starts[0] >= 0 or not (ends[0] < 0 or ends[0] >= 2**31 - 1):
            return None
        places = range(starts[0], min(ends[0], 0))
        return _array([o.sizes.of_axis(value, a) for a in places], (len(places),)), True
    array, whole = o.held(0)
    return (array[starts[0] : ends[0] : step], whole) if array.ndim == 1 else None


def _squeeze(o: _Node) -> Held:
    array, whole = o.held(0)
    axes = o.integers(1, "axes")
    return np.squeeze(array, None if axes is None else tuple(axes)), whole


def _unsqueeze(o: _Node) -> Held:
    array, whole = o.held(0)
    return np.expand_dims(array, tuple(o.integers(1, "axes") or ())), whole


def _reshape(o: _Node) -> Held:
    array, whole = o.held(0)
    return array.reshape(o.integers(1) or []), whole


def _concat(o: _Node) -> Held:
    parts = [o.held(i) for i in range(len(o.node.inputs))]
    return np.concatenate([array for array, _ in parts]), all(whole for _, whole in parts)


def _split(o: _Node) -> Held:
    array, whole = o.held(0)
    lengths = o.integers(1, "split")
    count = len(o.node.outputs)
    if array.ndim != 1 or (lengths is None and len(array) % count):
        return None
    lengths = lengths or [len(array) // count] * count
    index = o.value.index() or 0
    start = sum(lengths[:index])
    return array[start : start + lengths[index]], whole


def _cast(o: _Node) -> Held:
    array, _ = o.held(0)
    to = ir.DataType(int(o.node.attributes["to"].value))
    if to.is_floating_point():
        return array, False
    # a product of whole dimensions stays as it is where an integer type truncates
    exact = to in (ir.DataType.INT64, ir.DataType.INT32) and all(size.is_whole for size in array.flat)
    return (array, True) if exact else None


def _cast_like(o: _Node) -> Held:
    array, whole = o.held(0)
    return array, whole and o.held(1)[1]


def _reduced(o: _Node) -> Held:
    array, whole = o.held(0)
    axes = o.integers(1, "axes")
    if array.ndim != 1 or (axes or [0]) not in ([0], [-1]) or (not axes and o.integer("noop_with_empty_axes", 0)):
        return None
    return _array([product(array)], (1,) if o.integer("keepdims", 1) else ()), whole


def _equal(o: _Node) -> Held:
    """1 where two sizes are equal and 0 where they are not; nothing where that depends on a dimension."""
    pairs = np.broadcast_arrays(o.held(0)[0], o.held(1)[0])
    answers = [_are_equal(a, b) for a, b in zip(*(p.reshape(-1) for p in pairs), strict=True)]
    if None in answers:
        return None
    return _array([Size(int(bool(a))) for a in answers], pairs[0].shape), False


def _are_equal(a: Size, b: Size) -> bool | None:
    if a == b:
        return True
    if not a.symbols and not b.symbols:
        return a.number == b.number
    for size, other in ((a, b), (b, a)):
        if size.is_whole and size.number > 0 and not other.symbols and other.number < 0:
            return False  # no dimension is negative
    return None


def _where(o: _Node) -> Held:
    condition = o.node.inputs[0]
    if condition is None or (asked := condition.producer()) is None or asked.op_type != "Equal":
        return None
    (chosen, _), (left, whole), (right, too) = (o.held(i) for i in range(3))
    parts = np.broadcast_arrays(chosen, left, right)
    flat = zip(*(p.reshape(-1) for p in parts), strict=True)
    return _array([a if c.number else b for c, a, b in flat], parts[0].shape), whole and too


def _multiplied(o: _Node) -> Held:
    (left, whole), (right, _) = o.held(0), o.held(1)
    return np.asarray(left * right, object), whole


def _divided(o: _Node) -> Held:
    (left, whole), (right, _) = o.held(0), o.held(1)
    if any(size.number == 0 for size in right.flat):
        return None
    result = np.asarray(left * right ** np.asarray(-1, object), object)
    if whole and not all(size.is_whole for size in result.flat):
        if any(s.symbols for s in (*left.flat, *right.flat)):
            return None  # rounds to a whole number that is not known
        pairs = np.broadcast_arrays(left, right)
        numbers = [Size(int(a.number) // int(b.number)) for a, b in zip(*(p.reshape(-1) for p in pairs), strict=True)]
        return _array(numbers, pairs[0].shape), True
    return result, whole


def _power(exponent: float) -> Callable[[_Node], Held]:
    def raised(o: _Node) -> Held:
        array, _ = o.held(0)
        if any(size.number <= 0 for size in array.flat):
            return None
        return np.asarray(array ** np.asarray(exponent, object), object), False

    return raised


def _raised(o: _Node) -> Held:
    exponents, _ = o.held(1)
    if exponents.size != 1 or exponents.flat[0].symbols:
        return None
    found = _power(exponents.flat[0].number)(o)
    return None if found is None else (found[0], False)


_OPERATORS: dict[str, Callable[[_Node], Held]] = {
    "Shape": _shape,
    "Size": _size,
    "Gather": _gather,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Concat": _concat,
    "Split": _split,
    "Identity": lambda o: o.held(0),
    "Cast": _cast,
    "CastLike": _cast_like,
    "ReduceProd": _reduced,
    "Equal": _equal,
    "Where": _where,
    "Mul": _multiplied,
    "Div": _divided,
    "Sqrt": _power(0.5),
    "Reciprocal": _power(-1.0),
    "Pow": _raised,
}
