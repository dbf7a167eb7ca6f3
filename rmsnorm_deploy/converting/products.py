"""Products with weights, one function for each operator: the weights are centred over the outputs.

Each says which inputs have to be centred for the output to be, or raises Refusal.
"""

from __future__ import annotations

from rmsnorm_deploy.converting.at import At, Part, Parts
from rmsnorm_deploy.recognise.refusal import Refusal


def matmul(at: At) -> Parts:
    """The matrix is centred over its columns; one on the left over its rows."""
    if at.axis == -1 and at.rank(1) > 1:
        return [Part(1, -1, is_weight=True)]
    if at.axis == -2 and at.rank(0) > 1 and at.rank(1) > 1:
        return [Part(0, -2, is_weight=True)]
    raise Refusal("its features are a batch of products")


def gemm(at: At) -> Parts:
    """The matrix and the bias are."""
    of_columns = at.axis == -1
    matrix = Part(1, -2 if at.attribute("transB", 0) else -1, is_weight=True)
    if not of_columns:
        matrix = Part(0, -1 if at.attribute("transA", 0) else -2, is_weight=True)
    return [matrix] if at.value(2) is None else [matrix, Part(2, at.axis)]


def conv(at: At) -> Parts:
    """The kernels are centred over their outputs, and the bias is."""
    rank = at.rank(1)
    if at.attribute("group", 1) != 1:
        raise Refusal("each group of its outputs has inputs of its own")
    if at.out_rank + at.axis != 1:
        raise Refusal("the features are not its channels")
    axis = -rank if at.node.op_type == "Conv" else 1 - rank
    weight = Part(1, axis, is_weight=True)
    return [weight] if at.value(2) is None else [weight, Part(2, -1)]
