"""One unit in the last place (ULP), and errors in it: the one definition that verify, the tests and the benchmarks use.

This file needs NumPy only: ``benchmarks/gpu`` loads it by its path, on machines where the package cannot be imported.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Precision(Protocol):
    """What has to be known of a float type; :class:`rmsnorm_deploy.op.dtypes.FloatType` is one.

    Attributes:
        mantissa_bits: stored bits of the mantissa.
        smallest: the least positive number (subnormal), and so the spacing of all subnormals.
    """

    @property
    def mantissa_bits(self) -> int: ...  # noqa: D102

    @property
    def smallest(self) -> float: ...  # noqa: D102


def ulp(value: ArrayLike, kind: Precision) -> NDArray[np.float64]:
    """The spacing of a type's numbers at each value: ``2 ** (floor(log2(abs(value))) - mantissa_bits)``.

    It is at least the spacing of the subnormals, also for 0. This is Goldberg's ulp (What Every Computer Scientist
    Should Know About Floating-Point Arithmetic, 1991). Infinity gives infinity, NaN gives NaN.

    Args:
        value: numbers of any shape; their signs do not matter.
        kind: the type whose numbers are meant.
    """
    size = np.abs(np.asarray(value).astype(np.float64))
    finite = np.isfinite(size)
    exponent = np.frexp(np.where(finite, size, 1))[1] - 1  # exact, where floor(log2) is not
    spacing = np.maximum(np.ldexp(1.0, exponent - kind.mantissa_bits), kind.smallest)
    return np.asarray(np.where(size == 0, kind.smallest, np.where(finite, spacing, size)))


def row_ulp(
    truth: ArrayLike, kind: Precision, axis: int | tuple[int, ...] | None = -1, known: NDArray[np.bool_] | None = None
) -> NDArray[np.float64]:
    """One ULP of the largest finite value of each row; the reduced axes have size 1.

    Args:
        truth: the exact values.
        kind: the type of the result that is compared with them.
        axis: the axes that make a row; None for all of them.
        known: only these values count; by default the finite ones.
    """
    exact = np.asarray(truth).astype(np.float64)
    counted = np.isfinite(exact) if known is None else known
    return ulp(np.max(np.abs(exact), axis=axis, keepdims=True, initial=0, where=counted), kind)


def units(got: Any, truth: ArrayLike, kind: Precision, axis: int | tuple[int, ...] | None = -1) -> float:
    """The largest error of a result, in ULP of the largest value of its row; 0 for a result without elements.

    Args:
        got: the result.
        truth: the exact values, of the same shape. Where they are infinite or NaN, the result has to be the same.
        kind: the type of the result.
        axis: the axes that make a row; None for all of them.

    Returns:
        The error; infinite where the result is not finite and the truth is, or the other way round.
    """
    g, t = (np.asarray(v).astype(np.float64) for v in (got, truth))
    if g.size == 0:
        return 0.0
    same = (g == t) | (np.isnan(g) & np.isnan(t))
    with np.errstate(all="ignore"):
        error = np.abs(g - t) / row_ulp(t, kind, axis)
    return float(np.where(same, 0.0, np.where(np.isfinite(g) & np.isfinite(t), error, np.inf)).max())
