"""A node that is asked for one of its outputs, and the inputs that have to be centred for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from rmsnorm_deploy.recognise.facts import Facts, int_attribute
from rmsnorm_deploy.recognise.refusal import Refusal


@dataclasses.dataclass(frozen=True)
class Part:
    """An input that has to be centred for the output to be centred.

    Attributes:
        index: which input.
        axis: its feature axis, counted from the end.
        is_weight: it is what a product multiplies by, not a part of the sum.
        scale: the constant that multiplies each feature of it; None without one.
    """

    index: int
    axis: int
    is_weight: bool = False
    scale: ir.Value | None = None


Parts = Sequence[Part]


@dataclasses.dataclass(frozen=True)
class At:
    """A node, asked for its output ``index``, whose feature axis is ``axis``."""

    facts: Facts
    node: ir.Node
    index: int
    axis: int

    def value(self, index: int) -> ir.Value | None:
        """An input; None where it is left out."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def rank(self, index: int) -> int:
        """Of an input.

        Raises:
            Refusal: it is not known.
        """
        rank = self.facts.rank(self.value(index))
        if rank is None:
            raise Refusal("the rank of its input is not known")
        return rank

    @property
    def out_rank(self) -> int:
        """Of the output.

        Raises:
            Refusal: it is not known.
        """
        rank = self.facts.rank(self.node.outputs[self.index])
        if rank is None:
            raise Refusal("the rank of its output is not known")
        return rank

    def flat(self, index: int) -> bool:
        """Whether an input is provably the same for all features."""
        shape = self.facts.shape(self.value(index))
        return shape is not None and (-self.axis > len(shape) or shape[self.axis] == 1)

    def integers(self, index: int, name: str) -> list[int] | None:
        """Constant integers from an input or the attribute ``name``; None where there are none.

        Raises:
            Refusal: they are not constant.
        """
        attribute = self.facts.attribute(self.node, name)
        if attribute is not None and not attribute.is_ref():
            given = attribute.value
            return [int(v) for v in (given if isinstance(given, (list, tuple)) else [given])]
        value = self.value(index)
        if value is None:
            return None
        constant = None if value.is_graph_input() else self.facts.constant(value)
        if constant is None:
            raise Refusal(f"'{value.name}' is not constant")
        return [int(v) for v in constant.reshape(-1)]

    def attribute(self, name: str, default: int) -> int:
        """An integer attribute, or its default."""
        return int_attribute(self.facts, self.node, name, default)
