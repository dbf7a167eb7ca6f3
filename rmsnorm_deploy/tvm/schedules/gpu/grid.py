"""What the three kernels have in common: the schedule, the grid, the scratch, and the sum over threads.

The threads of a row exchange their sums by shuffles where the language has them, and by way of shared memory between
warps; without shuffles all of it is shared memory. Every thread adds the same numbers in the same order, so that all
have the same statistic to the last bit. Long sums are made of short ones, put together with compensation, where a
compiler lets it stand.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from rmsnorm_deploy.op.dtypes import float_type
from rmsnorm_deploy.tvm.schedules.gpu.values import GpuValues
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.values import indented, tree
from rmsnorm_deploy.tvm.targets.gpu import Gpu

GROUP = 16
"""Sums that one thread adds up where there are no shuffles."""
CHAIN = 32
"""Additions one after the other where a row is streamed, before what they make is added to the rest."""
_ALL_LANES = 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class GpuSchedule:
    """What can be chosen without changing the result by more than rounding.

    Attributes:
        lanes: values in one access to memory; a divisor of the row's length.
        threads: threads of a row; channel-first, columns of a block.
        vectors: vectors of a row that a thread keeps; too few for the row, or 0: it is streamed.
        rows: rows of a block; channel-first, threads along the normalised dimension.
        warp: threads that exchange values by shuffles; 1 for none.
        ahead: 1 if the scale is read before the statistic is known, 0 if after.
    """

    lanes: int
    threads: int
    vectors: int
    rows: int
    warp: int
    ahead: int = 1

    def __post_init__(self) -> None:
        """Refuse what no GPU has, and more code than anybody can compile.

        Raises:
            ValueError: a value cannot be chosen.
        """
        least, most = (1, 1, 0, 1, 1, 0), (16, 1024, 256, 1024, 64, 1)
        values = dataclasses.astuple(self)
        if not all(low <= value <= high for low, value, high in zip(least, values, most, strict=True)):
            raise ValueError(f"there is no such schedule: {self}")


class Grid(GpuValues):
    """What the three have in common: the grid, the scratch, and the sum over threads.

    Attributes:
        i: the row of a thread.
    """

    i: str

    def __init__(self, norm: Norm, schedule: GpuSchedule, gpu: Gpu) -> None:
        super().__init__(norm, gpu.rounds_bfloat16)
        self.s, self.gpu = schedule, gpu

    def function(self) -> list[str]:
        """The whole kernel, line by line."""
        raise NotImplementedError

    # -- text around the body

    def launched(self, blocks: str, scratch: list[str], body: list[str]) -> list[str]:
        """The function whose every thread does ``body``, with ``lane`` and ``row`` for its place in the block.

        A tensor without rows gets one block, as an empty launch is an error for a driver.
        """
        threads, rows = self.s.threads, self.s.rows
        places = {"lane": f"(thread % {threads})", "row": f"(thread // {threads})"}
        places = places if rows > 1 else {"lane": "thread", "row": "0"}
        body = [re.sub(r"\b(lane|row)\b", lambda name: places[name[0]], line) for line in body]
        arguments = self.arguments()
        read = ", ".join(self.region(name, shape) for name, shape, _ in arguments if name not in "YS")
        written = ", ".join(self.region(name, shape) for name, shape, _ in arguments if name in "YS")
        return [
            *self.head(),
            f'    for block in T.thread_binding(T.max({blocks}, T.int64(1)), thread="blockIdx.x"):',
            f'        for thread in T.thread_binding({threads * rows}, thread="threadIdx.x"):',
            '            with T.sblock("norm"):',
            f"                T.reads({read})",
            f"                T.writes({written})",
            *indented(scratch, 4),
            *indented(body, 4),
        ]

    @staticmethod
    def local(name: str, count: int, dtype: str) -> str:
        """A variable in the registers of a thread."""
        return f'{name} = T.sblock_alloc_buffer(({count},), "{dtype}", scope="local")'

    def shared(self, name: str, rows: int, count: int) -> str:
        """A variable in the memory that a block shares, ``count`` values for each of its rows."""
        return f'{name} = T.sblock_alloc_buffer(({rows}, {count}), "{self.c}", scope="shared")'

    def registers(self) -> list[str]:
        """The variables that every kernel needs."""
        brief = [self.local("brief", 1, "bfloat16")] if self.native_bfloat16 else []
        return [*brief, *(self.local(name, 1, self.c) for name in ("total", "factor", "t", "u"))]

    # -- a vector of memory

    def moved(self, to: str, source: str, lanes: int, dtype: str, base: str = "0") -> list[str]:
        """``lanes`` values from ``source`` to ``to``, which end in an open index, in accesses of at most 16 bytes."""
        width = min(lanes, 16 // float_type(dtype).itemsize)
        if width == lanes:
            return [f"for v in T.vectorized({lanes}):", f"    {to}{base} + v] = {source} + v]"]
        return [
            f"for g in T.unroll({lanes // width}):",
            f"    for v in T.vectorized({width}):",
            f"        {to}{base} + g * {width} + v] = {source} + g * {width} + v]",
        ]

    def within(self, *conditions: str | None) -> list[str]:
        """The line that guards what follows, if anything has to be guarded."""
        needed = [c for c in conditions if c]
        return [f"if {' and '.join(needed)}:"] if needed else []

    @staticmethod
    def guarded(guard: list[str], lines: list[str]) -> list[str]:
        """``lines`` behind the line from :meth:`within`."""
        return [*guard, *indented(lines, len(guard))]

    @property
    def row_exists(self) -> str:
        """Whether the row of a thread is one of the tensor: its last block may have more rows."""
        return f"{self.i} < {self.n}"

    # -- the statistic

    def partials(self) -> list[str]:
        """The shared memory that :meth:`summed` needs."""
        threads, warp = self.s.threads, self.s.warp
        if threads <= warp or threads == 1:
            return []
        if warp > 1:
            return [self.shared("partial", self.s.rows, threads // warp)]
        second = [self.shared("second", self.s.rows, threads // GROUP)] if threads > 2 * GROUP else []
        return [self.shared("partial", self.s.rows, threads), *second]

    def summed(self) -> list[str]:
        """``total[0]`` over the threads of a row, the same bits in each of them. TVM puts in the barriers."""
        threads, warp = self.s.threads, self.s.warp
        lines = []
        if warp > 1:
            width = min(threads, warp)
            while width > 1:
                lines.append(f"total[0] = total[0] + {self.exchanged(width // 2)}")
                width //= 2
        if threads <= warp or threads == 1:
            return lines
        if warp > 1:
            lines += [f"if lane % {warp} == 0:", f"    partial[row, lane // {warp}] = total[0]"]
            return [*lines, f"total[0] = {tree([f'partial[row, {w}]' for w in range(threads // warp)])}"]
        lines += ["partial[row, lane] = total[0]"]
        count, name = threads, "partial"
        if threads > 2 * GROUP:
            count, name = threads // GROUP, "second"
            group = [f"partial[row, lane + {g * count}]" for g in range(GROUP)]
            lines += [f"if lane < {count}:", f"    second[row, lane] = {tree(group)}"]
        return [*lines, f"total[0] = {tree([f'{name}[row, {w}]' for w in range(count)])}"]

    def exchanged(self, offset: int) -> str:
        """The sum of the thread whose place differs in the bit ``offset``."""
        width = min(self.s.threads, self.s.warp)
        if self.gpu.shuffles_by_xor:
            return f"T.tvm_warp_shuffle_xor(T.uint32({_ALL_LANES}), total[0], {offset}, {width}, {self.s.warp})"
        # Without such a shuffle, the correct one of two; correct for a simdgroup of any size from this one on.
        up, down = (
            f"T.tvm_warp_shuffle_{way}(T.uint32({_ALL_LANES}), total[0], {offset}, {width}, {self.s.warp})"
            for way in ("up", "down")
        )
        return f"T.Select(T.bitwise_and(lane, {offset}) == 0, {down}, {up})"

    def factor(self, count: str) -> list[str]:
        """``factor[0]``, from the sum of squares: the RMS where values are divided by it, else its reciprocal."""
        lines = self.root("total[0]", count, "factor[0]")
        return lines if self.divides else [*lines, f"factor[0] = {self.number(1.0)} / factor[0]"]

    def added(self, x: str, residual: str) -> list[str]:
        """The sum in the place of ``x``."""
        return [f"t[0] = {self.combined(x, residual)}", f"{x} = {self.narrow('t[0]', self.norm.dtype)}"]

    def square(self, x: str) -> str:
        """The square of a value of X, in the type of the arithmetic."""
        return f"{self.wide(x, self.norm.dtype)} * {self.wide(x, self.norm.dtype)}"

    def long_sum(self, turns: str, turn: Callable[[str], list[str]]) -> list[str]:
        """``total[0]``, of what each turn adds to ``part[0]``; ``turn`` has the lines of the turn with a number.

        What is lost when a part is added goes to ``lost[0]`` (Knuth's TwoSum), and comes back at the end, unless it is
        not a number because the sum is infinite.
        """
        zero = self.number(0.0)
        return [
            f"total[0] = {zero}",
            f"lost[0] = {zero}",
            f"for o in range(({turns} + {CHAIN - 1}) // {CHAIN}):",
            f"    part[0] = {zero}",
            f"    for q in range(T.min({CHAIN}, {turns} - o * {CHAIN})):",
            *indented(turn(f"(o * {CHAIN} + q)"), 2),
            "    u[0] = total[0] + part[0]",
            "    t[0] = u[0] - total[0]",
            "    lost[0] = lost[0] + ((total[0] - (u[0] - t[0])) + (part[0] - t[0]))",
            "    total[0] = u[0]",
            "total[0] = T.if_then_else(total[0] + total[0] == total[0], total[0], total[0] + lost[0])",
        ]

    def measured(self) -> str:
        """The number of measured features, an expression."""
        partial, size = self.norm.parameters.partial_size, self.norm.size
        if size is None:
            return "h" if partial is None else f"T.min(T.int64({partial}), h)"
        return str(size if partial is None else min(partial, size))

    def count(self) -> str:
        """The number of measured features, in the type of the arithmetic."""
        measured = self.measured()
        return self.number(float(measured)) if measured.isdigit() else f'T.cast({measured}, "{self.c}")'
