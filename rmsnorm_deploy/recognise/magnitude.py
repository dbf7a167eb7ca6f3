"""The magnitude of a value: what it is but for its sign, which a square does not see."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rmsnorm_deploy.op import FLOAT_TYPES
from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.facts import Facts, is_op

_MAX_NODES = 32
"""Longest chain of Casts, Abs and Neg that is followed."""


@dataclasses.dataclass(frozen=True)
class Magnitude:
    """A value as another one with its sign changed.

    Attributes:
        root: the other value, in front of Abs, Neg and Casts that lose nothing of it.
        absolute: the sign is dropped.
        negative: it is turned over, after that.
        nodes: the nodes behind ``root``; none where nothing but ``checks.strip`` leads to it.
    """

    root: ir.Value
    absolute: bool = False
    negative: bool = False
    nodes: tuple[ir.Node, ...] = ()

    @property
    def sign(self) -> tuple[bool, bool]:
        """What is done to the sign of ``root``: values of one root and one sign are equal."""
        return self.absolute, self.negative


def magnitude(facts: Facts, value: ir.Value) -> Magnitude:
    """The deepest value whose magnitude ``value`` has.

    A Cast may narrow, too, where all numbers of the root's type go through unchanged.
    """
    value = checks.strip(facts, value)
    found = Magnitude(value)
    absolute = negative = False
    through: list[ir.DataType | None] = []
    nodes: list[ir.Node] = []
    for _ in range(_MAX_NODES):
        node = value.producer()
        if not is_op(node, "Abs", "Neg", "Cast", "CastLike") or node is None or node.inputs[0] is None:
            break
        if is_op(node, "Abs"):
            absolute = True
        elif is_op(node, "Neg"):
            negative ^= not absolute
        else:
            through.append(facts.dtype(value))
        behind = checks.strip(facts, node.inputs[0])
        # what strip passed widens, so that only the types at which it began can be too narrow
        through.append(facts.dtype(node.inputs[0]))
        nodes.insert(0, node)
        value, dtype = behind, facts.dtype(behind)
        if dtype is None or dtype not in FLOAT_TYPES:
            break
        if all(t is not None and checks.loses_nothing(dtype, t) for t in through):
            found = Magnitude(value, absolute, negative, tuple(nodes))
    return found
