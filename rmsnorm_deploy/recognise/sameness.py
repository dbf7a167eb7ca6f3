"""Equal values: a value that a graph computes twice, by equal operators from equal inputs, is one value here.

Converters write two Casts of one value, quantisers two DequantizeLinear, exporters two Slices with constants of their
own. Nothing is numbered beforehand: two values are compared when somebody asks, and most questions end at their
producers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from rmsnorm_deploy.model.graphs import AI_ONNX

_RANDOM = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout")
)
"""Operators that may give another value each time."""
_COMMUTATIVE = frozenset(("Add", "Mul", "Max", "Min", "And", "Or", "Xor", "Equal"))
_PURE = {
    "com.microsoft": frozenset(
        (
            *("DequantizeLinear", "QuantizeLinear", "MatMulNBits", "FusedMatMul", "Gelu", "FastGelu", "QuickGelu"),
            *("BiasGelu", "SimplifiedLayerNormalization", "LayerNormalization", "RotaryEmbedding", "Dequantize"),
        )
    ),
    "": frozenset(("SimplifiedLayerNormalization",)),
}
"""Operators that onnx does not know and that give equal values for equal inputs."""
_DEFAULTS: Mapping[str, Callable[[ir.Node], int]] = {
    "axis": lambda node: {"Gather": 0, "QuantizeLinear": 1, "DequantizeLinear": 1}.get(node.op_type, _NO_DEFAULT),
    "block_size": lambda _: 0,
    "allowzero": lambda _: 0,
    "start": lambda _: 0,
    "keepdims": lambda _: 1,
    "noop_with_empty_axes": lambda _: 0,
    "saturate": lambda _: 1,
}
"""Values of attributes that mean the same as an absent one, in every version of the operators that have them."""
_NO_DEFAULT = -(2**63)
_MAX_PAIRS = 256
"""Most pairs of values that one question looks at: what needs more is not proven."""
_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


class Sameness:
    """Whether two values of a model are equal whenever it runs.

    Args:
        constant: gives the small constant that a value holds, or None.
        dtype: gives the element type of a value, or None.
    """

    def __init__(
        self,
        constant: Callable[[ir.Value], NDArray[Any] | None],
        dtype: Callable[[ir.Value], ir.DataType | None],
    ) -> None:
        self._constant = constant
        self._dtype = dtype
        self._known: dict[tuple[ir.Value, ir.Value], bool] = {}
        self._left = 0

    def same(self, a: ir.Value | None, b: ir.Value | None) -> bool:
        """Whether ``a`` and ``b`` are provably equal, bit by bit."""
        if a is b:
            return a is not None
        if a is None or b is None or not _comparable(a, b):
            return False
        self._left = _MAX_PAIRS
        return self._same(a, b)

    def _same(self, a: ir.Value | None, b: ir.Value | None) -> bool:
        if a is None or b is None:
            return a is b
        a, b = _behind_identity(a), _behind_identity(b)
        if a is b:
            return True
        if not _comparable(a, b):
            return False
        known = self._known.get((a, b))
        if known is None:
            self._left -= 1
            if self._left < 0:
                return False
            known = self._compare(a, b)
            if known or self._left >= 0:  # else the question was given up, not answered
                self._known[a, b] = self._known[b, a] = known
        return known

    def _compare(self, a: ir.Value, b: ir.Value) -> bool:
        left, right = a.producer(), b.producer()
        if left is None or right is None or (left.op_type == "Constant" and right.op_type == "Constant"):
            return self._equal_constants(a, b)
        if left is right or a.index() != b.index() or not _is_pure(left):
            return False
        if left.op_type in ("Cast", "CastLike") and not (left.attributes.keys() | right.attributes.keys()) - {"to"}:
            to = self._dtype(a)
            return to is not None and to == self._dtype(b) and self._same(left.inputs[0], right.inputs[0])
        if left.op_type != right.op_type or not _equal_attributes(left, right):
            return False
        if left.op_type == "Split" and len(left.outputs) != len(right.outputs):
            return False
        ours, theirs = _given(left), _given(right)
        if len(ours) != len(theirs):
            return False
        if all(self._same(x, y) for x, y in zip(ours, theirs, strict=True)):
            return True
        if left.op_type not in _COMMUTATIVE or len(ours) != 2:
            return False
        return self._same(ours[0], theirs[1]) and self._same(ours[1], theirs[0])

    def _equal_constants(self, a: ir.Value, b: ir.Value) -> bool:
        x, y = self._constant(a), self._constant(b)
        if x is None or y is None or x.dtype != y.dtype or x.shape != y.shape:
            return False
        return np.ascontiguousarray(x).tobytes() == np.ascontiguousarray(y).tobytes()


def _comparable(a: ir.Value, b: ir.Value) -> bool:
    """Whether two values may be equal, as far as their producers say: the quick answer to nearly every question."""
    left, right = a.producer(), b.producer()
    if left is None or right is None:
        return (left is not None or a.is_initializer()) and (right is not None or b.is_initializer())
    names = {left.op_type, right.op_type}
    return (len(names) == 1 or names <= {"Cast", "CastLike"} or "Identity" in names) and (
        left.domain == right.domain or (left.domain in AI_ONNX and right.domain in AI_ONNX)
    )


def _behind_identity(value: ir.Value) -> ir.Value:
    for _ in range(64):
        node = value.producer()
        if node is None or node.op_type != "Identity" or node.domain not in AI_ONNX or node.inputs[0] is None:
            return value
        value = node.inputs[0]
    return value


def _is_pure(node: ir.Node) -> bool:
    """Whether the node gives equal values for equal inputs and attributes; no where that is not known."""
    if any(a.type in _GRAPHS for a in node.attributes.values()):
        return False
    domain = "" if node.domain in AI_ONNX else node.domain
    if node.op_type in _PURE.get(domain, ()):
        return True
    return domain == "" and node.op_type not in _RANDOM and bool(onnx.defs.has(node.op_type))


def _given(node: ir.Node) -> list[ir.Value | None]:
    """The inputs, without those at the end that are left out."""
    inputs = list(node.inputs)
    while inputs and inputs[-1] is None:
        inputs.pop()
    return inputs


def _equal_attributes(a: ir.Node, b: ir.Node) -> bool:
    """Whether two nodes of one operator have the same attributes."""
    for name in {*a.attributes, *b.attributes}:
        left, right = a.attributes.get(name), b.attributes.get(name)
        if left is not None and right is not None:
            if not _equal_attribute(left, right):
                return False
            continue
        there = left if left is not None else right
        if there is None or there.is_ref() or name not in _DEFAULTS or there.value != _DEFAULTS[name](a):
            return False
    return True


def _equal_attribute(a: ir.Attr, b: ir.Attr) -> bool:
    if a.type != b.type or a.is_ref() != b.is_ref():
        return False
    if a.is_ref():
        return a.ref_attr_name == b.ref_attr_name  # of one function: two graphs that see each other's values
    if a.type == ir.AttributeType.TENSOR:
        x, y = a.value, b.value
        if x.dtype != y.dtype or tuple(x.shape) != tuple(y.shape) or x.size > 4096:
            return False
        return bool(x.tobytes() == y.tobytes())
    return bool(a.value == b.value)
