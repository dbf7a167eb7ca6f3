"""What a residual stream is, as data."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rmsnorm_deploy.converting.norms import Norm


@dataclasses.dataclass(frozen=True)
class How:
    """How a value is centred.

    Attributes:
        axis: over which axis, counted from the end.
        scales: constants that multiply its features first.
    """

    axis: int
    scales: tuple[ir.Value, ...] = ()


@dataclasses.dataclass(frozen=True)
class Source:
    """A value that is centred as it enters the stream, because it cannot be where it is made.

    Attributes:
        value: the value.
        axis: its feature axis.
        reason: why it cannot be, in one sentence without a full stop.
        node: name of the node that stands in the way.
        is_flat: it has no feature axis, being the same for all features: without its mean it is 0.
    """

    value: ir.Value
    axis: int
    reason: str
    node: str
    is_flat: bool = False


@dataclasses.dataclass(frozen=True)
class Obstacle:
    """What makes a stream stay as it is.

    Attributes:
        reason: why, in one sentence without a full stop.
        node: name of the node that stands in the way.
    """

    reason: str
    node: str


@dataclasses.dataclass
class Constant:
    """A constant that is centred in one way.

    Attributes:
        edges: what reads it on the stream's behalf: nodes and the numbers of their inputs.
        cut: what is centred instead if the constant cannot be, and the feature axis of that.
        parts: of a constant that is computed: inputs of its node by their numbers, and how those are centred.
    """

    cut: tuple[ir.Value, int]
    edges: set[tuple[ir.Node, int]] = dataclasses.field(default_factory=set)
    parts: dict[int, How] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Stream:
    """One residual stream.

    Attributes:
        values: the values of the stream and of its writers, with how they are centred; no constants.
        constants: the constants that are centred, with how.
        edges: what reads a value on the stream's behalf: nodes and the numbers of their inputs.
        scaled: products with a constant for each feature that is folded into what is in front of them: for each the
            number of the input that takes its place.
        norms: the LayerNorms that read the stream, in graph order.
        sources: what is centred explicitly.
        obstacle: why the stream stays as it is; None where it can be converted.
    """

    values: dict[ir.Value, How] = dataclasses.field(default_factory=dict)
    constants: dict[tuple[ir.Value, How], Constant] = dataclasses.field(default_factory=dict)
    edges: dict[ir.Value, set[tuple[ir.Node, int]]] = dataclasses.field(default_factory=dict)
    scaled: dict[ir.Value, int] = dataclasses.field(default_factory=dict)
    norms: list[Norm] = dataclasses.field(default_factory=list)
    sources: dict[ir.Value, Source] = dataclasses.field(default_factory=dict)
    obstacle: Obstacle | None = None
