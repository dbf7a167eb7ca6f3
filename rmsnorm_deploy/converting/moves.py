"""How a feature axis goes through operators that act on each feature alike.

Taking the mean over the features away from a value is a linear map. It may be done in front of an operator instead of
behind it where the operator adds, moves, or multiplies by what does not vary along the features. One function for each
operator says which inputs have to be centred, and along which axis, for its output to be.

Axes count from the end. One that is beyond an input's rank means that the input is the same for all features.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from rmsnorm_deploy.converting import moving, products
from rmsnorm_deploy.converting.at import At, Parts
from rmsnorm_deploy.model.graphs import AI_ONNX
from rmsnorm_deploy.recognise.facts import Facts
from rmsnorm_deploy.recognise.refusal import Refusal

_MOVES: dict[str, Callable[[At], Parts]] = {
    **dict.fromkeys(("Add", "Sub", "Sum", "Mean"), moving.all_parts),
    **dict.fromkeys(("Neg", "Identity", "Expand"), moving.first),
    "Dropout": moving.dropout,
    **dict.fromkeys(("Cast", "CastLike"), moving.cast),
    **dict.fromkeys(("Mul", "Div"), moving.product),
    "Where": moving.where,
    "Transpose": moving.transpose,
    **dict.fromkeys(("Reshape", "Flatten"), moving.reshape),
    "Squeeze": moving.squeeze,
    "Unsqueeze": moving.unsqueeze,
    "Concat": moving.concat,
    "Slice": moving.slice_parts,
    "Split": moving.split,
    "Gather": moving.gather,
    "Tile": moving.tile,
    "Pad": moving.pad,
    "Resize": moving.resize,
    **dict.fromkeys(("ReduceMean", "ReduceSum"), moving.mean),
    **dict.fromkeys(("GlobalAveragePool", "AveragePool"), moving.pool),
    "MatMul": products.matmul,
    "Gemm": products.gemm,
    **dict.fromkeys(("Conv", "ConvTranspose"), products.conv),
}


def behind(facts: Facts, node: ir.Node, index: int, axis: int) -> Parts:
    """The inputs of ``node`` that have to be centred for its output ``index`` to be centred along ``axis``.

    Raises:
        Refusal: centring cannot be done in front of this operator.
    """
    if node.domain not in AI_ONNX:
        raise Refusal(f"{node.domain}::{node.op_type} does more than add and move")
    move = _MOVES.get(node.op_type)
    if move is None:
        raise Refusal(f"{node.op_type} does more than add and move")
    if any(a.is_ref() for a in node.attributes.values()):
        raise Refusal("its attributes are those of the function that it stands in")
    try:
        return move(At(facts, node, index, axis))
    except (IndexError, ValueError, TypeError) as error:
        raise Refusal("it is not valid") from error


def ahead(facts: Facts, node: ir.Node, index: int, axis: int) -> list[tuple[int, int]]:
    """The outputs of ``node`` that are centred if its input ``index`` is along ``axis``, each with its own axis.

    The other inputs that :func:`behind` names have to be centred, too. None where some output is not.
    """
    found = []
    for i, output in enumerate(node.outputs):
        if not (output.uses() or output.is_graph_output()):
            continue
        rank = facts.rank(output)
        axes = [axis] if rank is None else [axis, *(a for a in range(-1, -rank - 1, -1) if a != axis)]
        for candidate in axes:
            try:
                parts = behind(facts, node, i, candidate)
            except Refusal:
                continue
            if any((p.index, p.axis, p.scale, p.is_weight) == (index, axis, None, False) for p in parts):
                found.append((i, candidate))
                break
        else:
            return []
    return found
