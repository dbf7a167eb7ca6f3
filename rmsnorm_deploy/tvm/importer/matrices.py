"""Products of matrices: sizes that have to agree, and sums of 16-bit products in float32.

TVM sums in the type of the operands, which loses a digit every few hundred terms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from rmsnorm_deploy.tvm.importer.dtypes import as_dtype, dtype_of, wide
from rmsnorm_deploy.tvm.importer.operator import Operator
from rmsnorm_deploy.tvm.importer.prepare import PREFIX
from rmsnorm_deploy.tvm.sizes import broadcasting
from rmsnorm_deploy.tvm.sizes.dimensions import is_static, shape_of


def _matmul(o: Operator) -> Any:
    a, b = _fitting(o, o.input(0), o.input(1))
    dtype = dtype_of(a)
    return as_dtype(o.bb, o.emit(relax.op.matmul(a, b, out_dtype=wide(dtype))), dtype)


def _fitting(o: Operator, a: Any, b: Any) -> tuple[Any, Any]:
    """The operands with sizes that TVM knows to be equal; the model checks what cannot be proven."""
    left, right = shape_of(a), shape_of(b)
    if left is None or right is None or (is_static(left) and is_static(right)) or not (left and right):
        return a, b
    inner = left[-1]
    row = -2 if len(right) > 1 else -1
    if not o.dims.equal(inner, right[row]):
        right[row] = inner
        b = o.with_sizes(b, right)
    if len(left) > 2 and len(right) > 2:
        outer = [left[:-2], right[:-2]]
        if not broadcasting.agree(o.dims, outer):
            shape = broadcasting.common_shape(o.bb, o.dims, outer)
            a = broadcasting.broadcast(o.bb, o.dims, a, [*shape, *left[-2:]])
            b = broadcasting.broadcast(o.bb, o.dims, b, [*shape, *right[-2:]])
    return a, b


def _gemm(o: Operator) -> Any:
    """The operator's alpha A B + beta C; None for whole numbers, where TVM's own does."""
    a, b, c = (o.input(i) for i in range(3))
    dtype = dtype_of(a)
    if "float" not in dtype:
        return None
    a, b = (_transposed(o, v) if o.attr.get(name, 0) else v for v, name in ((a, "transA"), (b, "transB")))
    a, b = _fitting(o, a, b)
    y = _scaled(o, o.emit(relax.op.matmul(a, b, out_dtype=wide(dtype))), "alpha")
    if c is not None:
        sizes, own = o.sizes_of(y), o.shape(2)
        if own is not None and not is_static(sizes):
            # C broadcasts to the product, never the other way round: what is no 1 is the product's size
            own = [1] * (2 - len(own)) + list(own)
            y = o.with_sizes(y, [m if is_static([m]) and int(m) != 1 else n for n, m in zip(sizes, own, strict=True)])
        y = o.emit(relax.op.add(y, _scaled(o, as_dtype(o.bb, c, wide(dtype)), "beta")))
    return as_dtype(o.bb, y, dtype)


def _fused_matmul(o: Operator) -> Any:
    """Onnxruntime's alpha A B, of which either is transposed, and has its rows in front of the batch, or not."""
    factors = []
    for i, name in enumerate("AB"):
        value = o.input(i)
        rank = value.ty.ndim
        if rank < 1:
            raise ValueError(f"the rank of input {i} is not known")
        if o.attr.get(f"transBatch{name}", 0) and rank > 2:
            value = o.emit(relax.op.permute_dims(value, [*range(1, rank - 1), 0, rank - 1]))
        factors.append(_transposed(o, value) if o.attr.get(f"trans{name}", 0) and rank > 1 else value)
    a, b = _fitting(o, *factors)
    dtype = dtype_of(a)
    return as_dtype(o.bb, _scaled(o, o.emit(relax.op.matmul(a, b, out_dtype=wide(dtype))), "alpha"), dtype)


def _transposed(o: Operator, value: Any) -> Any:
    rank = value.ty.ndim
    return o.emit(relax.op.permute_dims(value, [*range(rank - 2), rank - 1, rank - 2]))


def _scaled(o: Operator, value: Any, name: str) -> Any:
    factor = float(o.attr.get(name, 1.0))
    number = relax.const(np.asarray(factor, dtype_of(value)))
    return value if factor == 1 else o.emit(relax.op.multiply(value, number))


CONVERTERS: dict[str, Callable[[Operator], Any]] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    PREFIX + "FusedMatMul": _fused_matmul,
    PREFIX + "TransposeMatMul": _fused_matmul,
}
"""By the operator's name. Each returns None where TVM's own converter does as well."""
