"""What recognition finds, as data: a Match for each norm, a Miss with its reason for each candidate left alone."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

import onnx_ir as ir

from rmsnorm_deploy.op import NormParameters


class Stage(enum.IntEnum):
    """How far a candidate was followed; the stages of the grammar in their order."""

    REDUCTION = 0
    SQUARE = 1
    MEAN_SQUARE = 2
    RMS = 3
    NORMALISED = 4
    OUTPUT = 5

    @property
    def label(self) -> str:
        """The stage in words."""
        return self.name.lower().replace("_", " ")


@dataclasses.dataclass(frozen=True)
class Site:
    """Where a candidate stands.

    Attributes:
        node: name of the reduction that could start a norm (of its first output where the node has no name).
        op_type: that node's operator.
        scope: the graph it stands in: "" for the main graph, else the path of subgraphs or the local function.
    """

    node: str
    op_type: str
    scope: str = ""

    def __str__(self) -> str:
        return f"{self.scope}/{self.node}" if self.scope else self.node


LAYER_NORM = "'rmsnorm-deploy convert' may turn it into an RMSNorm; onnxruntime fuses it into LayerNormalization"
"""The hint of a candidate that is a LayerNorm over the last dimension, spelled out."""


@dataclasses.dataclass(frozen=True)
class Miss:
    """A candidate that stays as it is.

    Attributes:
        site: where.
        stage: the furthest stage that was reached.
        reason: why it stopped there, one sentence.
        node: name of the node at which it stopped.
        expected: what would have been accepted there.
        found: what stands there.
        hint: what would make it fuse; may be empty.
        other: it is no RMSNorm, but part of another operator that is made of the same nodes, such as a variance.
    """

    site: Site
    stage: Stage
    reason: str
    node: str = ""
    expected: str = ""
    found: str = ""
    hint: str = ""
    other: bool = False

    @property
    def is_layer_norm(self) -> bool:
        """Whether it is a LayerNorm over the last dimension, spelled out."""
        return self.hint == LAYER_NORM


@dataclasses.dataclass(frozen=True)
class Grouping:
    """How a gated norm of groups of features is made of one over all of them.

    Attributes:
        into: the Reshape that the gate and, where ``of_x``, X need first.
        back: the one that Y needs then; None where nothing has to follow.
        scale: the shape that the scale needs, or None where it is right as it is.
    """

    into: ir.Node
    back: ir.Node | None = None
    scale: tuple[int, ...] | None = None
    of_x: bool = True


@dataclasses.dataclass(frozen=True)
class Quantised:
    """How the result of a norm is quantised.

    Attributes:
        outputs: for each node that does it, the values that it gives: the quantised one and, where the scale is made of
            the range, scale and zero point. All nodes give the same.
        scale: the given scale, or None where it is made of the range.
        scale_dtype: its element type.
        zero_point: the given zero point; None for 0.
        dtype: element type of the quantised value.
        precision: that of the quotient.
        keeps_y: whether something else reads the result, too.
    """

    outputs: tuple[tuple[ir.Value, ...], ...] = ()
    scale: ir.Value | None = None
    scale_dtype: ir.DataType = ir.DataType.FLOAT
    zero_point: ir.Value | None = None
    dtype: ir.DataType = ir.DataType.UINT8
    precision: ir.DataType = ir.DataType.FLOAT
    keeps_y: bool = False


@dataclasses.dataclass(frozen=True)
class Match:
    """A norm that can be written as one operator.

    Attributes:
        site: where its reduction stands.
        parameters: operator and attributes.
        x: the value to normalise, of type ``parameters.output_type`` once ``cast_x`` is applied.
        output: the value that Y replaces.
        scale: the scale, or None for a norm without one.
        scale_dtype: element type of scale and bias; of x where there is neither.
        scale_rank: rank of the scale, where there is one.
        factor: a constant that multiplies the scale; 1.0 for nearly every norm.
        bias: the bias of a GeneralRMSNorm, or None.
        residual: the value added to ``x`` first (AddRMSNorm), or None.
        sum: the value that the second output replaces (AddRMSNorm), or None when the sum was never visible.
        size: number of elements in the normalised dimensions, where known.
        rank: rank of ``x``, where known.
        nodes: the nodes that the operator stands for, first to last.
        spelling: the alternatives of the grammar that were taken, joined by " > ".
        fewer_roundings: the original rounds more often (16-bit statistics); ours is closer to the exact value.
        cast_x: ``x`` is of another type and has to be cast to ``parameters.output_type`` first.
        add_outside: ``residual`` broadcasts, so that the addition stays a node of its own.
        same: values of the chain that nothing but noise separates from ``output``.
        general_because: why a plain norm has the operator GeneralRMSNorm; empty otherwise.
        notes: what a user should know about this site, one sentence each.
        references: parameters that are attributes of the function that the norm stands in, by name: every call gives
            its own number, and ``parameters`` has that of the first one.
        plain: the same norm with the addition in front of it, its gate, or what quantises it, left to nodes of
            its own; None where it takes in none of them.
        gate: what the activation of a GatedRMSNorm is applied to, or None.
        gate_dtype: its element type; None where nothing says so, which means that of ``x``.
        grouping: the Reshapes around a GatedRMSNorm; None where there are none.
        shapes: Shape nodes that read the product of ``x`` and the gate, which has ``x``'s shape.
        quantised: how the result is quantised by the same operator; None where it is not.
    """

    site: Site
    parameters: NormParameters
    x: ir.Value
    output: ir.Value
    scale: ir.Value | None = None
    scale_dtype: ir.DataType = ir.DataType.FLOAT
    scale_rank: int | None = None
    factor: float = 1.0
    bias: ir.Value | None = None
    residual: ir.Value | None = None
    sum: ir.Value | None = None
    size: int | None = None
    rank: int | None = None
    nodes: tuple[ir.Node, ...] = ()
    spelling: str = ""
    fewer_roundings: bool = False
    cast_x: bool = False
    add_outside: bool = False
    same: tuple[ir.Value, ...] = ()
    general_because: str = ""
    notes: tuple[str, ...] = ()
    references: Mapping[str, str] = dataclasses.field(default_factory=dict)
    plain: Match | None = None
    gate: ir.Value | None = None
    gate_dtype: ir.DataType | None = None
    grouping: Grouping | None = None
    shapes: tuple[ir.Node, ...] = ()
    quantised: Quantised | None = None

    @property
    def end(self) -> ir.Node:
        """The last node of the norm itself."""
        return self.nodes[-1] if self.quantised is None or self.plain is None else self.plain.end
