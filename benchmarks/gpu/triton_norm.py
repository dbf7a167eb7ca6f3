"""The usual RMSNorm in Triton, written for the comparison: a row, or several short ones, to a program."""

from typing import Any

import triton
import triton.language as tl


@triton.jit
def _kernel(
    x_at,
    residual_at,
    scale_at,
    y_at,
    sum_at,
    rows,
    size,
    epsilon,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, SIZE)[None, :]
    there = (row < rows) & (column < size)
    place = row * size + column
    scale = tl.load(scale_at + column, mask=column < size, other=0.0).to(tl.float32)
    x = tl.load(x_at + place, mask=there, other=0.0)
    if ADD:
        x = (x.to(tl.float32) + tl.load(residual_at + place, mask=there, other=0.0).to(tl.float32)).to(x.dtype)
        tl.store(sum_at + place, x, mask=there)
    wide = x.to(tl.float32)
    factor = tl.rsqrt(tl.sum(wide * wide, axis=1) / size + epsilon)
    y = (wide * factor[:, None]).to(x.dtype).to(tl.float32) * scale
    tl.store(y_at + place, y.to(x.dtype), mask=there)


def rms_norm(inputs: list[Any], scale: Any, outputs: list[Any], epsilon: float) -> None:
    """One norm; with two inputs their sum is normalised and is the second output. All are matrices of rows."""
    rows, size = inputs[0].shape
    whole = triton.next_power_of_2(size)
    together = max(1, 2048 // whole)
    warps = min(16, max(4, whole // 512))
    _kernel[(triton.cdiv(rows, together),)](
        inputs[0],
        inputs[-1],
        scale,
        outputs[0],
        outputs[-1],
        rows,
        size,
        epsilon,
        ADD=len(inputs) == 2,
        ROWS=together,
        SIZE=whole,
        num_warps=warps,
    )
