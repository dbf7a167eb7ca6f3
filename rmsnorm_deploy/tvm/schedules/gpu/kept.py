"""The kernel of rows that stay in registers between the statistic and the output."""

from __future__ import annotations

from rmsnorm_deploy.tvm.schedules.gpu.grid import GpuSchedule, Grid
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
        self.at = f"(lane + k * {s.threads}) * {s.lanes}"

    def function(self) -> list[str]:
        """See the base."""
        s, n = self.s, self.norm
        kept = s.vectors * s.lanes
        scratch = [self.local("x", kept, n.dtype), self.local("y", s.lanes, n.dtype), *self.registers()]
        scratch += [self.local("r", kept, n.dtype)] if n.adds else []
        scratch += [self.local("w", kept if s.ahead else s.lanes, n.scale_dtype)]
        scratch += [self.local("b", s.lanes, n.scale_dtype)] if n.biased else []
        body = [
            f"total[0] = {self.number(0.0)}",
            *self.each(self.read()),
            *self.each(self.take()),
            *self.summed(),
            *self.factor(self.count()),
            *self.each(self.put()),
        ]
        blocks = f"({self.n} + {s.rows - 1}) // {s.rows}"
        return self.launched(blocks, scratch + self.partials(), body)

    def each(self, lines: list[str]) -> list[str]:
        """``lines`` for each vector ``k`` of a thread."""
        return [f"for k in T.unroll({self.s.vectors}):", *indented(self.guarded(self.guard, lines))]

    def parameter(self, name: str, full: bool) -> str:
        """A vector of scale or bias, with an open index."""
        return f"{name}[{f'{self.i}, ' if full else ''}{self.at}"

    def read(self) -> list[str]:
        """Everything that the statistic needs, and the scale where it is read ahead."""
        n, lanes = self.norm, self.s.lanes
        lines = self.moved("x[", f"X[{self.i}, {self.at}", lanes, n.dtype, f"k * {lanes}")
        if n.adds:
            lines += self.moved("r[", f"R[{self.i}, {self.at}", lanes, n.dtype, f"k * {lanes}")
        if self.s.ahead:
            lines += self.moved("w[", self.parameter("W", n.full_scale), lanes, n.scale_dtype, f"k * {lanes}")
        return lines

    def take(self) -> list[str]:
        """The squares of a vector into ``total[0]``; where there is a residual, the sum is stored first."""
        n, lanes = self.norm, self.s.lanes
        x = f"x[k * {lanes} + v]"
        lines = []
        if n.adds:
            lines += [f"for v in T.unroll({lanes}):", *indented(self.added(x, f"r[k * {lanes} + v]"))]
            lines += [f"for v in T.vectorized({lanes}):", f"    S[{self.stored}, {self.at} + v] = {x}"]
        term = self.square(x)
        if int(self.measured()) < self.features:
            term = f"T.if_then_else({self.at} + v < {self.measured()}, {term}, {self.number(0.0)})"
        return [
            *lines,
            f"t[0] = {self.number(0.0)}",
            f"for v in T.unroll({lanes}):",
            f"    t[0] = t[0] + {term}",
            "total[0] = total[0] + t[0]",
        ]

    def put(self) -> list[str]:
        """A vector of Y."""
        n, s = self.norm, self.s
        lines = []
        if not s.ahead:
            lines += self.moved("w[", self.parameter("W", n.full_scale), s.lanes, n.scale_dtype)
        if n.biased:
            lines += self.moved("b[", self.parameter("B", n.full_bias), s.lanes, n.scale_dtype)
        scale = f"w[k * {s.lanes} + v]" if s.ahead else "w[v]"
        lines += [
            f"for v in T.unroll({s.lanes}):",
            *indented(self.finish(f"x[k * {s.lanes} + v]", scale, "b[v]", "y[v]")),
        ]
        return [*lines, f"for v in T.vectorized({s.lanes}):", f"    Y[{self.stored}, {self.at} + v] = y[v]"]
