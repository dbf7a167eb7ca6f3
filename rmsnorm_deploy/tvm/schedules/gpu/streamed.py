"""The kernel of rows that are too long for registers, or of unknown length: each is read twice."""

from __future__ import annotations

from rmsnorm_deploy.tvm.schedules.gpu.grid import GpuSchedule, Grid
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.values import indented
from rmsnorm_deploy.tvm.targets.gpu import Gpu


class Streamed(Grid):
    """The row is read twice, and its length may be unknown."""

    def __init__(self, norm: Norm, schedule: GpuSchedule, gpu: Gpu) -> None:
        super().__init__(norm, schedule, gpu)
        self.i = f"(block * {schedule.rows} + row)"
        self.vectors = "h" if norm.size is None else str(norm.size // schedule.lanes)
        self.turns = f"(({self.vectors} + {schedule.threads - 1}) // {schedule.threads})"

    def function(self) -> list[str]:
        """See the base."""
        n, s = self.norm, self.s
        scratch = [self.local(name, s.lanes, n.dtype) for name in (("x", "y", "r") if n.adds else ("x", "y"))]
        scratch += [self.local("w", s.lanes, n.scale_dtype), *self.registers()]
        scratch += [self.local("b", s.lanes, n.scale_dtype)] if n.biased else []
        scratch += [self.local(name, 1, self.c) for name in ("lost", "part")]
        body = [
            *self.long_sum(self.turns, self.take),
            *self.summed(),
            *self.factor(self.count()),
            f"for k in range({self.turns}):",
            *indented(self.put("k")),
        ]
        return self.launched(f"({self.n} + {s.rows - 1}) // {s.rows}", scratch + self.partials(), body)

    def at(self, k: str) -> str:
        """The first feature of the vector that a thread takes in turn ``k``."""
        return f"({k} * {self.s.threads} + lane) * {self.s.lanes}"

    def guard(self, k: str) -> list[str]:
        """Whether there is such a vector."""
        return self.within(self.row_exists, f"{k} * {self.s.threads} + lane < {self.vectors}")

    def take(self, k: str) -> list[str]:
        """The squares of a vector into ``part[0]``; where there is a residual, the sum is stored first."""
        n, lanes, at = self.norm, self.s.lanes, self.at(k)
        lines = self.moved("x[", f"X[{self.i}, {at}", lanes, n.dtype)
        if n.adds:
            lines += self.moved("r[", f"R[{self.i}, {at}", lanes, n.dtype)
            lines += [f"for v in T.unroll({lanes}):", *indented(self.added("x[v]", "r[v]"))]
            lines += [f"for v in T.vectorized({lanes}):", f"    S[{self.i}, {at} + v] = x[v]"]
        term = self.square("x[v]")
        if n.parameters.partial_size is not None:
            term = f"T.if_then_else({at} + v < {self.measured()}, {term}, {self.number(0.0)})"
        lines += [f"t[0] = {self.number(0.0)}", f"for v in T.unroll({lanes}):", f"    t[0] = t[0] + {term}"]
        return self.guarded(self.guard(k), [*lines, "part[0] = part[0] + t[0]"])

    def put(self, k: str) -> list[str]:
        """A vector of Y; where there is a residual, from the sum that was stored."""
        n, lanes, at = self.norm, self.s.lanes, self.at(k)
        lines = self.moved("x[", f"{'S' if n.adds else 'X'}[{self.i}, {at}", lanes, n.dtype)
        lines += self.moved("w[", f"W[{f'{self.i}, ' if n.full_scale else ''}{at}", lanes, n.scale_dtype)
        if n.biased:
            lines += self.moved("b[", f"B[{f'{self.i}, ' if n.full_bias else ''}{at}", lanes, n.scale_dtype)
        lines += [f"for v in T.unroll({lanes}):", *indented(self.finish("x[v]", "w[v]", "b[v]", "y[v]"))]
        lines += [f"for v in T.vectorized({lanes}):", f"    Y[{self.i}, {at} + v] = y[v]"]
        return self.guarded(self.guard(k), lines)
