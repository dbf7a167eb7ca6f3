"""The activation of a gate: sigmoid or SiLU, however it is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from rmsnorm_deploy.op import SIGMOID, SILU, SIXTEEN_BIT
from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.facts import Facts, is_op


@dataclasses.dataclass(frozen=True)
class Activated:
    """A value that is an activated gate.

    Attributes:
        gates: the gate, and the same before Casts that lose nothing: the narrowest is the last.
        activation: SIGMOID or SILU.
        nodes: the nodes between the gate and the value, first to last.
        coarse: whether any of them rounds to 16 bits.
    """

    gates: tuple[ir.Value, ...]
    activation: int
    nodes: tuple[ir.Node, ...]
    coarse: bool

    def gate(self, facts: Facts, dtype: ir.DataType) -> ir.Value | None:
        """The gate in the type ``dtype`` or, else, in float32; None where it is of neither."""
        for wanted in (dtype, ir.DataType.FLOAT):
            for value in reversed(self.gates):
                if facts.dtype(value) == wanted:
                    return value
        return None


def activated(facts: Facts, value: ir.Value | None, narrowed: bool = False) -> Activated | None:
    """``value`` as an activated gate; None where it is none. ``narrowed``: a Cast to 16 bits was met behind it."""
    if value is None:
        return None
    chain = list(checks.widened(facts, value))
    node = chain[-1].producer()
    if node is None or chain[-1].index() != 0:
        return None
    if not narrowed and is_op(node, "Cast") and facts.dtype(node.outputs[0]) in SIXTEEN_BIT:
        found = activated(facts, node.inputs[0], narrowed=True)
        found = None if found is None else dataclasses.replace(found, nodes=(*found.nodes, node))
    else:
        found = _found(facts, node)
    if found is None:
        return None
    passed = tuple(p for v in reversed(chain[:-1]) if (p := v.producer()) is not None)
    coarse = found.coarse or any(facts.dtype(n.outputs[0]) in SIXTEEN_BIT for n in found.nodes)
    return dataclasses.replace(found, nodes=(*found.nodes, *passed), coarse=coarse)


def _found(facts: Facts, node: ir.Node) -> Activated | None:
    return _contrib(facts, node) or _swish(facts, node) or _product(facts, node) or _sigmoid(facts, node)


def _of(facts: Facts, gate: ir.Value, activation: int, *nodes: ir.Node) -> Activated:
    return Activated(tuple(checks.widened(facts, gate)), activation, nodes, coarse=False)


def _contrib(facts: Facts, node: ir.Node) -> Activated | None:
    """Onnxruntime's QuickGelu, z * sigmoid(alpha * z), whose alpha is 1.702 where it is left out."""
    if (node.domain, node.op_type) != ("com.microsoft", "QuickGelu") or node.inputs[0] is None:
        return None
    alpha = facts.attribute(node, "alpha")
    is_one = alpha is not None and not alpha.is_ref() and alpha.value == 1.0
    return _of(facts, node.inputs[0], SILU, node) if is_one else None


def _swish(facts: Facts, node: ir.Node) -> Activated | None:
    """Z * sigmoid(alpha * z), of opset 24."""
    if not is_op(node, "Swish") or node.inputs[0] is None:
        return None
    alpha = facts.attribute(node, "alpha")
    is_one = alpha is None or (not alpha.is_ref() and alpha.value == 1.0)
    return _of(facts, node.inputs[0], SILU, node) if is_one else None


def _product(facts: Facts, node: ir.Node) -> Activated | None:
    """Z * sigmoid(z)."""
    if not is_op(node, "Mul"):
        return None
    for gate, other in _pairs(node):
        found = activated(facts, other) if _may_be_sigmoid(facts, other) else None
        if found is not None and found.activation == SIGMOID and _one_value(facts, found, gate):
            return dataclasses.replace(found, activation=SILU, nodes=(*found.nodes, node))
    return None


def _may_be_sigmoid(facts: Facts, value: ir.Value) -> bool:
    """Whether it is worth a look: a product of products would be looked at again and again."""
    return is_op(checks.strip(facts, value).producer(), "Sigmoid", "Reciprocal", "Div")


def _sigmoid(facts: Facts, node: ir.Node) -> Activated | None:
    """Sigmoid, or 1 / (1 + exp(-z)); and z / (1 + exp(-z)), which is SiLU."""
    if is_op(node, "Sigmoid") and node.inputs[0] is not None:
        return _of(facts, node.inputs[0], SIGMOID, node)
    if is_op(node, "Reciprocal"):
        return _below(facts, node.inputs[0], node)
    if not is_op(node, "Div") or len(node.inputs) != 2 or node.inputs[0] is None:
        return None
    found = _below(facts, node.inputs[1], node)
    if found is None:
        return None
    if facts.scalar(node.inputs[0]) == 1.0 and checks.is_small_shape(facts, node.inputs[0], node.outputs[0]):
        return found
    return dataclasses.replace(found, activation=SILU) if _one_value(facts, found, node.inputs[0]) else None


def _below(facts: Facts, value: ir.Value | None, last: ir.Node) -> Activated | None:
    """1 + exp(-z), as the sigmoid of z that ``last`` makes of it."""
    add = None if value is None else value.producer()
    if add is None or not is_op(add, "Add"):
        return None
    for one, other in _pairs(add):
        exp = other.producer()
        if facts.scalar(one) != 1.0 or exp is None or not is_op(exp, "Exp"):
            continue
        negated = exp.inputs[0]
        minus = None if negated is None else negated.producer()
        gate = None if minus is None else _negated(facts, minus)
        if minus is not None and gate is not None:
            return _of(facts, gate, SIGMOID, minus, exp, add, last)
    return None


def _negated(facts: Facts, node: ir.Node) -> ir.Value | None:
    """z, where ``node`` gives -z."""
    if is_op(node, "Neg"):
        return node.inputs[0]
    if is_op(node, "Mul"):
        return next((gate for gate, factor in _pairs(node) if facts.scalar(factor) == -1.0), None)
    if is_op(node, "Div") and facts.scalar(node.inputs[1]) == -1.0:
        return node.inputs[0]
    return node.inputs[1] if is_op(node, "Sub") and facts.scalar(node.inputs[0]) == 0.0 else None


def _one_value(facts: Facts, found: Activated, value: ir.Value) -> bool:
    """Whether ``value`` is the gate of ``found``, apart from Casts that lose nothing."""
    return facts.same(checks.strip(facts, value), found.gates[-1])


def _pairs(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Both operands, in both orders."""
    if len(node.inputs) == 2:
        left, right = node.inputs
        if left is not None and right is not None:
            yield left, right
            yield right, left
