"""What operators make of sizes: every result whose elements are known stays a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from tvm import tirx

from rmsnorm_deploy.tvm.sizes.dimensions import Dimensions, expression, shape_of
from rmsnorm_deploy.tvm.sizes.shape_values import LARGEST, ShapeValue, array_of, known

_TYPES = {TensorProto.INT64: "int64", TensorProto.INT32: "int32", TensorProto.BOOL: "bool"}


def folded(name: str, inputs: Sequence[Any], attr: Mapping[str, Any], opset: int, dims: Dimensions) -> Any:
    """What the operator ``name`` makes of values that are known, a ShapeValue or a list of them, or None."""
    if name == "Shape" or name == "Size":
        sizes = list(inputs[0].elements.shape) if isinstance(inputs[0], ShapeValue) else shape_of(inputs[0])
        if sizes is None:
            return None
        dims.bind(sizes)
        if name == "Size":
            return ShapeValue(dims.product(sizes), "int64")
        return ShapeValue(sizes[attr.get("start", 0) : attr.get("end", len(sizes))], "int64")
    if name not in _FOLDERS and name not in _STATIC:
        return None
    values = [None if i is None else known(i) for i in inputs]
    if not values or any(v is None and i is not None for v, i in zip(values, inputs, strict=True)):
        return None
    given = [v for v in values if v is not None]
    if all(v.static for v in given):
        return _evaluated(name, values, attr, opset)
    if name not in _FOLDERS or any(v.dtype not in _TYPES.values() for v in given):
        return None
    result = _FOLDERS[name](_Operands(values, dims), attr)
    made = result if isinstance(result, list) else [result]
    return None if any(v is None or v.elements.size > LARGEST for v in made) else result


def _evaluated(name: str, values: Sequence[ShapeValue | None], attr: Mapping[str, Any], opset: int) -> Any:
    """Numbers in, numbers out: ONNX's own reference does it."""
    names = ["" if v is None else f"i{n}" for n, v in enumerate(values)]
    attributes = {k: v for k, v in attr.items() if k != "tvm_custom"}
    custom = attr.get("tvm_custom", {})
    outputs = [f"o{n}" for n in range(custom.get("num_outputs", 1))]
    node = helper.make_node(name, names, outputs, **attributes)
    typed = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(v.dtype)), v.elements.shape)
        for n, v in zip(names, values, strict=True)
        if v is not None
    ]
    graph = helper.make_graph([node], "g", typed, [helper.make_empty_tensor_value_info(o) for o in outputs])
    try:
        evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))
        results = evaluator.run(None, {n: v.numpy() for n, v in zip(names, values, strict=True) if v is not None})
    except Exception:  # the reference raises whatever comes; then it is TVM's converter's turn
        return None
    made = []
    for result in results:
        array = np.asarray(result)
        if array.size > LARGEST or array.dtype.kind not in "iubf":
            return None
        made.append(ShapeValue(array.astype(object), str(array.dtype)))
    return made if len(made) > 1 else made[0]


class _Operands:
    """The inputs of an operator that is folded."""

    def __init__(self, values: Sequence[ShapeValue | None], dims: Dimensions) -> None:
        self.values = values
        self.dims = dims

    def __getitem__(self, i: int) -> ShapeValue:
        value = self.values[i]
        if value is None:
            raise IndexError(i)
        return value

    def has(self, i: int) -> bool:
        return i < len(self.values) and self.values[i] is not None

    def numbers(self, i: int) -> list[Any] | None:
        """A vector of numbers; None where it is absent, or its elements depend on sizes."""
        return self[i].list() if self.has(i) and self[i].static else None

    def each(self, function: Callable[..., Any], dtype: str | None = None) -> ShapeValue:
        """``function`` of the elements, broadcast."""
        arrays = [v.elements for v in self.values if v is not None]
        result = np.frompyfunc(lambda *e: self.dims.simple(function(*e)), len(arrays), 1)(*arrays)
        return ShapeValue(array_of(result), dtype or self[0].dtype)


def _axes(o: _Operands, attr: Mapping[str, Any], at: int) -> list[int] | None:
    return list(attr["axes"]) if "axes" in attr else o.numbers(at)


def _squeeze(o: _Operands, attr: Mapping[str, Any]) -> ShapeValue:
    axes = _axes(o, attr, 1)
    return ShapeValue(np.squeeze(o[0].elements, None if axes is None else tuple(axes)), o[0].dtype)


def _unsqueeze(o: _Operands, attr: Mapping[str, Any]) -> ShapeValue | None:
    axes = _axes(o, attr, 1)
    return None if axes is None else ShapeValue(np.expand_dims(o[0].elements, tuple(axes)), o[0].dtype)


def _reshape(o: _Operands, attr: Mapping[str, Any]) -> ShapeValue | None:
    shape = o.numbers(1)
    if shape is None:
        return None
    if not attr.get("allowzero", 0):
        shape = [o[0].elements.shape[i] if d == 0 else d for i, d in enumerate(shape)]
    return ShapeValue(o[0].elements.reshape(shape), o[0].dtype)


def _concat(o: _Operands, attr: Mapping[str, Any]) -> ShapeValue:
    return ShapeValue(np.concatenate([v.elements for v in o.values if v is not None], attr["axis"]), o[0].dtype)


def _gather(o: _Operands, attr: Mapping[str, Any]) -> ShapeValue | None:
    if not o[1].static:
        return None
    return ShapeValue(array_of(np.take(o[0].elements, o[1].numpy(), attr.get("axis", 0))), o[0].dtype)


def _slice(o: _Operands, attr: Mapping[str, Any]) -> ShapeValue | None:
    if "starts" in attr:
        starts, ends = list(attr["starts"]), list(attr["ends"])
        axes, steps = list(attr.get("axes", range(len(starts)))), [1] * len(starts)
    else:
        first, last = o.numbers(1), o.numbers(2)
        if first is None or last is None or any(o.has(i) and o.numbers(i) is None for i in (3, 4)):
            return None
        starts, ends = first, last
        axes = o.numbers(3) or list(range(len(starts)))
        steps = o.numbers(4) or [1] * len(starts)
    index = [slice(None)] * o[0].elements.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # an end far below 0 means "through the first" with a negative step, as None does
        index[axis] = slice(start, None if step < 0 and end < -o[0].elements.shape[axis] else end, step)
    return ShapeValue(o[0].elements[tuple(index)], o[0].dtype)


def _cast(o: _Operands, attr: Mapping[str, Any]) -> ShapeValue | None:
    dtype = _TYPES.get(attr["to"])
    if dtype is None:
        return None
    if dtype == "bool":
        return o.each(lambda a: a if o[0].dtype == "bool" else tirx.NE(expression(a), expression(0)), "bool")
    if o[0].dtype == "bool":
        return o.each(lambda a: int(a) if isinstance(a, bool) else tirx.if_then_else(a, *_whole(1, 0)), dtype)
    return ShapeValue(o[0].elements, dtype)


def _whole(*values: int) -> list[Any]:
    return [expression(v) for v in values]


def _where(o: _Operands, _attr: Mapping[str, Any]) -> ShapeValue:
    def choose(condition: Any, a: Any, b: Any) -> Any:
        if isinstance(condition, bool):
            return a if condition else b
        return tirx.if_then_else(condition, expression(a), expression(b))

    return o.each(choose, o[1].dtype)


def _divided(dims: Dimensions, a: Any, b: Any) -> Any:
    """ONNX divides integers towards zero; sizes are not negative, and then that is the floor."""
    a, b = expression(a), expression(b)
    if dims.proven(tirx.GE(a, expression(0))) and dims.proven(tirx.GE(b, expression(0))):
        return tirx.floordiv(a, b)
    return tirx.truncdiv(a, b)


def _arithmetic(function: Callable[[Dimensions, Any, Any], Any]) -> Callable[..., ShapeValue]:
    return lambda o, _attr: o.each(lambda *e: _reduced(o.dims, function, e))


def _reduced(dims: Dimensions, function: Callable[[Dimensions, Any, Any], Any], elements: Sequence[Any]) -> Any:
    total = elements[0]
    for e in elements[1:]:
        total = function(dims, total, e)
    return total


def _comparison(condition: Any) -> Callable[..., ShapeValue]:
    return lambda o, _attr: o.each(lambda a, b: condition(expression(a), expression(b)), "bool")


def _logic(function: Any) -> Callable[..., ShapeValue]:
    return lambda o, _attr: o.each(lambda *e: function(*(expression(x) for x in e)), "bool")


def _expand(o: _Operands, _attr: Mapping[str, Any]) -> ShapeValue | None:
    shape = o.numbers(1)
    if shape is None:
        return None
    full = np.broadcast_shapes(o[0].elements.shape, tuple(shape))
    return ShapeValue(np.broadcast_to(o[0].elements, full), o[0].dtype)


def _reduce(function: Callable[[Dimensions, Any, Any], Any], first: Any) -> Callable[..., ShapeValue | None]:
    def reduce(o: _Operands, attr: Mapping[str, Any]) -> ShapeValue | None:
        axes = _axes(o, attr, 1)
        if (
            o[0].elements.ndim != 1
            or axes not in (None, [0], [-1])
            or (axes is None and attr.get("noop_with_empty_axes"))
        ):
            return None
        total = _reduced(o.dims, lambda d, a, b: d.simple(function(d, a, b)), [first, *o[0].list()])
        return ShapeValue([total] if attr.get("keepdims", 1) else total, o[0].dtype)

    return reduce


def _split(o: _Operands, attr: Mapping[str, Any]) -> Any:
    count = attr.get("tvm_custom", {}).get("num_outputs", 1)
    sizes = list(attr["split"]) if "split" in attr else o.numbers(1)
    if o[0].elements.ndim != 1 or (o.has(1) and sizes is None):
        return None
    if sizes is None:
        part = -(-o[0].elements.size // count)
        sizes = [part] * count
    ends = np.cumsum(sizes)
    return [ShapeValue(o[0].elements[e - s : e], o[0].dtype) for s, e in zip(sizes, ends, strict=True)]


def _add(_dims: Dimensions, a: Any, b: Any) -> Any:
    return a + b


def _multiply(_dims: Dimensions, a: Any, b: Any) -> Any:
    return a * b


_FOLDERS: dict[str, Callable[[_Operands, Mapping[str, Any]], Any]] = {
    "Identity": lambda o, _attr: o[0],
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Flatten": lambda o, attr: ShapeValue(
        o[0].elements.reshape(int(np.prod(o[0].elements.shape[: attr.get("axis", 1)])), -1), o[0].dtype
    ),
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    "Split": _split,
    "Cast": _cast,
    "Where": _where,
    "Expand": _expand,
    "Add": _arithmetic(_add),
    "Sum": _arithmetic(_add),
    "Sub": _arithmetic(lambda _, a, b: a - b),
    "Mul": _arithmetic(_multiply),
    "Div": _arithmetic(_divided),
    "Mod": lambda o, attr: o.each(
        lambda a, b: (tirx.truncmod if attr.get("fmod", 0) else tirx.floormod)(expression(a), expression(b))
    ),
    "Min": _arithmetic(lambda dims, a, b: dims.least(a, b)),
    "Max": _arithmetic(lambda dims, a, b: dims.most(a, b)),
    "Neg": lambda o, _attr: o.each(lambda a: -a),
    "Abs": lambda o, _attr: o.each(lambda a: o.dims.most(a, -a)),
    "Equal": lambda o, _attr: o.each(lambda a, b: _equal(o.dims, a, b), "bool"),
    "Less": _comparison(tirx.LT),
    "LessOrEqual": _comparison(tirx.LE),
    "Greater": _comparison(tirx.GT),
    "GreaterOrEqual": _comparison(tirx.GE),
    "Not": _logic(tirx.Not),
    "And": _logic(tirx.And),
    "Or": _logic(tirx.Or),
    "ReduceProd": _reduce(_multiply, 1),
    "ReduceSum": _reduce(_add, 0),
}

_STATIC_NAMES = """
    ArgMax ArgMin CastLike Ceil Clip ConstantOfShape CumSum Exp Floor GatherElements GatherND Log NonZero Pad Pow
    Range Reciprocal ReduceMax ReduceMin Round ScatterElements ScatterND Sign Sqrt Tile TopK Transpose Trilu Xor
"""
_STATIC = frozenset(_STATIC_NAMES.split())
"""Operators that are folded for numbers only."""


def _equal(dims: Dimensions, a: Any, b: Any) -> Any:
    proven = dims.proven(tirx.EQ(expression(a), expression(b))) if not isinstance(a, bool) else None
    return tirx.EQ(expression(a), expression(b)) if proven is None else proven
