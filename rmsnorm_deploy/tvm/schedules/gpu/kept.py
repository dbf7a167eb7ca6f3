"""The kernel of rows that stay in registers between the statistic and the output."""

from __future__ import annotations

from rmsnorm_deploy.tvm.schedules.gpu.grid import GpuSchedule, Grid
from rmsnorm_deploy.tvm.schedules.gpu.vectors import vectors
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.values import indented
from rmsnorm_deploy.tvm.targets.gpu import Gpu


class Kept(Grid):
    """The row stays in registers."""

    def __init__(self, norm: Norm, schedule: GpuSchedule, gpu: Gpu) -> None:
        super().__init__(norm, schedule, gpu)
        assert norm.size is not None
        self.features = norm.size
        self.i = f"(block * {schedule.rows} + row)"
        # The same row. Written like the one that is read, it makes nvcc 13 store a row's first vector value by value.
        self.stored = f"T.min({self.i}, {self.n} - 1)" if schedule.rows > 1 else self.i
        s = schedule
        whole = s.threads * s.vectors * s.lanes == self.features
        self.guard = self.within(
            self.row_exists, None if whole else f"lane + k * {s.threads} < {self.features // s.lanes}"
        )
        self.taken = f"(lane + k * {s.threads})"
        self.held = vectors(self, s.lanes, gpu)

    def function(self) -> list[str]:
        """See the base."""
        s, n, held = self.s, self.norm, self.held
        scratch = [held.held("x", s.vectors, n.dtype), held.held("y", 1, n.dtype), *self.registers(held.scratch)]
        scratch += [held.held("r", s.vectors, n.dtype)] if n.adds else []
        scratch += [held.held("w", s.vectors if s.ahead else 1, n.scale_dtype)]
        scratch += [held.held("b", 1, n.scale_dtype)] if n.biased else []
        body = [
            f"total[0] = {self.number(0.0)}",
            *self.each(self.read()),
            *self.each(self.take()),
            *self.summed(),
            *self.factor(self.count()),
            *self.each(self.put()),
        ]
        blocks = f"({self.n} + {s.rows - 1}) // {s.rows}"
        return self.launched(blocks, scratch + self.partials(), body, held.views())

    def each(self, lines: list[str]) -> list[str]:
        """``lines`` for each vector ``k`` of a thread."""
        return [f"for k in T.unroll({self.s.vectors}):", *indented(self.guarded(self.guard, lines))]

    def parameter(self, tensor: str, name: str, slot: str, full: bool) -> list[str]:
        """A vector of scale or bias."""
        return self.held.read(name, slot, tensor, self.i if full else "", self.taken, self.norm.scale_dtype)

    def read(self) -> list[str]:
        """Everything that the statistic needs, and the scale where it is read ahead."""
        n = self.norm
        lines = self.held.read("x", "k", "X", self.i, self.taken, n.dtype)
        if n.adds:
            lines += self.held.read("r", "k", "R", self.i, self.taken, n.dtype)
        if self.s.ahead:
            lines += self.parameter("W", "w", "k", n.full_scale)
        return lines

    def take(self) -> list[str]:
        """The squares of a vector into ``total[0]``; where there is a residual, the sum is stored first."""
        lines = []
        if self.norm.adds:
            lines += self.held.add("k", "k") + self.held.write("S", self.stored, self.taken, "x", "k")
        partial = int(self.measured()) < self.features
        condition = (lambda v: f"{self.taken} * {self.s.lanes} + {v} < {self.measured()}") if partial else None
        return [*lines, *self.held.squares("k", condition), "total[0] = total[0] + t[0]"]

    def put(self) -> list[str]:
        """A vector of Y."""
        n, ahead = self.norm, self.s.ahead
        lines = [] if ahead else self.parameter("W", "w", "0", n.full_scale)
        lines += self.parameter("B", "b", "0", n.full_bias) if n.biased else []
        lines += self.held.finish("k", "k" if ahead else "0")
        return [*lines, *self.held.write("Y", self.stored, self.taken, "y")]
