"""Constant factors on the way of a norm, kept exactly while the number of measured elements is unknown."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from rmsnorm_deploy.op import dtypes
from rmsnorm_deploy.recognise.inference import Dim
from rmsnorm_deploy.recognise.refusal import Refusal

_SLACK = {t.number: t.epsilon for t in (dtypes.FLOAT16, dtypes.BFLOAT16)} | {
    dtypes.FLOAT32.number: 2 * dtypes.FLOAT32.epsilon,
    dtypes.FLOAT64.number: 32 * dtypes.FLOAT64.epsilon,  # in float64 our own bookkeeping rounds, too
}
"""How far from 1 a product of constants of each type may be, relatively, because they are rounded."""


@dataclasses.dataclass(frozen=True)
class Factor:
    """``number * d ** power`` with d the (perhaps unknown) number of measured elements: exact bookkeeping of 1/n.

    The number has a sign and is neither zero nor infinite nor NaN.

    Raises:
        Refusal: it would be.
    """

    number: float = 1.0
    power: float = 0.0

    def __post_init__(self) -> None:
        if self.number == 0 or not math.isfinite(self.number):
            raise Refusal("has a constant factor of zero, infinity or NaN", expected="another number")

    def __mul__(self, other: Factor) -> Factor:
        return Factor(self.number * other.number, self.power + other.power)

    def __truediv__(self, other: Factor) -> Factor:
        return Factor(self.number / other.number, self.power - other.power)

    def __neg__(self) -> Factor:
        return Factor(-self.number, self.power)

    def __abs__(self) -> Factor:
        return Factor(abs(self.number), self.power)

    def __pow__(self, exponent: float) -> Factor:
        if self.number < 0 and not float(exponent).is_integer():
            raise Refusal("takes the root of a negative number")
        try:
            return Factor(self.number**exponent, self.power * exponent)
        except OverflowError:
            raise Refusal("has a constant factor that is too large", found=f"{self.number:g} ** {exponent:g}") from None

    def value(self, size: Dim) -> float | None:
        """The number, or None where it depends on a size that is unknown or zero."""
        if isinstance(size, int) and size > 0:
            return self.number * math.pow(size, self.power)
        return self.number if abs(self.power) < 1e-9 else None

    def is_one(self, size: Dim, types: Iterable[int]) -> bool:
        """Whether it is 1, up to the rounding of constants in the coarsest of ``types``."""
        value = self.value(size)
        return value is not None and abs(value - 1.0) <= max(_SLACK.get(t, 0.0) for t in types)


ONE = Factor()
