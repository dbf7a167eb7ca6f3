"""Variances: what LayerNormalization, InstanceNormalization and their like measure, and an RMSNorm does not.

They are made of the same operators as a mean square. Onnxruntime and others have operators for what they end in, so
nobody expects to find them among norms.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.facts import Facts, is_op
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.square import square_in_front, squared_by

LAYER_NORMS = ("LayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization")
"""The operators that are a LayerNorm; the last two are onnxruntime's, and so may the first be."""

_MAX_NODES = 16
"""Most nodes between a reduction and what makes it a mean or a variance."""
_SHAPING = ("Unsqueeze", "Squeeze", "Reshape", "Expand", "Cast", "Identity")


def is_variance(facts: Facts, node: ir.Node) -> bool:
    """Whether the reduction ``node`` is the mean square of a centred value, or is followed by the mean's square."""
    value = node.inputs[0] if node.inputs else None
    if value is None or not node.outputs:
        return False
    square = square_in_front(facts, value)
    base = checks.strip(facts, value if square is None else square.value)
    axes = _axes(facts, node)
    return is_centred(facts, base, axes) or _loses_square_of_mean(facts, node.outputs[0], base, axes)


def is_centred(facts: Facts, value: ir.Value, axes: Sequence[int] | None) -> bool:
    """Whether ``value`` is y - mean(y) over these axes: then the whole is a LayerNormalization, not ours to take."""
    node = checks.strip(facts, value).producer()
    if not is_op(node, "Sub", "Add") or node is None or len(node.inputs) != 2:
        return False
    whole, mean = node.inputs
    pairs = [(whole, mean)]
    if node.op_type == "Add":
        negated = [(w, m, None if m is None else m.producer()) for w, m in ((whole, mean), (mean, whole))]
        pairs = [(w, n.inputs[0]) for w, _, n in negated if is_op(n, "Neg") and n is not None]
    return any(w is not None and _is_mean_of(facts, m, w, axes) for w, m in pairs)


def _loses_square_of_mean(facts: Facts, value: ir.Value, base: ir.Value, axes: Sequence[int] | None) -> bool:
    """Whether the square of the mean is subtracted from the mean square."""
    for _ in range(_MAX_NODES):
        uses = [(node, index) for node, index in value.uses() if node.outputs]
        for node, index in uses:
            other = node.inputs[1] if is_op(node, "Sub") and len(node.inputs) == 2 and index == 0 else None
            producer = None if other is None else checks.strip(facts, other).producer()
            squared = None if producer is None else squared_by(facts, producer)
            if squared is not None and _is_mean_of(facts, squared.value, base, axes):
                return True
        onward = [node for node, index in uses if index == 0 and is_op(node, *_SHAPING, "Div", "Mul")]
        if not onward:
            return False
        value = onward[0].outputs[0]
    return False


def _is_mean_of(facts: Facts, mean: ir.Value | None, value: ir.Value, axes: Sequence[int] | None) -> bool:
    """Whether ``mean`` is the mean of ``value`` over these axes, of whatever shape."""
    for _ in range(_MAX_NODES):
        node = None if mean is None else checks.strip(facts, mean).producer()
        if node is None or not node.inputs or node.inputs[0] is None:
            return False
        if is_op(node, "ReduceMean", "ReduceSum", "GlobalAveragePool"):
            if not facts.same(checks.strip(facts, node.inputs[0]), checks.strip(facts, value)):
                return False
            return axes is not None and _placed(facts, value, axes) == _placed(facts, value, _axes(facts, node))
        if is_op(node, "Mul", "Div"):  # a sum times or divided by a number
            sums = [v for v in node.inputs if v is not None and facts.constant(v) is None]
            mean = next((v for v in sums if facts.sizes.scalar(v) is None), None)
        elif is_op(node, *_SHAPING):
            mean = node.inputs[0]
        else:
            return False
    return False


def _axes(facts: Facts, node: ir.Node) -> Sequence[int] | None:
    """The reduced dimensions, or None where they are not known; they need not be next to each other."""
    rank = facts.rank(node.inputs[0])
    if is_op(node, "GlobalAveragePool"):
        return None if rank is None else range(2, rank)
    if is_op(node, "LpNormalization", "Einsum"):
        return [-1]
    try:
        axes = checks.given_axes(facts, node)
    except Refusal:
        return None
    return axes or (None if rank is None else range(rank))


def _placed(facts: Facts, value: ir.Value, axes: Sequence[int] | None) -> frozenset[int] | None:
    rank = facts.rank(value)
    return None if axes is None else frozenset(a % rank if rank else a for a in axes)
