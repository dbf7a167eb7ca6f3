"""Quantised tensors: their values stay as they are stored until a kernel reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from rmsnorm_deploy.tvm.importer.dtypes import as_dtype, dtype_of, wide
from rmsnorm_deploy.tvm.importer.operator import Operator
from rmsnorm_deploy.tvm.importer.quantising import dynamically_quantised
from rmsnorm_deploy.tvm.schedules.products.panels import EXACT_TERMS
from rmsnorm_deploy.tvm.schedules.products.stored import MARKER, Stored

_EIGHT = ("int8", "uint8")


def _stored(o: Operator, stored: Stored, shape: Any, *values: Any) -> Any:
    ty = relax.TensorType(shape, stored.dtype)
    given = [v for v in values if v is not None]
    return o.emit(relax.op.call_pure_packed(MARKER, *given, tvm.ir.StringImm(stored.to_text()), ty_args=ty))


def _dequantize(o: Operator) -> Any:
    x, scale, zero = o.input(0), o.input(1), o.input(2)
    shape = o.shape(0)
    if shape is None or dtype_of(x) not in (*_EIGHT, "int16", "uint16", "int32") or scale.ty.ndim < 0:
        return None
    block = int(o.attr.get("block_size", 0))
    number = int(o.attr.get("output_dtype", 0))
    dtype = {1: "float32", 10: "float16", 16: "bfloat16"}[number] if number else dtype_of(scale)
    axis = int(o.attr.get("axis", 1)) if scale.ty.ndim else 0
    axis = min(axis, len(shape) - 1) if len(shape) == 1 else axis % max(1, len(shape))
    return _stored(o, Stored(dtype, axis, block, zeroed=zero is not None), x.ty.shape, x, scale, zero)


def _matmul_n_bits(o: Operator) -> Any:
    """com.microsoft's A B^T + bias, B of rows of blocks of 4-bit or 8-bit values."""
    a, b, scales, zeros, groups, bias = (o.input(i) for i in range(6))
    bits, terms, rows = (int(o.attr.get(name, default)) for name, default in (("bits", 4), ("K", 0), ("N", 0)))
    block = int(o.attr["block_size"])
    if groups is not None:
        raise ValueError("MatMulNBits with g_idx, terms in another order, is not supported: quantize without act-order")
    if bits not in (4, 8):
        raise ValueError(f"MatMulNBits of {bits} bits is not supported: 4 and 8 are")
    dtype = dtype_of(a)
    stored = Stored("float32", 1, block, zeroed=zeros is not None, bits=bits, terms=terms)
    made = _stored(
        o, stored, relax.ShapeExpr([tirx.IntImm("int64", rows), tirx.IntImm("int64", terms)]), b, scales, zeros
    )
    right = o.emit(relax.op.permute_dims(made, [1, 0]))
    y = o.emit(relax.op.matmul(as_dtype(o.bb, a, wide(dtype)), right, out_dtype="float32"))
    if bias is not None:
        y = o.emit(relax.op.add(y, as_dtype(o.bb, bias, "float32")))
    return as_dtype(o.bb, y, dtype)


def _product(o: Operator, a: Any, a_zero: Any, b: Any, b_zero: Any) -> Any:
    """The product of whole numbers, in int32, exact."""
    left = as_dtype(o.bb, a, "float32")
    if a_zero is not None:
        zero = as_dtype(o.bb, a_zero, "float32")
        if zero.ty.ndim == 1 and not _is_one(zero):
            zero = o.emit(relax.op.expand_dims(zero, -1))
        left = o.emit(relax.op.subtract(left, zero))
    if b_zero is not None and b_zero.ty.ndim > 1:
        right = o.emit(relax.op.subtract(as_dtype(o.bb, b, "float32"), as_dtype(o.bb, b_zero, "float32")))
    else:
        stored = Stored("float32", max(0, b.ty.ndim - 1), scaled=False, zeroed=b_zero is not None)
        right = _stored(o, stored, b.ty.shape, b, b_zero)
    terms = o.sizes_of(a)[-1]
    if b.ty.ndim > 2 and isinstance(terms, int | tirx.IntImm) and int(terms) <= EXACT_TERMS:
        return as_dtype(o.bb, o.emit(relax.op.matmul(left, right)), "int32")
    return o.emit(relax.op.matmul(left, right, out_dtype="int32"))


def _is_one(value: Any) -> bool:
    shape = value.ty.shape
    return isinstance(shape, relax.ShapeExpr) and isinstance(shape.values[0], tirx.IntImm) and int(shape.values[0]) == 1


def _matmul_integer(o: Operator) -> Any:
    a, b, a_zero, b_zero = (o.input(i) for i in range(4))
    return _product(o, a, a_zero, b, b_zero)


def _qlinear_matmul(o: Operator) -> Any:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (o.input(i) for i in range(8))
    if any(v.ty.ndim > 0 and not _is_one(v) for v in (a_scale, a_zero, y_scale, y_zero)):
        raise ValueError("QLinearMatMul with a scale for each row is not supported")
    whole = _product(o, a, a_zero, b, b_zero)
    factor = o.emit(relax.op.multiply(*(as_dtype(o.bb, s, "float32") for s in (a_scale, b_scale))))
    factor = o.emit(relax.op.divide(factor, as_dtype(o.bb, y_scale, "float32")))
    y = o.emit(relax.op.round(o.emit(relax.op.multiply(as_dtype(o.bb, whole, "float32"), factor))))
    y = o.emit(relax.op.add(y, as_dtype(o.bb, y_zero, "float32")))
    dtype = dtype_of(y_zero)
    limits = np.iinfo(dtype)
    return as_dtype(o.bb, o.emit(relax.op.clip(y, float(limits.min), float(limits.max))), dtype)


def _dynamic_quantize(o: Operator) -> Any:
    return relax.Tuple(dynamically_quantised(o.bb, o.input(0)))


CONVERTERS: dict[str, Callable[[Operator], Any]] = {
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "MatMulInteger": _matmul_integer,
}
"""By the operator's name. Each returns None where TVM's own converter does as well."""
OWN: dict[str, Callable[[Operator], Any]] = {"QLinearMatMul": _qlinear_matmul, "MatMulNBits": _matmul_n_bits}
"""The same for operators that TVM lacks."""
