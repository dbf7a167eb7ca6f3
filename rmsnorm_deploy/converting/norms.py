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
from rmsnorm_deploy.recognise.inference import Shape
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.square import square_in_front, squared_by
from rmsnorm_deploy.recognise.variance import is_centred, is_variance

_EPSILON = 1e-5
_DOMAINS = (*AI_ONNX, "com.microsoft")
"""Where LayerNormalization is: onnxruntime writes its own into either."""
_SHAPING = ("Unsqueeze", "Squeeze", "Reshape", "Cast", "Identity")
_SQUARES = ("ReduceSumSquare", "ReduceL2", "Cast")


@dataclasses.dataclass(frozen=True)
class Norm:
    """One LayerNorm.

    Attributes:
        node: the operator, or the node that subtracts the mean.
        x: what is normalised, over its last axis.
        epsilon: of an operator.
        index: which input of the node that is.
        is_operator: whether it is one operator.
        mean: of one that is spelled out, the node that takes the mean.
        differences: where something is made of the mean and subtracted, the subtractions: of its square, where the
            variance is the mean square without it; of its scaled value, where the norm is x * s + (bias - mean * s).
        products: the nodes that compute such an x * s.
        scaled: those that compute mean * s.
    """

    node: ir.Node
    x: ir.Value
    epsilon: float = _EPSILON
    index: int = 0
    is_operator: bool = True
    mean: ir.Node | None = None
    differences: tuple[ir.Node, ...] = ()
    products: tuple[ir.Node, ...] = ()
    scaled: tuple[ir.Node, ...] = ()

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
    if dtype is None:
        raise Refusal("the type of what it normalises is not known")
    ranks = [facts.rank(v) for v in (x, *node.inputs[1:])]
    if any(r is not None and ranks[0] is not None and r > ranks[0] for r in ranks[1:]):
        raise Refusal("its scale or bias has more dimensions than x")
    if any(not _may_broadcast(facts.shape(v), facts.shape(x)) for v in node.inputs[1:]):
        raise Refusal("its scale or bias does not fit x")
    if any(v is not None and facts.dtype(v) not in (dtype, ir.DataType.FLOAT) for v in node.inputs):
        raise Refusal("its scale or bias is of another type than x")
    return Norm(node, x, epsilon)


def _may_broadcast(shape: Shape | None, into: Shape | None) -> bool:
    """Whether no dimension says that a value of ``shape``, of no higher rank, does not broadcast into ``into``."""
    if shape is None or into is None or not shape:
        return True
    pairs = zip(shape, into[-len(shape) :], strict=True)
    return not any(isinstance(a, int) and isinstance(b, int) and a not in (1, b) for a, b in pairs)


def _spelled_out(facts: Facts, node: ir.Node) -> Norm | None:
    """The subtraction of a mean over the last axis from what is then divided by the deviation."""
    if not is_op(node, "Sub", "Add") or len(node.inputs) != 2 or node.outputs[0].is_graph_output():
        return None
    if not is_centred(facts, node.outputs[0], [-1]):
        return None
    for index in (0, 1) if node.op_type == "Add" else (0,):
        x, given = node.inputs[index], node.inputs[1 - index]
        given = _negated(facts, given) if node.op_type == "Add" else given
        mean = None if given is None else _mean_behind(facts, given)
        if x is None or mean is None or not facts.same_shape(node.outputs[0], x):
            continue
        differences = tuple(_differences(facts, mean, x))
        readers = [n for n, _ in node.outputs[0].uses()]
        # of another power, such as 1, nothing but rounding may be left, which is not the same afterwards
        squares = [n for n in readers if is_op(n, *_SQUARES) or squared_by(facts, n) is not None]
        if differences or squares:
            shifts = list(_shifts(facts, mean, x))
            return Norm(
                *(node, x),
                index=index,
                is_operator=False,
                mean=mean,
                differences=(*differences, *(shift.subtraction for shift in shifts)),
                products=tuple(product for shift in shifts for product in shift.products),
                scaled=tuple(shift.scaled for shift in shifts),
            )
    return None


def _negated(facts: Facts, value: ir.Value | None) -> ir.Value | None:
    """What ``value`` is the negative of."""
    node = None if value is None else checks.strip(facts, value).producer()
    return node.inputs[0] if node is not None and is_op(node, "Neg") else None


def _differences(facts: Facts, mean: ir.Node, x: ir.Value) -> Iterator[ir.Node]:
    """Where the square of the mean is subtracted from the mean of the squares of ``x``."""
    for value in _shaped(mean.outputs[0]):
        for square, _ in value.uses():
            if squared_by(facts, square) is None:
                continue
            for node, index in square.outputs[0].uses():
                inside = is_op(node, "Sub") and index == 1 and not node.outputs[0].is_graph_output()
                first = node.inputs[0] if inside else None
                reduction = None if first is None else checks.strip(facts, first).producer()
                if reduction is None or not is_op(reduction, "ReduceMean") or reduction.inputs[0] is None:
                    continue
                inner = square_in_front(facts, reduction.inputs[0])
                if (
                    inner is not None
                    and facts.same(inner.value, checks.strip(facts, x))
                    and is_variance(facts, reduction)
                ):
                    yield node


@dataclasses.dataclass(frozen=True)
class _Shift:
    """A bias - mean * s that is added to x * s."""

    subtraction: ir.Node
    scaled: ir.Node
    products: tuple[ir.Node, ...]


def _shifts(facts: Facts, mean: ir.Node, x: ir.Value) -> Iterator[_Shift]:
    """Where the scaled mean is taken from a bias, which is then added to ``x`` times the same scale."""
    for value in _shaped(mean.outputs[0]):
        for scaled, place in value.uses():
            uses = list(scaled.outputs[0].uses()) if is_op(scaled, "Mul") and scaled.outputs else []
            if len(uses) != 1 or uses[0][1] != 1 or not is_op(uses[0][0], "Sub") or scaled.outputs[0].is_graph_output():
                continue
            subtraction, scale = uses[0][0], scaled.inputs[1 - place]
            if subtraction.outputs[0].is_graph_output() or not facts.is_constant_expression(subtraction.inputs[0]):
                continue
            sums = list(subtraction.outputs[0].uses())
            others = [node.inputs[1 - index] for node, index in sums if is_op(node, "Add")]
            products = [None if other is None else other.producer() for other in others]
            found = tuple(p for p in products if p is not None and _is_product_of(facts, p, x, scale))
            if found and len(found) == len(sums):
                yield _Shift(subtraction, scaled, found)


def _is_product_of(facts: Facts, node: ir.Node, x: ir.Value, scale: ir.Value | None) -> bool:
    """Whether a node multiplies ``x`` by ``scale`` for one reader alone."""
    output = node.outputs[0]
    if not is_op(node, "Mul") or len(output.uses()) != 1 or output.is_graph_output():
        return False
    pairs = (tuple(node.inputs), tuple(node.inputs)[::-1])
    return any(a is x and facts.same(b, scale) for a, b in pairs)


def _shaped(value: ir.Value) -> Iterator[ir.Value]:
    """``value``, and the same numbers in other shapes."""
    yield value
    for node, index in value.uses():
        if is_op(node, *_SHAPING) and index == 0:
            yield from _shaped(node.outputs[0])


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


def helpers_of(facts: Facts, norms: Iterable[Norm]) -> frozenset[ir.Node]:
    """The nodes that read what is normalised for these norms alone: they take means, squares and means of those."""
    norms = [norm for norm in norms if not norm.is_operator]
    ends = {norm.node for norm in norms} | {d for norm in norms for d in (*norm.differences, *norm.scaled)}
    found: set[ir.Node] = set()
    for norm in norms:
        starts = [n for n, _ in norm.x.uses() if n is norm.mean or squared_by(facts, n) is not None]
        found.update(node for node in starts if norm.differences or node is norm.mean)
        if norm.mean is not None:
            found.add(norm.mean)
    kept = {node for node in found if all(end in ends for end in _ends(facts, node))}
    return frozenset(kept.union(product for norm in norms for product in norm.products))


def _ends(facts: Facts, node: ir.Node) -> Iterator[ir.Node]:
    """What becomes of a mean, or of a square: the nodes that put it together with something else."""
    for output in node.outputs:
        if output.is_graph_output():
            yield node  # a reader of no kind that is known
        for reader, index in output.uses():
            passes = is_op(reader, *_SHAPING, "Neg", "ReduceMean") and index == 0
            if passes or squared_by(facts, reader) is not None:
                yield from _ends(facts, reader)
            else:
                yield reader
