"""Products of matrices: sizes that have to agree, and sums of 16-bit products in float32.

TVM sums in the type of the operands, which loses a digit every few hundred terms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from rmsnorm_deploy.tvm.importer.dtypes import SIXTEEN, as_dtype, dtype_of, wide
from rmsnorm_deploy.tvm.importer.operator import Operator
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
    """The operator's alpha A B + beta C; None for wide types, where TVM's own does."""
    a, b, c = (o.input(i) for i in range(3))
    dtype = dtype_of(a)
    if dtype not in SIXTEEN:
        return None
    if o.attr.get("transA", 0):
        a = o.emit(relax.op.permute_dims(a, [1, 0]))
    if o.attr.get("transB", 0):
        b = o.emit(relax.op.permute_dims(b, [1, 0]))
    inner = wide(dtype)
    y = o.emit(relax.op.matmul(a, b, out_dtype=inner))

    def scaled(value: Any, name: str) -> Any:
        factor = float(o.attr.get(name, 1.0))
        return value if factor == 1 else o.emit(relax.op.multiply(value, relax.const(np.asarray(factor, inner))))

    y = scaled(y, "alpha")
    if c is not None:
        y = o.emit(relax.op.add(y, scaled(as_dtype(o.bb, c, inner), "beta")))
    return as_dtype(o.bb, y, dtype)


CONVERTERS: dict[str, Callable[[Operator], Any]] = {"MatMul": _matmul, "Gemm": _gemm}
"""By the operator's name. Each returns None where TVM's own converter does as well."""
