"""Arithmetic on small constants, in their own type, as the graph would do it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

Array = NDArray[Any]

MOST_ELEMENTS = 4096
"""Larger results are weights, or sizes that only a damaged file asks for: they are never computed."""


@dataclasses.dataclass(frozen=True)
class Operands:
    """An operator, its attributes and the arrays that its inputs hold; ``like`` is the type that CastLike casts to."""

    op_type: str
    attributes: Mapping[str, ir.Attr]
    arrays: list[Array]
    like: ir.DataType | None = None

    def integer(self, name: str, default: int) -> int:
        """An integer attribute of the node."""
        attribute = self.attributes.get(name)
        return default if attribute is None or attribute.is_ref() else int(attribute.value)

    def axes(self) -> tuple[int, ...]:
        """The node's axes, from its second input or its attribute."""
        given = self.arrays[1] if len(self.arrays) > 1 else self.attributes["axes"].value
        return tuple(int(a) for a in np.reshape(given, -1))


def fold(operands: Operands) -> Array | None:
    """What the node computes from constants; None for operators that parameters of norms are not made of."""
    evaluate = _FOLD.get(operands.op_type)
    if evaluate is None:
        return None
    try:
        with np.errstate(all="ignore"):
            return evaluate(operands)
    except (
        ValueError,
        IndexError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
    ):  # a malformed node holds no constant
        return None


def constant_node(
    attributes: Mapping[str, ir.Attr], small: Callable[[ir.TensorProtocol], Array | None]
) -> Array | None:
    """The value of a Constant node with these attributes.

    Args:
        attributes: its attributes.
        small: reads a tensor, or gives None for one that is too large.
    """
    for name, attribute in attributes.items():
        if attribute.is_ref():
            return None
        if name == "value":
            return small(attribute.value)
        if name in ("value_float", "value_floats"):
            return np.array(attribute.value, np.float32)
        if name in ("value_int", "value_ints"):
            return np.array(attribute.value, np.int64)
    return None


def _cast(o: Operands) -> Array | None:
    to = o.attributes["to"]
    return None if to.is_ref() else o.arrays[0].astype(ir.DataType(int(to.value)).numpy())


def _slice(o: Operands) -> Array | None:
    if len(o.arrays) < 3:
        return None
    starts, ends = (_integers(a) for a in o.arrays[1:3])
    axes = _integers(o.arrays[3]) if len(o.arrays) > 3 else list(range(len(starts)))
    steps = _integers(o.arrays[4]) if len(o.arrays) > 4 else [1] * len(starts)
    index = [slice(None)] * o.arrays[0].ndim
    for axis, *ends_and_step in zip(axes, starts, ends, steps, strict=True):
        if index[axis] != slice(None):
            return None  # an axis that is named twice
        index[axis] = slice(*ends_and_step)
    return o.arrays[0][tuple(index)]


def _integers(array: Array) -> list[int]:
    return [int(n) for n in array.reshape(-1)]


def _shape(o: Operands) -> Array | None:
    shape = o.arrays[0].shape
    if {"start", "end"} & o.attributes.keys():
        return None
    return np.array(shape, np.int64)


def _transpose(o: Operands) -> Array | None:
    order = o.attributes.get("perm")
    if order is None:
        return o.arrays[0].T
    return None if order.is_ref() else o.arrays[0].transpose([int(a) for a in order.value])


def _mod(o: Operands) -> Array | None:
    number, divisor = o.arrays
    if number.dtype.kind not in "iu" or not divisor.all():
        return None
    return np.fmod(number, divisor) if o.integer("fmod", 0) else np.mod(number, divisor)


def _div(o: Operands) -> Array | None:
    number, divisor = o.arrays
    if number.dtype.kind not in "iu":
        return (number / divisor).astype(number.dtype)
    return (number - np.fmod(number, divisor)) // divisor if divisor.all() else None  # rounds towards zero


def _range(o: Operands) -> Array | None:
    if any(a.dtype.kind != "i" for a in o.arrays):
        return None
    numbers = range(*(int(a.reshape(())) for a in o.arrays))
    return np.array(numbers, o.arrays[0].dtype) if len(numbers) <= MOST_ELEMENTS else None


def _expand(o: Operands) -> Array | None:
    shape = np.broadcast_shapes(o.arrays[0].shape, tuple(int(d) for d in o.arrays[1]))
    return np.broadcast_to(o.arrays[0], shape) if math.prod(shape) <= MOST_ELEMENTS else None


def _of_shape(o: Operands) -> Array | None:
    shape = [int(d) for d in o.arrays[0]]
    fill = o.attributes.get("value")
    if math.prod(shape) > MOST_ELEMENTS or (fill is not None and fill.is_ref()):
        return None
    number = np.zeros(1, np.float32) if fill is None else fill.value.numpy()
    return np.full(shape, number.reshape(-1)[0], number.dtype)


def _where(o: Operands) -> Array | None:
    if o.arrays[0].dtype.kind != "b" or o.arrays[1].dtype != o.arrays[2].dtype:
        return None
    shape = np.broadcast_shapes(*(a.shape for a in o.arrays))
    return np.where(*o.arrays) if math.prod(shape) <= MOST_ELEMENTS else None


def _plain(function: Callable[..., Any]) -> Callable[[Operands], Array | None]:
    return lambda o: np.asarray(function(*o.arrays)).astype(o.arrays[0].dtype)


_FOLD: dict[str, Callable[[Operands], Array | None]] = {
    "Identity": lambda o: o.arrays[0],
    "Cast": _cast,
    "CastLike": lambda o: None if o.like is None else o.arrays[0].astype(o.like.numpy()),
    "Neg": _plain(np.negative),
    "Abs": _plain(np.abs),
    "Sqrt": _plain(np.sqrt),
    "Reciprocal": _plain(lambda a: 1 / a),
    "Add": _plain(np.add),
    "Sub": _plain(np.subtract),
    "Mul": _plain(np.multiply),
    "Div": _div,
    "Mod": _mod,
    "Pow": _plain(np.power),
    "Max": _plain(lambda *a: np.max(np.broadcast_arrays(*a), axis=0)),
    "Min": _plain(lambda *a: np.min(np.broadcast_arrays(*a), axis=0)),
    "Equal": lambda o: np.equal(*o.arrays),
    "Where": _where,
    "Reshape": lambda o: o.arrays[0].reshape([int(d) for d in o.arrays[1]]),
    "Unsqueeze": lambda o: np.expand_dims(o.arrays[0], o.axes()),
    "Squeeze": lambda o: np.squeeze(o.arrays[0], o.axes()),
    "Expand": _expand,
    "ConstantOfShape": _of_shape,
    "Range": _range,
    "Concat": lambda o: np.concatenate(o.arrays, axis=o.integer("axis", 0)),
    "Gather": lambda o: np.take(o.arrays[0], o.arrays[1], axis=o.integer("axis", 0)),
    "Slice": _slice,
    "Transpose": _transpose,
    "Shape": _shape,
    "Size": lambda o: np.asarray(o.arrays[0].size, np.int64),
    "ReduceProd": lambda o: np.asarray(o.arrays[0].prod()),
}
