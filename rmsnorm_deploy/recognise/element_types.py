"""Element types that follow from what operators ask for, where neither the file nor inference states them.

Behind an operator that onnx does not know nothing is inferred. But the operators that read its output mostly take all
operands in one type: a value that is added to a float32 constant is a float32 value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx
import onnx_ir as ir

from rmsnorm_deploy.model.graphs import AI_ONNX

_MAX_VALUES = 512
"""Most values that one question looks at."""
_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic

_CONTRIB = {
    "SimplifiedLayerNormalization": ("TV", "V"),
    "SkipSimplifiedLayerNormalization": ("TTTT", "T__T"),
    "SkipLayerNormalization": ("TTTTT", "T__T"),
    "FusedMatMul": ("TT", "T"),
    "MatMulNBits": ("T_T", "T"),
    "Gelu": ("T", "T"),
    "FastGelu": ("TT", "T"),
    "QuickGelu": ("T", "T"),
    "BiasGelu": ("TT", "T"),
    "RotaryEmbedding": ("T_TT", "T"),
    "GroupQueryAttention": ("TTTTT", "TTT"),
}
"""Operators of onnxruntime: a letter for each input and each output; equal letters are equal types."""


class ElementTypes:
    """Types of values by the operators that write and read them.

    Args:
        stated: the type that the file or inference states, or None.
    """

    def __init__(self, stated: Callable[[ir.Value], ir.DataType | None]) -> None:
        self._stated = stated
        self._known: dict[ir.Value, ir.DataType | None] = {}

    def of(self, value: ir.Value) -> ir.DataType | None:
        """The one type that ``value`` can have, or None."""
        if value not in self._known:
            self._explore(value)
        return self._known[value]

    def _explore(self, value: ir.Value) -> None:
        """Find the type of all values that have the type of ``value``."""
        seen, work = {value}, [value]
        found: ir.DataType | None = None
        while work and found is None and len(seen) < _MAX_VALUES:
            current = work.pop()
            found = self._stated(current)
            if found is None:
                new = [v for v in _of_its_type(current) if v not in seen]
                seen.update(new)
                work.extend(new)
        self._known.update(dict.fromkeys(seen, found))


def _of_its_type(value: ir.Value) -> Iterator[ir.Value]:
    """The values that have the type of ``value`` because of one operator."""
    producer = value.producer()
    if producer is not None:
        yield from _alike(producer, value.index() or 0, False)
    for node, index in value.uses():
        yield from _alike(node, index, True)


def _alike(node: ir.Node, index: int, is_input: bool) -> Iterator[ir.Value]:
    inputs, outputs = _parameters(node)
    ours = inputs if is_input else outputs
    wanted = ours[index] if index < len(ours) else ""
    if not wanted:
        return
    yield from (v for v, kind in zip(node.inputs, inputs, strict=False) if v is not None and kind == wanted)
    yield from (v for v, kind in zip(node.outputs, outputs, strict=False) if kind == wanted)


def _parameters(node: ir.Node) -> tuple[list[str], list[str]]:
    """For each input and each output of ``node`` the name of its type; empty where it has none."""
    if node.op_type in _CONTRIB and (node.domain == "com.microsoft" or not onnx.defs.has(node.op_type)):
        inputs, outputs = ([c.strip("_") for c in kinds] for kinds in _CONTRIB[node.op_type])
        return inputs, outputs
    if node.domain not in AI_ONNX or not onnx.defs.has(node.op_type):
        return [], []
    schema = onnx.defs.get_schema(node.op_type)
    return _names(schema.inputs, len(node.inputs)), _names(schema.outputs, len(node.outputs))


def _names(formal: Sequence[onnx.defs.OpSchema.FormalParameter], count: int) -> list[str]:
    names = ["" if "(" in p.type_str or not p.is_homogeneous else p.type_str for p in formal]
    if formal and formal[-1].option == _VARIADIC:
        names += [names[-1]] * (count - len(formal))
    return names
