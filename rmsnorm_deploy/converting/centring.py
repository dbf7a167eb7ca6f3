"""The arithmetic: weights without their mean, in float64 and rounded once, a block at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_BLOCK = 2**20
"""Elements that are in float64 at a time."""


def scaled(array: Array, axis: int, scales: Sequence[Array]) -> Array:
    """``array`` in float64, each feature times its number in every one of ``scales``."""
    wide = array.astype(np.float64)
    for scale in scales:
        shape = [1] * wide.ndim
        shape[axis] = -1
        wide = wide * scale.astype(np.float64).reshape(shape)
    return np.asarray(wide)


def without_mean(wide: Array, axis: int) -> Array:
    """``wide``, which is float64, without its mean along ``axis``; zeros where it has no such axis."""
    if -axis > wide.ndim:
        return np.zeros_like(wide)
    return np.asarray(wide - wide.mean(axis=axis, keepdims=True))


def centred(array: Array, axis: int, scales: Sequence[Array] = ()) -> Array:
    """``array`` with its features scaled and then without their mean, in its own type.

    Args:
        array: of a float type.
        axis: along which the features lie, counted from the end; one that it does not have makes zeros.
        scales: vectors of one number for each feature.

    Raises:
        FloatingPointError: a number is too large for its type without the mean.
    """
    if -axis > array.ndim or array.size == 0:
        return np.zeros_like(array)
    # the longest of the other axes is cut into blocks
    others = [a for a in range(array.ndim) if a != array.ndim + axis]
    result = np.empty(array.shape, array.dtype)
    for place in _blocks(array.shape, others):
        wide = without_mean(scaled(array[place], axis, scales), axis)
        with np.errstate(over="raise", invalid="ignore"):
            result[place] = wide.astype(array.dtype)
    return result


def means(array: Array, dtype: Any) -> Array:
    """The mean of each row of a matrix, negated: a column of ``dtype``, for rows that are looked up.

    Args:
        array: of a float type.
        dtype: a float type of at least its size.
    """
    result = np.empty((len(array), 1), dtype)
    for rows, _ in _blocks(array.shape, [0]):
        result[rows] = -array[rows].astype(np.float64).mean(axis=1, keepdims=True)
    return result


def _blocks(shape: tuple[int, ...], others: Sequence[int]) -> Iterable[tuple[slice, ...]]:
    """Parts of an array of at most about ``_BLOCK`` elements, each with all features."""
    if not others:
        yield (slice(None),) * len(shape)
        return
    along = max(others, key=lambda a: shape[a])
    size = int(np.prod(shape)) // shape[along]
    step = max(1, _BLOCK // max(1, size))
    for start in range(0, shape[along], step):
        yield tuple(slice(start, start + step) if a == along else slice(None) for a in range(len(shape)))
