"""The CPU schedules: which of the layouts' kernels a norm gets, and what can be chosen about it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from tvm.target import codegen

from rmsnorm_deploy.op.dtypes import float_type
from rmsnorm_deploy.tvm.schedules.cpu.any_size import AnySize
from rmsnorm_deploy.tvm.schedules.cpu.columns import Columns
from rmsnorm_deploy.tvm.schedules.cpu.rows import Rows
from rmsnorm_deploy.tvm.schedules.cpu.streaming import Streaming
from rmsnorm_deploy.tvm.schedules.cpu.writer import ALWAYS_SERIAL, CpuSchedule, Writer
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.protocol import Refusal, Schedules

BATCH_BYTES = 16384
"""Of X in a batch, at most, so that it is still in the first cache when it is read again."""
MOST_BATCH = 16


@dataclasses.dataclass(frozen=True)
class CpuSchedules(Schedules[CpuSchedule]):
    """The schedules for one CPU.

    Attributes:
        lanes: float32 values in one vector of its widest instructions.
    """

    lanes: int = 8

    @classmethod
    def of(cls, target: Any) -> CpuSchedules:
        """Those for ``target``, a ``tvm.target.Target``."""
        # TVM's own vector width says what this machine has, whatever the target
        return cls(16 if codegen.llvm_cpu_has_features("avx512f", target) else 8)

    def refusal(self, norm: Norm) -> Refusal | None:
        """None: LLVM has every type on every CPU."""

    def default(self, norm: Norm) -> CpuSchedule:
        """See the protocol."""
        row, batch = (norm.size or BATCH_BYTES) * float_type(norm.dtype).itemsize, 1
        while batch < MOST_BATCH and 2 * batch * row <= BATCH_BYTES:
            batch *= 2
        # summing side by side pays where there is enough to sum
        accumulators = 2 if norm.size and norm.size <= 8 * self.lanes else 4
        return CpuSchedule(lanes=self.lanes, accumulators=accumulators, batch=batch)

    def candidates(self, norm: Norm) -> list[CpuSchedule]:
        """See the protocol.

        How values are summed is tried in every combination, how rows are divided among threads one thing at a time.
        """
        first = self.default(norm)
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

    def trimmed(self, norm: Norm, schedule: CpuSchedule, most_values: int | None) -> CpuSchedule:
        """See the protocol; each way through a kernel has to be compiled."""
        if most_values is None:
            return schedule
        if most_values < schedule.serial_below:
            schedule = dataclasses.replace(schedule, serial_below=ALWAYS_SERIAL)
        if most_values * norm.bytes_moved < schedule.stream_from:
            schedule = dataclasses.replace(schedule, stream_from=0)
        return schedule

    def source(self, norm: Norm, schedule: CpuSchedule) -> str:
        """See the protocol."""
        writer: Writer
        if norm.columns:
            writer = Columns(norm, schedule)
        else:
            large = None if norm.size is None else Streaming(norm, schedule)
            writer = AnySize(norm) if large is None else Rows(norm, schedule, large if large.possible() else None)
        return "\n".join(writer.function()) + "\n"
