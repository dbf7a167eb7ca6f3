"""QuantizeLinear and DynamicQuantizeLinear as TVM's operators."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.tvm.importer.dtypes import as_dtype, dtype_of

_LIMITS = {name: np.iinfo(name) for name in ("int8", "uint8")}


def linearly_quantised(bb: Any, y: Any, scale: Any, zero: Any, precision: str) -> Any:
    """``y`` in the type of ``zero``, by one scale; the quotient is rounded to ``precision``.

    Raises:
        ModelError: the type is none of 8-bit integers.
    """
    to = dtype_of(zero)
    if to not in _LIMITS:
        raise ModelError(
            f"a norm quantised to {to} cannot be compiled", "Quantize to int8 or uint8, or run it in onnxruntime."
        )
    quotient = bb.emit(relax.op.divide(*(as_dtype(bb, v, precision) for v in (y, scale))))
    return _whole(bb, as_dtype(bb, quotient, "float32"), as_dtype(bb, zero, "float32"), to)


def dynamically_quantised(bb: Any, x: Any) -> tuple[Any, Any, Any]:
    """``x`` in uint8, its scale and its zero point.

    The scale is made of the range, 0 in it; zeros alone have the scale 1, not 0.
    """
    zero, most, one = (relax.const(np.float32(v)) for v in (0, 255, 1))
    high = bb.emit(relax.op.maximum(bb.emit(relax.op.max(x)), zero))
    low = bb.emit(relax.op.minimum(bb.emit(relax.op.min(x)), zero))
    scale = bb.emit(relax.op.divide(bb.emit(relax.op.subtract(high, low)), most))
    scale = bb.emit(relax.op.where(bb.emit(relax.op.equal(scale, zero)), one, scale))
    # 0 - low / scale: as the definition has it
    point = bb.emit(relax.op.subtract(zero, bb.emit(relax.op.divide(low, scale))))
    point = bb.emit(relax.op.round(bb.emit(relax.op.clip(point, 0, 255))))
    y = _whole(bb, bb.emit(relax.op.divide(x, scale)), point, "uint8")
    return y, scale, as_dtype(bb, point, "uint8")


def _whole(bb: Any, quotient: Any, zero: Any, to: str) -> Any:
    moved = bb.emit(relax.op.add(bb.emit(relax.op.round(quotient)), zero))
    limits = _LIMITS[to]
    return as_dtype(bb, bb.emit(relax.op.clip(moved, float(limits.min), float(limits.max))), to)
