"""The CPU schedules: which of the layouts' kernels a norm gets, and what can be chosen about it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from tvm.script import from_source
from tvm.script import ir as I
from tvm.script import tirx as T
from tvm.target import codegen

from rmsnorm_deploy.tvm.schedules.cpu.any_size import AnySize
from rmsnorm_deploy.tvm.schedules.cpu.columns import Columns
from rmsnorm_deploy.tvm.schedules.cpu.rows import Rows
from rmsnorm_deploy.tvm.schedules.cpu.streaming import Streaming
from rmsnorm_deploy.tvm.schedules.cpu.writer import ALWAYS_SERIAL, CpuSchedule, Writer
from rmsnorm_deploy.tvm.schedules.norm import ITEMSIZE, Norm

BATCH_BYTES = 16384
"""Of X in a batch, at most, so that it is still in the first cache when it is read again."""
MOST_BATCH = 16


def default(norm: Norm, target: Any) -> CpuSchedule:
    """The schedule that is taken when nothing was tuned."""
    row, batch = (norm.size or BATCH_BYTES) * ITEMSIZE[norm.dtype], 1
    while batch < MOST_BATCH and 2 * batch * row <= BATCH_BYTES:
        batch *= 2
    # of AVX-512, TVM's vector width says what this machine has, whatever the target
    lanes = 16 if codegen.llvm_cpu_has_features("avx512f", target) else 8
    # summing side by side pays where there is enough to sum
    return CpuSchedule(lanes=lanes, accumulators=2 if norm.size and norm.size <= 8 * lanes else 4, batch=batch)


def candidates(norm: Norm, target: Any) -> list[CpuSchedule]:
    """The schedules that tuning tries, the default first.

    How values are summed is tried in every combination, how rows are divided among threads one thing at a time.
    """
    first = default(norm, target)
    found = {first: None}
    lanes = (8, 16) if norm.size is None or norm.size >= 16 else (8,)
    for values, sums, batch in itertools.product(lanes, (2, 4, 8), sorted({1, 4, first.batch})):
        found[dataclasses.replace(first, lanes=values, accumulators=sums, batch=batch)] = None
    for name, choices in (
        ("serial_below", (1 << 14, 1 << 18)),
        ("task_values", (1 << 12, 1 << 16)),
        ("stream_from", (0, 1 << 22, 1 << 26)),
    ):
        for choice in choices:
            found[dataclasses.replace(first, **{name: choice})] = None
    return list(found)


def trimmed(norm: Norm, schedule: CpuSchedule, most_values: int | None) -> CpuSchedule:
    """``schedule`` without the ways that no tensor of at most ``most_values`` values takes: each has to be compiled."""
    if most_values is None:
        return schedule
    if most_values < schedule.serial_below:
        schedule = dataclasses.replace(schedule, serial_below=ALWAYS_SERIAL)
    if most_values * norm.bytes_moved < schedule.stream_from:
        schedule = dataclasses.replace(schedule, stream_from=0)
    return schedule


def kernel(norm: Norm, schedule: CpuSchedule | None = None) -> Any:
    """``norm`` as a scheduled ``tvm.tirx.PrimFunc`` with a symbolic number of rows.

    Its arguments are X, residual (AddRMSNorm), scale, bias (GeneralRMSNorm), Y, sum (AddRMSNorm); X has shape
    (outer..., size), or (outer..., size, inner...) where ``norm.columns``.
    """
    return from_source(source(norm, schedule), {"T": T, "I": I})


def source(norm: Norm, schedule: CpuSchedule | None = None) -> str:
    """The kernel's TVMScript."""
    schedule = schedule or CpuSchedule()
    writer: Writer
    if norm.columns:
        writer = Columns(norm, schedule)
    else:
        large = None if norm.size is None else Streaming(norm, schedule)
        writer = AnySize(norm) if large is None else Rows(norm, schedule, large if large.possible() else None)
    return "\n".join(writer.function()) + "\n"
