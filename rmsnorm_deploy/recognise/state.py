"""How much of a norm has been recognised so far: the state that one alternative of the grammar hands to the next."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from rmsnorm_deploy.op import Op
from rmsnorm_deploy.op.definition import ATTRIBUTES
from rmsnorm_deploy.op.dtypes import FLOAT32
from rmsnorm_deploy.recognise.factor import ONE, Factor
from rmsnorm_deploy.recognise.inference import Dim
from rmsnorm_deploy.recognise.match import Stage
from rmsnorm_deploy.recognise.size import Size

_OF_GENERAL = tuple(a.name for a in ATTRIBUTES if a.ops == (Op.GENERAL_RMS_NORM,))
"""The attributes that GeneralRMSNorm alone has."""
LEAST_RMS = math.sqrt(FLOAT32.smallest * 2**11)
"""The least RMS that float32 arithmetic measures: below it, a mean square has fewer than 12 bits, and soon none."""


@dataclasses.dataclass(frozen=True)
class Source:
    """The value whose square was reduced.

    Attributes:
        base: the value itself, before Casts that lose nothing.
        cast: the value as it was squared.
        axes: the reduced dimensions as the graph has them: all negative, or all not negative.
        size: number of reduced elements.
        measured: the same as a product of dimensions, where these are unknown; None where even the rank is.
        partial_base: the whole value of which ``base`` is the leading part along the one axis, or None.
        partial_size: length of that part.
    """

    base: ir.Value
    cast: ir.Value
    axes: tuple[int, ...]
    size: Dim
    partial_base: ir.Value | None = None
    partial_size: int | None = None
    measured: Size | None = None


@dataclasses.dataclass(frozen=True)
class State:
    """One value on the way from a reduction to the end of a norm.

    With ``S`` the RMS as the operator defines it from ``attributes``, the value is ``factor * S ** power`` up to the
    stage RMS, and ``factor * x / S * scale + bias`` from NORMALISED on. S is never negative, so that the signs of
    factor and power say whether a value grows with it.

    Attributes:
        stage: the furthest stage reached.
        value: where it stands in the graph.
        source: what was squared.
        power: 2 for a mean square, 1 for the RMS, -1 for its inverse, -2 for the inverse mean square.
        factor: constant factor, of either sign.
        attributes: float attributes of the operator that were found in the statistic, such as epsilon, by name.
        restored: the reduced dimensions are there (as 1), so that the value broadcasts against x.
        statistics: types in which the statistic was computed up to the reduction, in order.
        casts: types to which it was cast behind that, each with the power that it had there.
        x: the normalised value as it entered the product; None before NORMALISED.
        whole: the norm covers all of ``x`` but the statistic only its leading part.
        scale: the scale, bias: the bias, where taken.
        roundings: types of the product with 1/rms and of everything after it, in order; "scale", "bias" and "factor"
            (a constant) mark where those were applied.
        same: values on the way that nothing but noise separates from ``value``.
        nodes: the nodes so far. path: labels of the alternatives so far.
    """

    stage: Stage
    value: ir.Value
    source: Source
    power: int = 2
    factor: Factor = ONE
    attributes: Mapping[str, float] = dataclasses.field(default_factory=dict)
    restored: bool = True
    statistics: tuple[ir.DataType, ...] = ()
    casts: tuple[tuple[ir.DataType, int], ...] = ()
    x: ir.Value | None = None
    whole: bool = False
    scale: ir.Value | None = None
    bias: ir.Value | None = None
    roundings: tuple[ir.DataType | str, ...] = ()
    same: tuple[ir.Value, ...] = ()
    nodes: tuple[ir.Node, ...] = ()
    path: tuple[str, ...] = ()

    def moved(self, **changes: Any) -> State:
        """A copy with these fields changed."""
        copy = object.__new__(State)  # dataclasses.replace calls __init__, which is most of the time of a walk
        copy.__dict__.update(self.__dict__)
        copy.__dict__.update(changes)
        return copy

    def attribute(self, name: str) -> float:
        """A float attribute of the statistic; 0, which is the default of them all, where none was found."""
        return self.attributes.get(name, 0.0)

    def having(self, name: str, value: float) -> State:
        """A copy with this float attribute of the operator."""
        return self.moved(attributes={**self.attributes, name: value})

    @property
    def least(self) -> float:
        """No RMS is less."""
        inside = math.sqrt(self.attribute("epsilon")) + self.attribute("epsilon_outside")
        return max(inside, self.attribute("rms_floor"))

    @property
    def needs_general(self) -> bool:
        """Whether only GeneralRMSNorm can express it."""
        special = any(self.attribute(name) for name in _OF_GENERAL)
        return special or self.whole or ir.DataType.DOUBLE in self.statistics[:1]
