"""The LayerNorms of a graph: operators, and those spelled out in others.

Of one that is spelled out only the part is looked at in which the mean is subtracted: whatever is made of the rest, it
is the same for a value that has no mean.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from rmsnorm_deploy.model.graphs import AI_ONNX
from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.facts import Facts, int_attribute, is_op
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.variance import is_centred

_EPSILON = 1e-5
_DOMAINS = (*AI_ONNX, "com.microsoft")
"""Where LayerNormalization is: onnxruntime writes its own into either."""
_SHAPING = ("Unsqueeze", "Squeeze", "Reshape", "Cast", "Identity")
_SQUARES = ("Pow", "Mul", "ReduceSumSquare", "ReduceL2")


@dataclasses.dataclass(frozen=True)
class Norm:
    """One LayerNorm.

    Attributes:
        node: the operator, or the node that subtracts the mean.
        x: what is normalised, over its last axis.
        epsilon: of an operator.
        is_operator: whether it is one operator.
        mean: of one that is spelled out, the node that takes the mean.
    """

    node: ir.Node
    x: ir.Value
    epsilon: float = _EPSILON
    is_operator: bool = True
    mean: ir.Node | None = None

    @property
    def output(self) -> ir.Value:
        """Of the node."""
        return self.node.outputs[0]

    @property
    def scale(self) -> ir.Value | None:
        """Of an operator."""
        return self.node.inputs[1] if len(self.node.inputs) > 1 else None

    @property
    def bias(self) -> ir.Value | None:
        """Of an operator."""
        return self.node.inputs[2] if len(self.node.inputs) > 2 else None


@dataclasses.dataclass(frozen=True)
class NoNorm:
    """A LayerNorm that no stream is read by.

    Attributes:
        node: the operator.
        reason: why, in one sentence without a full stop.
    """

    node: ir.Node
    reason: str


def norms_of(facts: Facts, nodes: Iterable[ir.Node]) -> tuple[list[Norm], list[NoNorm]]:
    """The LayerNorms among ``nodes`` that an RMSNorm could stand for, and the operators that it could not."""
    found: list[Norm] = []
    others: list[NoNorm] = []
    for node in nodes:
        try:
            norm = _operator(facts, node) or _spelled_out(facts, node)
        except Refusal as refusal:
            others.append(NoNorm(node, refusal.reason))
        else:
            if norm is not None:
                found.append(norm)
    return found, others


def _operator(facts: Facts, node: ir.Node) -> Norm | None:
    if node.op_type != "LayerNormalization" or node.domain not in _DOMAINS:
        return None
    x = node.inputs[0] if node.inputs else None
    if x is None or len(node.inputs) < 2 or node.inputs[1] is None:
        raise Refusal("it has no scale")
    axis, rank = int_attribute(facts, node, "axis", -1), facts.rank(x)
    if axis != -1 and (rank is None or axis != rank - 1):
        raise Refusal("it normalises more than the last dimension")
    if any(o.uses() or o.is_graph_output() for o in node.outputs[1:]):
        raise Refusal("its mean or its deviation is read, too")
    attribute = facts.attribute(node, "epsilon")
    if attribute is not None and attribute.is_ref():
        raise Refusal("epsilon is an attribute of the function that holds it")
    epsilon = _EPSILON if attribute is None else float(attribute.value)
    if not 0.0 <= epsilon < math.inf:
        raise Refusal("epsilon is negative or not finite")
    dtype = facts.dtype(x)
    if any(v is not None and facts.dtype(v) not in (dtype, ir.DataType.FLOAT) for v in node.inputs):
        raise Refusal("its scale or bias is of another type than x")
    return Norm(node, x, epsilon)


def _spelled_out(facts: Facts, node: ir.Node) -> Norm | None:
    """The subtraction of a mean over the last axis whose result is squared, and so on."""
    if not is_op(node, "Sub") or len(node.inputs) != 2 or node.inputs[0] is None or node.inputs[1] is None:
        return None
    x = node.inputs[0]
    if not is_centred(facts, node.outputs[0], [-1]):
        return None
    mean = _mean_behind(facts, node.inputs[1])
    if mean is None or not facts.same_shape(node.outputs[0], x):
        return None
    squares = [n for n, _ in node.outputs[0].uses() if is_op(n, *_SQUARES, "Cast")]
    return Norm(node, x, is_operator=False, mean=mean) if squares else None


def _mean_behind(facts: Facts, value: ir.Value) -> ir.Node | None:
    """The one ReduceMean that a mean comes from."""
    for _ in range(8):
        node = checks.strip(facts, value).producer()
        if is_op(node, "ReduceMean"):
            return node
        if node is None or not is_op(node, *_SHAPING) or node.inputs[0] is None:
            return None
        value = node.inputs[0]
    return None


def means_read_by(norms: Iterable[Norm]) -> frozenset[ir.Node]:
    """The nodes that take means for these norms and for nothing else."""
    subtracting = {norm.node for norm in norms if not norm.is_operator}
    means = {norm.mean for norm in norms if norm.mean is not None}
    return frozenset(mean for mean in means if all(_only_for(node, subtracting) for node in _readers(mean)))


def _readers(node: ir.Node) -> Iterator[ir.Node]:
    for output in node.outputs:
        if output.is_graph_output():
            yield node  # a reader of no kind that is known
        for reader, index in output.uses():
            if is_op(reader, *_SHAPING) and index == 0:
                yield from _readers(reader)
            else:
                yield reader


def _only_for(node: ir.Node, subtracting: set[ir.Node]) -> bool:
    return node in subtracting
