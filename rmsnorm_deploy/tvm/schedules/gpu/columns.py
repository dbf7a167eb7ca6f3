"""The kernel of channel-first norms: values of a row lie apart, those of neighbouring rows side by side."""

from __future__ import annotations

from rmsnorm_deploy.tvm.schedules.gpu.grid import GpuSchedule, Grid
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.values import indented, tree
from rmsnorm_deploy.tvm.targets.gpu import Gpu


class Columns(Grid):
    """Normalised values lie ``inner`` apart: a block has ``threads`` columns side by side, cut in ``rows`` slices."""

    def __init__(self, norm: Norm, schedule: GpuSchedule, gpu: Gpu) -> None:
        super().__init__(norm, schedule, gpu)
        self.rooted = False  # values come one at a time, and what a division costs is hidden; the step would spill
        threads = schedule.threads
        self.strips = f"T.max(T.truncdiv({self.m} + {threads - 1}, T.int64({threads})), T.int64(1))"
        # truncated, as no number is negative: rounding towards minus infinity costs a selection each time
        self.i = f"T.truncdiv(block, {self.strips})"
        self.column = f"(T.truncmod(block, {self.strips}) * {threads} + lane)"

    def function(self) -> list[str]:
        """See the base."""
        n, s = self.norm, self.s
        body = [
            *self.long_sum(self.turns(self.measured()), self.take),
            "partial[row, lane] = total[0]",
            f"total[0] = {tree([f'partial[{r}, lane]' for r in range(s.rows)])}",
            *self.factor(self.count()),
            # left as a loop: nvcc unrolls it otherwise, and keeps more places of X and Y than there are registers
            f"for k in T.serial({self.turns(self.size)}, annotations={{'disable_unroll': True}}):",
            *indented(self.put("k")),
        ]
        scratch = [self.local("x", 1, n.dtype), *self.registers()] + ([self.local("r", 1, n.dtype)] if n.adds else [])
        scratch += [self.local(name, 1, self.c) for name in ("lost", "part")]
        scratch += [self.shared("partial", s.rows, s.threads)]
        return self.launched(f"{self.n} * {self.strips}", scratch, body)

    def turns(self, count: str) -> str:
        """Turns of a block over ``count`` features."""
        return f"(({count} + {self.s.rows - 1}) // {self.s.rows})"

    def j(self, k: str) -> str:
        """The feature that a thread takes in turn ``k``."""
        return f"({k} * {self.s.rows} + row)"

    def at(self, k: str) -> str:
        """Its place in X."""
        return f"{self.i}, {self.j(k)}, {self.column}"

    def guard(self, k: str, count: str) -> list[str]:
        """Whether there is such a place, among the first ``count`` features."""
        return self.within(self.row_exists, f"{self.column} < {self.m}", f"{self.j(k)} < {count}")

    def take(self, k: str) -> list[str]:
        """A square into ``part[0]``; where there is a residual, the sum is stored first."""
        at = self.at(k)
        lines = [f"x[0] = X[{at}]"]
        if self.norm.adds:
            lines += [f"r[0] = R[{at}]", *self.added("x[0]", "r[0]"), f"S[{at}] = x[0]"]
        lines += [f"part[0] = part[0] + {self.square('x[0]')}"]
        return self.guarded(self.guard(k, self.measured()), lines)

    def put(self, k: str) -> list[str]:
        """A value of Y; where there is a residual, from the sum that was stored."""
        n, at = self.norm, self.at(k)
        scale, bias = (
            f"{name}[{at if full else self.j(k)}]" for name, full in (("W", n.full_scale), ("B", n.full_bias))
        )
        lines = [f"x[0] = {'S' if n.adds else 'X'}[{at}]", *self.finish("x[0]", scale, bias, f"Y[{at}]")]
        return self.guarded(self.guard(k, self.size), lines)
