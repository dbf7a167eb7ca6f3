"""RotaryEmbedding: ONNX's of opset 23 and onnxruntime's older one, which TVM lacks.

With x1 and x2 the two halves of the first ``rotary_embedding_dim`` features (interleaved: the even and the odd ones):
y1 = cos x1 - sin x2, y2 = sin x1 + cos x2, as in the operator's specification,
https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te

from rmsnorm_deploy.tvm.importer.dtypes import as_dtype, dtype_of, wide
from rmsnorm_deploy.tvm.importer.operator import Operator, shape_expr
from rmsnorm_deploy.tvm.sizes.dimensions import shape_of
from rmsnorm_deploy.tvm.sizes.kernel import emit_kernel


def rotary_embedding(o: Operator) -> Any:
    """Inputs X, cos, sin and perhaps position_ids; X is (batch, heads, sequence, size) or (batch, sequence, hidden)."""
    return _rotated(o, o.input(0), o.input(1), o.input(2), o.input(3))


def contrib_rotary_embedding(o: Operator) -> Any:
    """Inputs X, position_ids (batch, sequence) or one offset for all, cos, sin.

    Raises:
        ValueError: the attributes ask for packed batches or a scale, which are for other inputs.
    """
    if o.attr.get("is_packed_batching", 0) or o.attr.get("scale", 1.0) != 1.0:
        raise ValueError("packed batches and a scale are not supported")
    x, positions = o.input(0), o.input(1)
    if positions.ty.ndim == 1:
        sizes = o.known_shape(0)
        batch, length = sizes[0], sizes[2 if len(sizes) == 4 else 1]

        def compute(offset: Any, batch: Any, length: Any) -> Any:
            return te.compute((batch, length), lambda _, i: offset(0) + i, name="positions")

        positions = emit_kernel(o.bb, "positions", compute, [positions], [batch, length], [batch, length])
    return _rotated(o, x, o.input(2), o.input(3), positions)


def _rotated(o: Operator, x: Any, cos: Any, sin: Any, positions: Any) -> Any:
    emit, op, dtype = o.emit, relax.op, dtype_of(x)
    sizes = o.known_shape(0)
    flat = len(sizes) == 3
    heads = int(o.attr.get("num_heads", 0))
    width = int(o.attr.get("rotary_embedding_dim", 0))
    if flat:
        if not heads:
            # onnxruntime's may leave it out, and then the tables are for whole heads
            half = (shape_of(cos) or [None])[-1]
            if width or not isinstance(half, int) or not isinstance(sizes[2], int):
                raise ValueError("three dimensions need the attribute num_heads")
            heads = sizes[2] // (2 * half)
        size = o.dims.quotient([sizes[2]], [heads])
        x = emit(op.reshape(x, shape_expr([sizes[0], sizes[1], heads, size])))
    else:
        size = sizes[3]
    if not isinstance(size, int):
        raise ValueError("the size of a head is not known")
    width = width or size
    half = width // 2
    if positions is not None:
        cos, sin = (emit(op.take(table, positions, 0, mode="clip")) for table in (cos, sin))
    # nothing is rounded to 16 bits on the way
    x, cos, sin = (as_dtype(o.bb, v, wide(dtype)) for v in (x, cos, sin))
    axis = 2 if flat else 1
    cos, sin = (emit(op.expand_dims(table, axis)) for table in (cos, sin))

    def part(begin: int, end: int, step: int = 1) -> Any:
        return emit(op.strided_slice(x, [3], [begin], [end], [step], assume_inbound=True))

    if o.attr.get("interleaved", 0):
        first, second = part(0, width - 1, 2), part(1, width, 2)
    else:
        first, second = part(0, half), part(half, width)
    y1 = emit(op.subtract(emit(op.multiply(cos, first)), emit(op.multiply(sin, second))))
    y2 = emit(op.add(emit(op.multiply(sin, first)), emit(op.multiply(cos, second))))
    if o.attr.get("interleaved", 0):
        pairs = emit(op.concat([emit(op.expand_dims(y1, 4)), emit(op.expand_dims(y2, 4))], 4))
        sizes4 = [sizes[0], sizes[1], heads, width] if flat else [*sizes[:3], width]
        rotated = [emit(op.reshape(pairs, shape_expr(sizes4)))]
    else:
        rotated = [y1, y2]
    if width < size:
        rotated.append(part(width, size))
    result = as_dtype(o.bb, emit(op.concat(rotated, 3)) if len(rotated) > 1 else rotated[0], dtype)
    return emit(op.reshape(result, shape_expr(sizes))) if flat else result
