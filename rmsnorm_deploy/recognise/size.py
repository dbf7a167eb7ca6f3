"""A size: an integer where it is known, a product of unknown dimensions elsewhere."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import onnx_ir as ir

from rmsnorm_deploy.recognise.inference import Dim

Symbol = str | tuple[ir.Value, int]
"""An unknown dimension: its name, or where it has none the value and the axis that it is of."""


@dataclasses.dataclass(frozen=True)
class Size:
    """``number`` times a product of powers of unknown dimensions."""

    number: float
    symbols: tuple[tuple[Symbol, float], ...] = ()

    def __mul__(self, other: Size) -> Size:
        powers = dict(self.symbols)
        for symbol, power in other.symbols:
            powers[symbol] = powers.get(symbol, 0) + power
        kept = sorted(((s, p) for s, p in powers.items() if p), key=lambda item: str(item[0]))
        return Size(self.number * other.number, tuple(kept))

    def __pow__(self, exponent: float) -> Size:
        return Size(self.number**exponent, tuple((s, p * exponent) for s, p in self.symbols))

    @property
    def whole(self) -> int | None:
        """The integer that it is, or None."""
        return int(self.number) if not self.symbols and float(self.number).is_integer() else None

    @property
    def is_whole(self) -> bool:
        """Whether it is an integer whatever the dimensions are, as far as its form tells."""
        return float(self.number).is_integer() and all(p > 0 and p == int(p) for _, p in self.symbols)

    @property
    def dim(self) -> Dim:
        """As a dimension: an integer, the name of a dimension, or None for anything else."""
        if not self.symbols:
            return self.whole
        (symbol, power), *more = self.symbols
        return symbol if self.number == 1 and power == 1 and not more and isinstance(symbol, str) else None

    def in_terms_of(self, other: Size) -> tuple[float, float] | None:
        """``(number, power)`` with this being ``number * other ** power``, or None."""
        if not self.symbols:
            return float(self.number), 0.0
        if len(self.symbols) != len(other.symbols):
            return None
        power = self.symbols[0][1] / other.symbols[0][1]
        if other.number <= 0 or any(
            s != t or not math.isclose(p, power * q) for (s, p), (t, q) in zip(self.symbols, other.symbols, strict=True)
        ):
            return None
        return self.number / other.number**power, power


def product(sizes: Iterable[Size]) -> Size:
    """The product; 1 for none."""
    result = Size(1)
    for size in sizes:
        result = result * size
    return result
