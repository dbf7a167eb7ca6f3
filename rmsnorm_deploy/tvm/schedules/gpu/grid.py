"""What the three kernels have in common: the schedule, the grid, the scratch, and the sum over threads.

The threads of a row exchange their sums by shuffles where the language has them, and by way of shared memory between
warps; without shuffles all of it is shared memory. Every thread adds the same numbers in the same order, so that all
have the same statistic to the last bit. Long sums are made of short ones, put together with compensation, where a
compiler lets it stand.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence

from rmsnorm_deploy.tvm.schedules.gpu.values import GpuValues, fused
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.values import indented, tree
from rmsnorm_deploy.tvm.targets.gpu import Gpu

GROUP = 16
"""Sums that one thread adds up where there are no shuffles."""
CHAIN = 32
"""Additions one after the other where a row is streamed, before what they make is added to the rest."""
BELOW = 1.0 - 2.0**-21
"""An estimate of a reciprocal times this is less than it, so that what is left of 1 is not negative."""
_ALL_LANES = 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class GpuSchedule:
    """What can be chosen without changing the result by more than rounding.

    Attributes:
        lanes: values in one access to memory; a divisor of the row's length where that is known.
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
        super().__init__(norm, gpu)
        self.s = schedule

    def function(self) -> list[str]:
        """The whole kernel, line by line."""
        raise NotImplementedError

    # -- text around the body

    def launched(self, blocks: str, scratch: list[str], body: list[str], views: Sequence[str] = ()) -> list[str]:
        """The function whose every thread does ``body``, with ``lane`` and ``row`` for its place in the block.

        ``views`` are lines that declare other views of the arguments. A tensor without rows gets one block, as an empty
        launch is an error for a driver.
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
            *indented(list(views)),
            f'    for block in T.thread_binding(T.max({blocks}, T.int64(1)), thread="blockIdx.x"):',
            f'        for thread in T.thread_binding({threads * rows}, thread="threadIdx.x"):',
            '            with T.sblock("norm"):',
            f"                T.reads({read})",
            f"                T.writes({written})",
            *indented(scratch, 4),
            *indented(body, 4),
        ]

    def shared(self, name: str, rows: int, count: int) -> str:
        """A variable in the memory that a block shares, ``count`` values for each of its rows."""
        return f'{name} = T.sblock_alloc_buffer(({rows}, {count}), "{self.c}", scope="shared")'

    def registers(self, scratch: int = 1) -> list[str]:
        """The variables that every kernel needs; ``scratch`` is for how many values ``t`` and ``u`` are."""
        brief = [self.local("brief", 1, "bfloat16")] if self.native_bfloat16 else []
        counts = {"total": 1, "factor": 1, "t": scratch, "u": scratch}
        return [*brief, *(self.local(name, count, self.c) for name, count in counts.items())]

    # -- guards

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
        if self.rooted:
            return [*self.mean(), *self.newton()]
        lines = self.root("total[0]", count, "factor[0]")
        return lines if self.divides else [*lines, f"factor[0] = {self.number(1.0)} / factor[0]"]

    def newton(self) -> list[str]:
        """``factor[0]``, the reciprocal of the root of ``t[0]``, rounded once: an estimate and one step of Newton's.

        The residual, 1 - mean * estimate ^ 2, is exact to twice the precision: what rounding took from ``u``, the root,
        is put back. ``u`` is a normal number; where the mean is 0 or infinite it is NaN, and the estimate is exact.
        """
        zero, half, one = (self.number(value) for value in (0.0, 0.5, 1.0))
        root = "T.float32(-1.0) * u[0]"
        residual = f"{fused(root, 'factor[0]', one)} - {fused('t[0]', 'factor[0]', root)} * factor[0]"
        step = fused(f"factor[0] * {half}", "t[0]", "factor[0]")
        return [
            "factor[0] = T.rsqrt(t[0])",
            "u[0] = t[0] * factor[0]",
            f"t[0] = {residual}",
            f"factor[0] = T.if_then_else(u[0] > {zero}, {step}, factor[0])",
        ]

    def mean(self) -> list[str]:
        """The mean square in ``t[0]``: the sum is multiplied by the reciprocal of the number of features, in two parts.

        Neither part is negative: infinity stays infinity.
        """
        measured, total, epsilon = self.measured(), "total[0]", self.number(self.norm.parameters.epsilon)
        if not measured.isdigit():
            estimate = f'T.call_pure_extern("float32", "__fdividef", {self.number(1.0)}, {self.count()})'
            return [
                f"u[0] = {estimate} * {self.number(BELOW)}",
                f"factor[0] = u[0] * {fused('T.float32(-1.0) * u[0]', self.count(), self.number(1.0))}",
                f"t[0] = {fused(total, 'u[0]', f'{total} * factor[0]')} + {epsilon}",
            ]
        fraction, exponent = math.frexp(1.0 / int(measured))
        high = math.ldexp(math.floor(math.ldexp(fraction, 24)), exponent - 24)
        low = 1.0 / int(measured) - high
        product = f"{total} * {self.number(high)}"
        if low:
            product = fused(total, self.number(high), f"{total} * {self.number(low)}")
        return [f"t[0] = {product} + {epsilon}"]

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
