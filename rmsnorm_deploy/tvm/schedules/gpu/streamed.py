"""The kernel of rows that are too long for registers, or of unknown length: each is read twice."""

from __future__ import annotations

from rmsnorm_deploy.tvm.schedules.gpu.grid import GpuSchedule, Grid
from rmsnorm_deploy.tvm.schedules.gpu.values import call
from rmsnorm_deploy.tvm.schedules.gpu.vectors import Vectors, vectors
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.values import indented
from rmsnorm_deploy.tvm.targets.gpu import Gpu

ALIGNED = 16
"""Bytes of the widest access, of which an address has to be a multiple."""


class Streamed(Grid):
    """The row is read twice, and its length may be unknown.

    A row of unknown length goes by whole vectors where they divide it and every tensor begins at a multiple of them,
    and value by value elsewhere: the kernel itself asks.
    """

    def __init__(self, norm: Norm, schedule: GpuSchedule, gpu: Gpu) -> None:
        super().__init__(norm, schedule, gpu)
        self.i = f"(block * {schedule.rows} + row)"
        # The same row. Written like the one that is read, it makes nvcc 13 store a vector of float32 value by value.
        self.stored = f"T.min({self.i}, {self.n} - 1)" if norm.size is None and schedule.lanes > 1 else self.i
        self.ways = [vectors(self, schedule.lanes, gpu)]
        if norm.size is None and schedule.lanes > 1:
            self.ways.append(vectors(self, 1, gpu, "1"))

    def function(self) -> list[str]:
        """See the base."""
        n, s = self.norm, self.s
        scratch = [w.held(name, 1, n.dtype) for w in self.ways for name in (("x", "y", "r") if n.adds else ("x", "y"))]
        scratch += [w.held("w", 1, n.scale_dtype) for w in self.ways]
        scratch += [w.held("b", 1, n.scale_dtype) for w in self.ways] if n.biased else []
        scratch += self.registers(self.ways[0].scratch)
        scratch += [self.local(name, 1, self.c) for name in ("lost", "part")]
        sums = [self.long_sum(self.turns(w), lambda k, w=w: self.take(w, k)) for w in self.ways]  # type: ignore[misc]
        puts = [[f"for k in {self.loop(w)}:", *indented(self.put(w, "k"))] for w in self.ways]
        body = [*self.one_of(sums), *self.summed(), *self.factor(self.count()), *self.one_of(puts)]
        views = self.ways[0].views()
        return self.launched(f"({self.n} + {s.rows - 1}) // {s.rows}", scratch + self.partials(), body, views)

    def odd(self) -> str:
        """What is 0 where whole vectors can be read and written: an expression of type uint32."""
        assert self.gpu.address is not None
        bits = f"T.cast(T.truncmod(h, {self.s.lanes}), 'uint32')"
        for name, _, _ in self.arguments():
            address = call(self.gpu.address, f"{name}.data")
            bits = f"T.bitwise_or({bits}, T.bitwise_and({address}, T.uint32({ALIGNED - 1})))"
        return bits

    def one_of(self, ways: list[list[str]]) -> list[str]:
        """The first way where nothing is odd, else the second; the only one if there is one."""
        if len(ways) == 1:
            return ways[0]
        return [f"if {self.odd()} == T.uint32(0):", *indented(ways[0]), "else:", *indented(ways[1])]

    def turns(self, way: Vectors) -> str:
        """The turns of a row's threads over its vectors."""
        turns = f"(({way.count} + {self.s.threads - 1}) // {self.s.threads})"
        return turns if len(self.ways) == 1 else f"T.cast({turns}, 'int32')"

    def loop(self, way: Vectors) -> str:
        """The turns for the output. Whole vectors are bytes enough in flight without unrolling, which spills then."""
        if len(self.ways) > 1 and way.lanes > 1:
            return f'T.serial({self.turns(way)}, annotations={{"disable_unroll": True}})'
        return f"range({self.turns(way)})"

    def taken(self, k: str) -> str:
        """The vector that a thread takes in turn ``k``."""
        if len(self.ways) > 1:
            k = f"T.cast({k}, 'int64')"
        return f"({k} * {self.s.threads} + lane)"

    def guard(self, way: Vectors, k: str) -> list[str]:
        """Whether there is such a vector."""
        return self.within(self.row_exists, f"{self.taken(k)} < {way.count}")

    def take(self, way: Vectors, k: str) -> list[str]:
        """The squares of a vector into ``part[0]``; where there is a residual, the sum is stored first."""
        n, vector = self.norm, self.taken(k)
        lines = way.read("x", "0", "X", self.i, vector, n.dtype)
        if n.adds:
            lines += way.read("r", "0", "R", self.i, vector, n.dtype)
            lines += way.add("0", "0") + way.write("S", self.stored, vector, "x")
        partial = n.parameters.partial_size is not None
        condition = (lambda v: f"{vector} * {way.lanes} + {v} < {self.measured()}") if partial else None
        lines += way.squares("0", condition)
        return self.guarded(self.guard(way, k), [*lines, "part[0] = part[0] + t[0]"])

    def put(self, way: Vectors, k: str) -> list[str]:
        """A vector of Y; where there is a residual, from the sum that was stored."""
        n, vector = self.norm, self.taken(k)
        lines = way.read("x", "0", "S" if n.adds else "X", self.i, vector, n.dtype)
        lines += way.read("w", "0", "W", self.i if n.full_scale else "", vector, n.scale_dtype)
        if n.biased:
            lines += way.read("b", "0", "B", self.i if n.full_bias else "", vector, n.scale_dtype)
        lines += way.finish("0", "0") + way.write("Y", self.stored, vector, "y")
        return self.guarded(self.guard(way, k), lines)
