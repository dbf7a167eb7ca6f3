"""The bias behind a LayerNorm, folded into the products that read it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from rmsnorm_deploy.converting.centring import Array
from rmsnorm_deploy.converting.moves import ahead
from rmsnorm_deploy.converting.norms import Norm
from rmsnorm_deploy.converting.writers import is_leaf, tensor_of, vector_behind
from rmsnorm_deploy.recognise.facts import Facts, int_attribute, is_op
from rmsnorm_deploy.recognise.refusal import Refusal

_MOVING = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "Split")
"""What hands a bias on to each of the products behind it."""
_BLOCK = 2**20
"""Elements of a matrix that are in float64 at a time."""


@dataclasses.dataclass(frozen=True)
class Product:
    """A product with a constant matrix whose result gets a constant bias.

    Attributes:
        node: the product.
        matrix: its leaf.
        transposed: whether the features are the matrix's columns.
        holder: the node that adds the bias.
        index: which input of it the bias is.
    """

    node: ir.Node
    matrix: ir.Value
    transposed: bool
    holder: ir.Node
    index: int

    @property
    def bias(self) -> ir.Value:
        """What is added."""
        value = self.holder.inputs[self.index]
        assert value is not None
        return value

    def new_bias(self, vector: Array, bias: Array, matrix: Array) -> Array:
        """The bias, and with it what the product makes of ``vector``, which is added in front of it; in float64."""
        weights = matrix.T if self.transposed else matrix
        step = max(1, _BLOCK // max(1, weights.shape[1]))
        more = np.zeros(weights.shape[1])
        for start in range(0, len(weights), step):
            part = slice(start, start + step)
            more += vector[part].astype(np.float64) @ weights[part].astype(np.float64)
        old = bias.astype(np.float64)
        return np.asarray(old + more.reshape(old.shape))


def products_behind(facts: Facts, norm: Norm, edited: Collection[ir.Value]) -> list[Product] | None:
    """The products that a LayerNorm's bias can be folded into: all readers of the norm; None where one is none.

    Args:
        facts: what is known of the model, before it is changed.
        norm: an operator with a bias.
        edited: constants that are changed otherwise.
    """
    vector = None if norm.bias is None else vector_behind(norm.bias)
    if vector is None or len(facts.shape(vector) or ()) != 1 or facts.shape(vector) == (1,):
        return None
    found = _readers(facts, norm.output, edited, facts.shape(vector) or ())
    holders = [(p.holder, p.index) for p in found or ()]
    return found if found and len(set(holders)) == len(holders) else None


def _readers(
    facts: Facts, value: ir.Value, edited: Collection[ir.Value], features: tuple[object, ...]
) -> list[Product] | None:
    if value.is_graph_output():
        return None
    found: list[Product] = []
    for node, index in value.uses():
        if is_op(node, "Shape", "Size"):
            continue
        inner: list[Product] | None
        if is_op(node, *_MOVING) and index == 0:
            outputs = ahead(facts, node, 0, -1)
            if not outputs or any(axis != -1 for _, axis in outputs):
                return None
            inner = []
            for i, _ in outputs:
                more = _readers(facts, node.outputs[i], edited, features)
                if more is None:
                    return None
                inner += more
        else:
            try:
                product = _product(facts, node, index, edited, features)
            except Refusal:
                product = None
            inner = None if product is None else [product]
        if inner is None:
            return None
        found += inner
    return found


def _product(
    facts: Facts, node: ir.Node, index: int, edited: Collection[ir.Value], features: tuple[object, ...]
) -> Product | None:
    if index != 0 or not is_op(node, "MatMul", "Gemm"):
        return None
    matrix, turned = _matrix_behind(facts, node.inputs[1])
    if matrix is None or matrix in edited:
        return None
    if node.op_type == "Gemm":
        numbers = [node.attributes.get(name) for name in ("alpha", "beta")]
        if any(a is not None and (a.is_ref() or a.value != 1.0) for a in numbers) or int_attribute(
            facts, node, "transA", 0
        ):
            return None
        turned ^= bool(int_attribute(facts, node, "transB", 0))
        holder, place = node, 2
    else:
        uses = list(node.outputs[0].uses())
        if len(uses) != 1 or not is_op(uses[0][0], "Add") or node.outputs[0].is_graph_output():
            return None
        holder, place = uses[0][0], 1 - uses[0][1]
    bias = holder.inputs[place] if place < len(holder.inputs) else None
    shape = facts.shape(matrix) or ()
    inner, outer = (shape[1], shape[0]) if turned else (shape[0], shape[1])
    if bias is None or bias in edited or not is_leaf(bias) or bias.is_graph_input() or tensor_of(bias) is None:
        return None
    of_bias = facts.shape(bias) or ()
    fits = of_bias[-1:] == (outer,) and all(d == 1 for d in of_bias[:-1]) and len(of_bias) <= 2
    if (inner,) != features or not fits or facts.dtype(bias) != facts.dtype(node.outputs[0]):
        return None
    return Product(node, matrix, turned, holder, place)


def _matrix_behind(facts: Facts, value: ir.Value | None) -> tuple[ir.Value | None, bool]:
    """The leaf that a constant matrix is, and whether it is transposed on the way."""
    turned = False
    for _ in range(8):
        if value is None:
            return None, False
        if is_leaf(value):
            fits = not value.is_graph_input() and tensor_of(value) is not None and len(facts.shape(value) or ()) == 2
            return (value, turned) if fits else (None, False)
        node = value.producer()
        if is_op(node, "Transpose") and node is not None:
            perm = node.attributes.get("perm")
            turned ^= perm is None or list(perm.value) == [1, 0]
        elif not is_op(node, "Identity") or node is None:
            return None, False
        value = node.inputs[0]
    return None, False
