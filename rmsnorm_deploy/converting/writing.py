"""The nodes that are written: a norm without a mean, and the centring of a value."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_deploy.fusing.names import Constants, Names
from rmsnorm_deploy.recognise.facts import Facts
from rmsnorm_deploy.recognise.output import BELONGS

FLOAT = ir.DataType.FLOAT
_WIDENED = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


class Writer:
    """Writes standard operators.

    Args:
        facts: what is known of the model before it was changed.
        names: gives names.
        opset: the ai.onnx opset of the model.
        root: the main graph.
        marks: biases are marked as parts of their norms, for GeneralRMSNorm.
    """

    def __init__(self, facts: Facts, names: Names, opset: int, root: ir.Graph, *, marks: bool = False) -> None:
        self._facts, self._names, self._opset, self._root = facts, names, opset, root
        self._marks = marks
        self._constants = Constants(names)
        self._nodes: list[ir.Node] = []

    def norm(
        self,
        name: str,
        x: ir.Value,
        epsilon: float,
        scale: ir.Value | None,
        bias: ir.Value | None,
        *,
        output: ir.DataType,
    ) -> list[ir.Node]:
        """The RMSNorm of ``x``, scaled, with ``bias`` or without one, in the type ``output``; the last node gives it.

        16 bits are left for float32 in the beginning and come back at the end: one rounding, as in LayerNormalization.
        """
        wide, like = self.wide(x), x
        x = self._cast(x, self._dtype(x), wide, f"{name}_x")
        square = self._op("Mul", [x, x], f"{name}_square", wide, like)
        mean = self._mean(square, -1, f"{name}_mean_square", wide)
        added = self._constant(np.float64(epsilon), wide, f"{name}_epsilon")
        root = self._op("Sqrt", [self._op("Add", [mean, added], f"{name}_sum", wide)], f"{name}_rms", wide)
        y = self._op("Div", [x, root], f"{name}_normalised", wide, like)
        for op_type, value in (("Mul", scale), ("Add", bias)):
            if value is not None:
                given = self._facts.dtype(value) or wide
                y = self._op(op_type, [y, self._cast(value, given, wide, f"{name}_wide")], f"{name}_y", wide, like)
                if op_type == "Add" and self._marks:
                    self._nodes[-1].metadata_props[BELONGS] = "1"
        y = self._cast(y, wide, output, f"{name}_narrow")
        if y.shape is None:
            y.shape = _likely(self._facts, like)
        return self._taken()

    def centring(self, value: ir.Value, axis: int) -> list[ir.Node]:
        """``value`` without its mean along ``axis``; the last node gives the result.

        Not written as a subtraction: a norm of the result would then be taken for a LayerNormalization, which would
        take the same mean once more. The result is there anyway, for the stream.
        """
        name, wide = value.name or "value", self.wide(value)
        x = self._cast(value, self._dtype(value), wide, f"{name}_wide")
        mean = self._mean(x, axis, f"{name}_mean", wide)
        minus = self._constant(np.float64(-1.0), wide, f"{name}_minus")
        return self._moved(value, x, self._op("Mul", [mean, minus], f"{name}_negated", wide))

    def looking_up(self, value: ir.Value, means: ir.Value, rows: ir.Value) -> list[ir.Node]:
        """As :meth:`centring` for rows of a table: their means are looked up as they are, which takes one pass less.

        Args:
            value: the rows.
            means: what has to be added to each row of the table, of the type that :meth:`wide` says.
            rows: which rows ``value`` is.
        """
        name, wide = value.name or "value", self.wide(value)
        x = self._cast(value, self._dtype(value), wide, f"{name}_wide")
        found = self._op("Gather", [means, rows], f"{name}_negated", wide, None, [ir.AttrInt64("axis", 0)])
        return self._moved(value, x, found)

    def wide(self, value: ir.Value) -> ir.DataType:
        """The type of the arithmetic on ``value``."""
        dtype = self._dtype(value)
        return FLOAT if dtype in _WIDENED else dtype

    def _dtype(self, value: ir.Value) -> ir.DataType:
        return self._facts.dtype(value) or FLOAT

    def _moved(self, value: ir.Value, wide: ir.Value, by: ir.Value) -> list[ir.Node]:
        """``wide``, which is ``value`` in the type of the arithmetic, plus ``by``; in the type of ``value``."""
        name, dtype = value.name or "value", self.wide(value)
        result = self._op("Add", [wide, by], f"{name}_centred", dtype, value)
        self._cast(result, dtype, self._dtype(value), f"{name}_narrow")
        return self._taken()

    def zero(self, value: ir.Value) -> list[ir.Node]:
        """``value`` without its mean where it is the same for all features."""
        name, dtype = f"{value.name or 'value'}_centred", self._dtype(value)
        self._op("Mul", [value, self._constant(np.float64(0.0), dtype, f"{name}_factor")], name, dtype, value)
        return self._taken()

    def _taken(self) -> list[ir.Node]:
        nodes, self._nodes = self._nodes, []
        return nodes

    def _cast(self, value: ir.Value, before: ir.DataType, after: ir.DataType, name: str) -> ir.Value:
        if before == after:
            return value
        return self._op("Cast", [value], name, after, value, [ir.AttrInt64("to", int(after))])

    def _mean(self, value: ir.Value, axis: int, name: str, dtype: ir.DataType) -> ir.Value:
        keep = ir.AttrInt64("keepdims", 1)
        if self._opset < 18:
            return self._op("ReduceMean", [value], name, dtype, None, [ir.AttrInt64s("axes", [axis]), keep])
        axes = self._constants.value(self._root, f"{name}_axes", ir.Tensor(np.array([axis], np.int64)))
        return self._op("ReduceMean", [value, axes], name, dtype, None, [keep])

    def _constant(self, number: Any, dtype: ir.DataType, name: str) -> ir.Value:
        return self._constants.value(self._root, name, ir.Tensor(np.asarray(number, dtype.numpy()), dtype=dtype))

    def _op(
        self,
        op_type: str,
        inputs: list[ir.Value],
        name: str,
        dtype: ir.DataType,
        like: ir.Value | None = None,
        attributes: list[ir.Attr] | None = None,
    ) -> ir.Value:
        shape = None if like is None else like.shape
        output = ir.Value(name=self._names.unique(name), type=ir.TensorType(dtype), shape=shape)
        node = ir.Node("", op_type, inputs, attributes or [], outputs=[output])
        node.name = self._names.unique(f"{output.name}_node")
        self._nodes.append(node)
        return output


def _likely(facts: Facts, value: ir.Value) -> ir.Shape | None:
    """The sizes of ``value`` that are known as numbers: onnxruntime infers nothing behind an operator of ours."""
    shape = facts.shape(value)
    return None if shape is None else ir.Shape([d if isinstance(d, int) else None for d in shape])


def take_over(old: ir.Value, new: ir.Value) -> None:
    """``new`` stands for ``old`` everywhere: its name, its readers, its place among the outputs."""
    name, new.doc_string = old.name, old.doc_string
    new.metadata_props.update(old.metadata_props)
    new.meta.update(old.meta)
    new.type = old.type if old.type is not None else new.type
    new.shape = old.shape if old.shape is not None else new.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    old.name = None
    new.name = name
