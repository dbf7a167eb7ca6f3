"""The GPU schedules: which of the three kernels a norm gets, and how many threads and registers.

A row goes through memory once, in the widest accesses, and waits for its threads at most twice. Arithmetic is in the
norm's stash type and nothing wider: many GPUs have float64 at a small part of the rate, or not at all.
"""

from __future__ import annotations

import dataclasses

from rmsnorm_deploy.op.dtypes import float_type
from rmsnorm_deploy.tvm.schedules.gpu.columns import Columns
from rmsnorm_deploy.tvm.schedules.gpu.grid import GpuSchedule
from rmsnorm_deploy.tvm.schedules.gpu.kept import Kept
from rmsnorm_deploy.tvm.schedules.gpu.streamed import Streamed
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.protocol import Refusal, Schedules
from rmsnorm_deploy.tvm.targets.gpu import Gpu

BLOCK = 128
"""Threads that rows share which need fewer."""
MIDDLE = 256
"""Threads beyond which a thread rather takes several vectors of its row."""
TWO_FIT = 512
"""Threads of which two blocks fit on a multiprocessor, so that one reads while the other sums. Beyond them a thread
rather keeps all that it may."""
VALUES = 16
"""Values that a thread takes before more threads are better."""
KEPT_BYTES = 128
"""Bytes of a row that a thread may keep: 32 registers, and as many for the scale or the residual."""
COLUMNS, SLICES = 32, 8
"""Threads of a channel-first block: across columns, and along the normalised dimension."""


@dataclasses.dataclass(frozen=True)
class GpuSchedules(Schedules[GpuSchedule]):
    """The schedules for one kind of GPU.

    Attributes:
        gpu: what it has.
    """

    gpu: Gpu

    def refusal(self, norm: Norm) -> Refusal | None:
        """See the protocol: the GPU's language may lack one of the norm's types."""
        for what, dtype in (
            ("values", norm.dtype),
            ("statistics", norm.stash),
            ("scale", norm.scale_dtype),
            ("rounding", norm.rounding),
        ):
            if dtype not in self.gpu.dtypes:
                return Refusal(
                    f"{self.gpu.name} has no {dtype}, which is the type of the {what} of norm {norm.name}",
                    f"Convert the model to {' or '.join(self.gpu.dtypes[:2])}, or name another target.",
                )
        return None

    def default(self, norm: Norm) -> GpuSchedule:
        """See the protocol."""
        if norm.columns:
            return GpuSchedule(1, COLUMNS, 0, SLICES, 1)
        if norm.size is None:
            lanes, threads = (1, MIDDLE) if self.gpu.address is None else (self._most_lanes(norm), TWO_FIT)
            return GpuSchedule(lanes, min(threads, self.gpu.threads), 0, 1, self._warp(norm))
        lanes = self._widest(norm)
        return self._arranged(norm, lanes, self._threads(norm, lanes))

    def candidates(self, norm: Norm) -> list[GpuSchedule]:
        """See the protocol."""
        first = self.default(norm)
        if norm.columns or norm.size is None:
            return [first]
        most = self.gpu.threads
        found = {first: None, dataclasses.replace(first, ahead=1 - first.ahead): None}
        count = -(-norm.size // first.lanes)
        threads = 8
        while threads <= most:
            if threads < 2 * count or threads == 8:
                found[self._arranged(norm, first.lanes, threads)] = None
            threads *= 2
        if first.vectors and first.threads < most:
            found[dataclasses.replace(first, rows=first.rows * 2)] = None
        return [s for s in found if s.rows * s.threads <= most]

    def trimmed(self, norm: Norm, schedule: GpuSchedule, most_values: int | None) -> GpuSchedule:
        """``schedule``: a kernel here has one way for all numbers of rows."""
        del norm, most_values
        return schedule

    def source(self, norm: Norm, schedule: GpuSchedule) -> str:
        """See the protocol."""
        kept = norm.size is not None and schedule.vectors * schedule.threads * schedule.lanes >= norm.size
        writer = Columns if norm.columns else Kept if kept else Streamed
        return "\n".join(writer(norm, schedule, self.gpu).function()) + "\n"

    def _warp(self, norm: Norm) -> int:
        """Threads of a warp where they can exchange values of the statistic's type, else 1."""
        return self.gpu.warp if 8 * float_type(norm.stash).itemsize <= self.gpu.shuffle_bits else 1

    def _most_lanes(self, norm: Norm) -> int:
        return min(self.gpu.vector_lanes, self.gpu.vector_bytes // float_type(norm.dtype).itemsize)

    def _widest(self, norm: Norm) -> int:
        """Lanes of the widest access that divides a row, so that every row begins where one may."""
        assert norm.size is not None
        lanes = self._most_lanes(norm)
        while norm.size % lanes:
            lanes //= 2
        return lanes

    def _threads(self, norm: Norm, lanes: int) -> int:
        """Threads for a row: so few that they need no shared memory, or that two rows fit, if that is enough."""
        assert norm.size is not None
        count, each, alone = -(-norm.size // lanes), VALUES // lanes, 32
        if count <= alone * each:
            threads = 8
            while threads < min(count, alone):
                threads *= 2
            return threads
        threads = alone * -(-count // (alone * each))
        if threads <= MIDDLE:
            return threads
        threads = MIDDLE
        most = KEPT_BYTES // (lanes * float_type(norm.dtype).itemsize)
        while threads * 2 <= self.gpu.threads and count > threads * (each if threads < TWO_FIT else most):
            threads *= 2
        return threads

    def _arranged(self, norm: Norm, lanes: int, threads: int) -> GpuSchedule:
        assert norm.size is not None
        vectors = -(-norm.size // (lanes * threads))
        kept = vectors * lanes * float_type(norm.dtype).itemsize
        if kept > KEPT_BYTES:
            return GpuSchedule(lanes, threads, 0, max(1, 32 // threads), self._warp(norm))
        ahead = int(kept <= KEPT_BYTES // 2)
        return GpuSchedule(lanes, threads, vectors, max(1, BLOCK // threads), self._warp(norm), ahead)
