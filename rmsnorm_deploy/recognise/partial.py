"""How much of a norm has been recognised so far: the state that the alternatives of the grammar hand on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from rmsnorm_deploy.recognise.inference import Dim
from rmsnorm_deploy.recognise.match import Stage


class Refusal(Exception):
    """An alternative does not hold at a node. Becomes a Miss when nothing else holds either.

    ``weight`` orders refusals at one node: the heaviest is the one that a user wants to read. ``stage`` is how far the
    candidate had got, where the refusal knows better than the one who asked.
    """

    stage = Stage.REDUCTION

    def __init__(
        self,
        reason: str,
        *,
        expected: str = "",
        found: str | Callable[[], str] = "",
        hint: str = "",
        weight: int = 0,
    ) -> None:
        super().__init__(reason)
        self.weight = weight or (1 if expected and found else 0)
        self.reason = reason
        self.expected = expected
        self._found = found
        self.hint = hint

    @property
    def found(self) -> str:
        """What stands there; put into words only when somebody asks, since most refusals are never read."""
        return self._found if isinstance(self._found, str) else self._found()


@dataclasses.dataclass(frozen=True)
class Factor:
    """``number * d ** power`` with d the (perhaps unknown) number of measured elements: exact bookkeeping of 1/n."""

    number: float = 1.0
    power: float = 0.0

    def __mul__(self, other: Factor) -> Factor:
        return Factor(self.number * other.number, self.power + other.power)

    def __truediv__(self, other: Factor) -> Factor:
        if other.number == 0:
            raise Refusal("divides by a constant zero")
        return Factor(self.number / other.number, self.power - other.power)

    def __pow__(self, exponent: float) -> Factor:
        if self.number <= 0:
            raise Refusal("takes the root of a negative or zero multiple of the mean square")
        return Factor(self.number**exponent, self.power * exponent)

    def value(self, size: Dim) -> float | None:
        """The number, or None while it depends on an unknown size."""
        if isinstance(size, int):
            return self.number * math.pow(size, self.power)
        return self.number if abs(self.power) < 1e-9 else None


@dataclasses.dataclass(frozen=True)
class Source:
    """The value whose square was reduced.

    Attributes:
        base: the value itself, before Casts that lose nothing.
        cast: the value as it was squared.
        axes: the reduced dimensions as the graph has them: all negative, or all not negative.
        size: number of reduced elements.
        partial_base: the whole value of which ``base`` is the leading part along the one axis, or None.
        partial_size: length of that part.
    """

    base: ir.Value
    cast: ir.Value
    axes: tuple[int, ...]
    size: Dim
    partial_base: ir.Value | None = None
    partial_size: int | None = None


@dataclasses.dataclass(frozen=True)
class Partial:
    """One value on the way from a reduction to the end of a norm.

    With ``S = max(sqrt(ms + epsilon) + outside, floor)`` the value is ``factor * S ** power`` up to the stage RMS, and
    ``factor * x / S * scale + bias`` from NORMALISED on.

    Attributes:
        stage: the furthest stage reached.
        value: where it stands in the graph.
        source: what was squared.
        power: 2 for a mean square, 1 for the RMS, -1 for its inverse, -2 for the inverse mean square.
        factor: constant factor.
        epsilon: inside the root. outside: outside it. floor: least value of the RMS.
        restored: the reduced dimensions are there (as 1), so that the value broadcasts against x.
        statistics: types in which the statistic was computed, in order.
        x: the normalised value as it entered the product; None before NORMALISED.
        whole: the norm covers all of ``x`` but the statistic only its leading part.
        scale: the scale, bias: the bias, where taken.
        roundings: types of the product with 1/rms and of everything behind it, in order; "scale" and "bias" mark where
            those were applied.
        same: values on the way that nothing but noise separates from ``value``.
        nodes: the nodes so far. path: names of the alternatives so far. notes: sentences for the user.
    """

    stage: Stage
    value: ir.Value
    source: Source
    power: int = 2
    factor: Factor = Factor()
    epsilon: float = 0.0
    outside: float = 0.0
    floor: float = 0.0
    restored: bool = True
    statistics: tuple[ir.DataType, ...] = ()
    x: ir.Value | None = None
    whole: bool = False
    scale: ir.Value | None = None
    bias: ir.Value | None = None
    roundings: tuple[ir.DataType | str, ...] = ()
    same: tuple[ir.Value, ...] = ()
    nodes: tuple[ir.Node, ...] = ()
    path: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def moved(self, **changes: Any) -> Partial:
        """A copy with these fields changed."""
        copy = object.__new__(Partial)  # dataclasses.replace calls __init__, which is most of the time of a walk
        copy.__dict__.update(self.__dict__)
        copy.__dict__.update(changes)
        return copy

    @property
    def needs_general(self) -> bool:
        """Whether only GeneralRMSNorm can express it."""
        return bool(self.outside or self.floor or self.whole) or ir.DataType.DOUBLE in self.statistics[:1]
