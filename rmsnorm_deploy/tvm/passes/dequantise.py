"""Quantised values that no kernel of a product reads: written out as operators of TVM's."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from rmsnorm_deploy.tvm.passes.views import sizes_of
from rmsnorm_deploy.tvm.schedules.products.stored import MARKER, Stored


def stored_of(call: Any) -> tuple[Stored, Any, Any, Any] | None:
    """What a call stands for, and its values, scales and zero points; None where it is no such call."""
    if not isinstance(call, relax.Call) or call.op != tvm.ir.Op.get("relax.call_pure_packed"):
        return None
    if call.args[0].global_symbol != MARKER:
        return None
    _, x, *factors, text = call.args
    stored = Stored.from_text(str(text.value))
    scale = factors.pop(0) if stored.scaled else None
    return stored, x, scale, factors[0] if stored.zeroed else None


def dequantise(module: Any) -> Any:
    """``module`` without calls that stand for dequantised tensors."""
    return _Writing(module).run()


@relax.expr_functor.mutator
class _Writing(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.module = module

    def run(self) -> Any:
        for name, function in self.module.functions_items():
            if isinstance(function, relax.Function):
                self.builder_.update_func(name, self.visit_expr(function))
        return self.builder_.get()

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        found = stored_of(call)
        if found is None:
            return call
        stored, x, scale, zero = found
        emit, sizes = self.builder_.emit, sizes_of(call)
        assert sizes is not None  # the importer knows them
        if stored.bits:
            rows, blocks = int(sizes[0]), -(-stored.terms // stored.block)
            x = self.unpacked(x, stored.bits, rows, blocks * stored.block)
            x = emit(relax.op.strided_slice(x, [1], [0], [stored.terms]))
            scale = emit(relax.op.reshape(scale, (rows, blocks)))
            if zero is not None and str(zero.ty.dtype.dtype) == "uint8":
                zero = self.unpacked(zero, stored.bits, rows, blocks)
                zero = emit(relax.op.strided_slice(zero, [1], [0], [blocks])) if stored.bits == 4 else zero
            elif zero is not None:
                zero = emit(relax.op.reshape(zero, (rows, blocks)))
        y = emit(relax.op.astype(x, "float32"))
        if zero is not None:
            y = emit(relax.op.subtract(y, self.spread(zero, stored, sizes)))
        elif stored.offset:
            y = emit(relax.op.subtract(y, relax.const(np.float32(stored.offset))))
        if scale is not None:
            y = emit(relax.op.multiply(y, self.spread(scale, stored, sizes)))
        return y if stored.dtype == "float32" else emit(relax.op.astype(y, stored.dtype))

    def unpacked(self, value: Any, bits: int, rows: int, count: int) -> Any:
        """Bytes as at least ``count`` values in each row."""
        emit = self.builder_.emit
        if bits == 8:
            return emit(relax.op.reshape(value, (rows, count)))
        value = emit(relax.op.reshape(value, (rows, -(-count // 2))))
        low = emit(relax.op.bitwise_and(value, relax.const(np.uint8(15))))
        high = emit(relax.op.right_shift(value, relax.const(np.uint8(4))))
        return emit(relax.op.reshape(emit(relax.op.stack([low, high], 2)), (rows, -(-count // 2) * 2)))

    def spread(self, factor: Any, stored: Stored, sizes: list[Any]) -> Any:
        """Scales or zero points in float32, so that they meet their values."""
        emit, rank = self.builder_.emit, len(sizes)
        factor = factor if str(factor.ty.dtype.dtype) == "float32" else emit(relax.op.astype(factor, "float32"))
        if stored.block and factor.ty.ndim == rank:
            many = emit(relax.op.repeat(factor, stored.block, stored.axis))
            size = sizes[stored.axis]
            return (
                many
                if not isinstance(size, tirx.IntImm)
                else emit(relax.op.strided_slice(many, [stored.axis], [0], [int(size)]))
            )
        if factor.ty.ndim == 1 and rank > 1 and int(sizes_of(factor)[0]) != 1:  # type: ignore[index]
            shape = [1] * rank
            shape[stored.axis] = int(sizes_of(factor)[0])  # type: ignore[index]
            return emit(relax.op.reshape(factor, shape))
        return factor
