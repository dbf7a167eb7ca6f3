"""The square: what a reduction reduces, seen from the reduction upwards."""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from rmsnorm_deploy.op import FLOAT_TYPES
from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.facts import Facts, is_op
from rmsnorm_deploy.recognise.magnitude import magnitude

_MAX_NODES = 16
"""Most Casts and other noise between the square and the reduction."""


@dataclasses.dataclass(frozen=True)
class Square:
    """What a reduction reduces.

    Attributes:
        value: the squared value, in front of what only changes its sign.
        nodes: the nodes from the square on, the reduction excepted.
        label: how the square is written, as reports name it.
        signs: the nodes between ``value`` and the square: Abs and Neg, and Casts that lose nothing.
        epsilon: added to the square before the mean is taken.
    """

    value: ir.Value
    nodes: tuple[ir.Node, ...]
    label: str
    signs: tuple[ir.Node, ...] = ()
    epsilon: float = 0.0


def square_of(facts: Facts, left: ir.Value, right: ir.Value, nodes: tuple[ir.Node, ...], label: str) -> Square | None:
    """The square that the product of these two values is, or None where it is none."""
    value = magnitude(facts, left)
    other = value if right is left else magnitude(facts, right)
    if not facts.same(value.root, other.root) or value.sign != other.sign:
        return None
    if not value.nodes:
        return Square(left, nodes, label)
    signs = [n.op_type for n in value.nodes if n.op_type in ("Abs", "Neg")]
    return Square(value.root, nodes, " > ".join((*signs, label)), value.nodes)


def square_in_front(facts: Facts, value: ir.Value) -> Square | None:
    """The square that ``value`` is, or None."""
    nodes: list[ir.Node] = []
    epsilon = 0.0
    for _ in range(_MAX_NODES):
        node = value.producer()
        if node is None:
            return None
        found = squared_by(facts, node)
        if found is not None:
            return dataclasses.replace(found, nodes=(*found.nodes, *nodes), epsilon=epsilon)
        following, added = _before(facts, node)
        if following is None:
            return None
        nodes.insert(0, node)
        value, epsilon = following, epsilon + added
    return None


def squared_by(facts: Facts, node: ir.Node) -> Square | None:
    """The square that ``node`` computes, or None."""
    left = node.inputs[0] if node.inputs else None
    if left is None or len(node.inputs) != 2:
        return None
    right = node.inputs[1]
    if is_op(node, "Pow") and right is not None and _is_two(facts, right, left):
        return square_of(facts, left, left, (node,), "Pow(x,2)")
    if is_op(node, "Mul") and right is not None:
        return square_of(facts, left, right, (node,), "Mul(x,x)")
    return None


def _is_two(facts: Facts, exponent: ir.Value, base: ir.Value) -> bool:
    """Whether a power with this exponent is the square of ``base``, in ``base``'s shape."""
    if not checks.exponent_is(facts, exponent, 2.0):
        return False
    if facts.rank(exponent) == 0 or facts.broadcasts_into(exponent, base):
        return True
    constant = facts.constant(exponent)
    return constant is not None and constant.size == 1 and checks.is_small_shape(facts, exponent, base)


def _before(facts: Facts, node: ir.Node) -> tuple[ir.Value | None, float]:
    """The value that ``node`` hands on to a reduction, and a constant that it adds; no value where it does more."""
    if is_op(node, "Add") and len(node.inputs) == 2:
        # the mean of x^2 + epsilon is the mean square plus epsilon
        for value, other in (node.inputs, node.inputs[::-1]):
            number = None if other is None or other.is_graph_input() else facts.scalar(other)
            if (
                value is not None
                and number is not None
                and 0 <= number < math.inf
                and checks.is_small_shape(facts, other, value)
            ):
                return value, number
    index = next((i for i in range(len(node.inputs)) if checks.passes_unchanged(facts, node, i)), None)
    if index is None and is_op(node, "Cast") and facts.dtype(node.inputs[0]) in (None, *FLOAT_TYPES):
        index = 0
    if is_op(node, "Abs"):
        index = 0  # neither a square nor its sum with an epsilon is negative
    return (None if index is None else node.inputs[index]), 0.0
