"""The GPU schedule: a row goes through memory once, in the widest accesses, and waits for its threads at most twice.

A kernel is TVMScript text that is written out here and parsed; ``source`` returns it. There are three:

    kept      the row stays in registers between the statistic and the output,
    streamed  the row is too long for that, or its length is not known: it is read twice,
    columns   normalised values lie apart (channel-first): neighbouring threads take neighbouring columns.

Long sums are made of short ones, put together with compensation, where a compiler lets it stand.

The threads of a row exchange their sums by shuffles where the language has them, and by way of shared memory between
warps; without shuffles all of it is shared memory. Every thread adds the same numbers in the same order, so that all
have the same statistic to the last bit. Arithmetic is in the norm's stash type and nothing wider: many GPUs have
float64 at a small part of the rate, or not at all.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from tvm.script import from_source
from tvm.script import ir as I
from tvm.script import tirx as T

from rmsnorm_deploy.tvm.schedules.gpu.values import GpuValues
from rmsnorm_deploy.tvm.schedules.norm import ITEMSIZE, Norm
from rmsnorm_deploy.tvm.schedules.values import indented, tree
from rmsnorm_deploy.tvm.targets.limits import LIMITS, Limits, check_types, limits_of

BLOCK = 128
"""Threads that rows share which need fewer."""
MIDDLE = 256
"""Threads beyond which a thread rather takes several vectors of its row."""
VALUES = 16
"""Values that a thread takes before more threads are better."""
KEPT_BYTES = 128
"""Bytes of a row that a thread may keep: 32 registers, and as many for the scale or the residual."""
COLUMNS, SLICES = 32, 8
"""Threads of a channel-first block: across columns, and along the normalised dimension."""
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
        cuda: 1 if the language is CUDA's, which has a shuffle by exclusive or, and rounds to bfloat16 itself.
        ahead: 1 if the scale is read before the statistic is known, 0 if after.
    """

    lanes: int
    threads: int
    vectors: int
    rows: int
    warp: int
    cuda: int = 0
    ahead: int = 1


def default(norm: Norm, target: Any) -> GpuSchedule:
    """The schedule that is taken when nothing was tuned.

    Raises:
        ModelError: the GPU's language lacks one of the norm's types.
    """
    limits = limits_of(target)
    check_types(norm, limits)
    warp, cuda = _warp(norm, limits), int(limits is LIMITS["cuda"])
    if norm.columns:
        return GpuSchedule(1, COLUMNS, 0, SLICES, 1, cuda)
    if norm.size is None:
        return GpuSchedule(1, min(MIDDLE, limits.threads), 0, 1, warp, cuda)
    lanes = _widest(norm, limits)
    return _arranged(norm, limits, lanes, _threads(-(-norm.size // lanes), VALUES // lanes, limits))


def candidates(norm: Norm, target: Any) -> list[GpuSchedule]:
    """The schedules that tuning tries, the default first."""
    first = default(norm, target)
    if norm.columns or norm.size is None:
        return [first]
    limits = limits_of(target)
    found = {first: None, dataclasses.replace(first, ahead=1 - first.ahead): None}
    count = -(-norm.size // first.lanes)
    threads = 8
    while threads <= limits.threads:
        if threads < 2 * count or threads == 8:
            found[_arranged(norm, limits, first.lanes, threads)] = None
        threads *= 2
    if first.vectors and first.threads < limits.threads:
        found[dataclasses.replace(first, rows=first.rows * 2)] = None
    return [s for s in found if s.rows * s.threads <= limits.threads]


def _warp(norm: Norm, limits: Limits) -> int:
    """Shuffles move 32 bits; CUDA's also move 64."""
    return limits.warp if norm.stash == "float32" or limits is LIMITS["cuda"] else 1


def _widest(norm: Norm, limits: Limits) -> int:
    """Lanes of the widest access that divides a row, so that every row begins where one may."""
    assert norm.size is not None
    lanes = min(limits.vector_lanes, limits.vector_bytes // ITEMSIZE[norm.dtype])
    while norm.size % lanes:
        lanes //= 2
    return lanes


def _threads(count: int, each: int, limits: Limits) -> int:
    """Threads for a row of ``count`` vectors: so few that they need no shared memory, if that is enough."""
    alone = 32
    if count <= alone * each:
        threads = 8
        while threads < min(count, alone):
            threads *= 2
        return threads
    threads = alone * -(-count // (alone * each))
    if threads <= MIDDLE:
        return threads
    threads = MIDDLE
    while threads * 2 <= limits.threads and count > threads * each:
        threads *= 2
    return threads


def _arranged(norm: Norm, limits: Limits, lanes: int, threads: int) -> GpuSchedule:
    assert norm.size is not None
    vectors = -(-norm.size // (lanes * threads))
    kept = vectors * lanes * ITEMSIZE[norm.dtype]
    warp, cuda = _warp(norm, limits), int(limits is LIMITS["cuda"])
    if kept > KEPT_BYTES:
        return GpuSchedule(lanes, threads, 0, max(1, 32 // threads), warp, cuda)
    return GpuSchedule(lanes, threads, vectors, max(1, BLOCK // threads), warp, cuda, int(kept <= KEPT_BYTES // 2))


def trimmed(norm: Norm, schedule: GpuSchedule, most_values: int | None) -> GpuSchedule:
    """``schedule``: a kernel here has one way for all numbers of rows."""
    del norm, most_values
    return schedule


def kernel(norm: Norm, schedule: GpuSchedule) -> Any:
    """``norm`` as a scheduled ``tvm.tirx.PrimFunc`` with a symbolic number of rows.

    Its arguments are X, residual (AddRMSNorm), scale, bias (GeneralRMSNorm), Y, sum (AddRMSNorm); X has shape
    (outer..., size), or (outer..., size, inner...) where ``norm.columns``.
    """
    return from_source(source(norm, schedule), {"T": T, "I": I})


def source(norm: Norm, schedule: GpuSchedule) -> str:
    """The kernel's TVMScript."""
    kept = norm.size is not None and schedule.vectors * schedule.threads * schedule.lanes >= norm.size
    writer = _Columns if norm.columns else _Kept if kept else _Streamed
    return "\n".join(writer(norm, schedule).function()) + "\n"


class _Gpu(GpuValues):
    """What the three have in common: the grid, the scratch, and the sum over threads.

    Attributes:
        i: the row of a thread.
    """

    i: str

    def __init__(self, norm: Norm, schedule: GpuSchedule) -> None:
        super().__init__(norm, bool(schedule.cuda))
        self.s = schedule

    # -- text around the body

    def launched(self, blocks: str, scratch: list[str], body: list[str]) -> list[str]:
        """The function whose every thread does ``body``, with ``lane`` and ``row`` for its place in the block.

        No launch is empty: an empty grid is an error for a driver, a grid without a row is none.
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
        return f'{name} = T.sblock_alloc_buffer(({count},), "{dtype}", scope="local")'

    def shared(self, name: str, rows: int, count: int) -> str:
        return f'{name} = T.sblock_alloc_buffer(({rows}, {count}), "{self.c}", scope="shared")'

    def registers(self) -> list[str]:
        brief = [self.local("brief", 1, "bfloat16")] if self.s.cuda else []
        return [*brief, *(self.local(name, 1, self.c) for name in ("total", "factor", "t", "u"))]

    # -- a vector of memory

    def moved(self, to: str, source: str, lanes: int, dtype: str, base: str = "0") -> list[str]:
        """``lanes`` values from ``source`` to ``to``, which end in an open index, in accesses of at most 16 bytes."""
        width = min(lanes, 16 // ITEMSIZE[dtype])
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
        return [*guard, *indented(lines, len(guard))]

    @property
    def row_exists(self) -> str:
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
        if self.s.cuda:
            return f"T.tvm_warp_shuffle_xor(T.uint32({_ALL_LANES}), total[0], {offset}, {width}, {self.s.warp})"
        # Without such a shuffle, the right one of two; right for a simdgroup of any size from this one on.
        up, down = (
            f"T.tvm_warp_shuffle_{way}(T.uint32({_ALL_LANES}), total[0], {offset}, {width}, {self.s.warp})"
            for way in ("up", "down")
        )
        return f"T.Select(T.bitwise_and(lane, {offset}) == 0, {down}, {up})"

    def factor(self, count: str) -> list[str]:
        lines = self.root("total[0]", count, "factor[0]")
        return lines if self.divides else [*lines, f"factor[0] = {self.number(1.0)} / factor[0]"]

    def added(self, x: str, residual: str) -> list[str]:
        """The sum in the place of ``x``."""
        dtype = self.norm.dtype
        return [
            f"t[0] = {self.wide(x, dtype)} + {self.wide(residual, dtype)}",
            f"{x} = {self.narrow('t[0]', dtype)}",
        ]

    def square(self, x: str) -> str:
        return f"{self.wide(x, self.norm.dtype)} * {self.wide(x, self.norm.dtype)}"

    def long_sum(self, turns: str, turn: Callable[[str], list[str]]) -> list[str]:
        """``total[0]``, of what each turn adds to ``part[0]``; ``turn`` has the lines of the turn with a number.

        What is lost when a part is added goes to ``lost[0]`` (Knuth's TwoSum), and comes back at the end, unless it is
        no number because the sum is infinite.
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
        measured = self.measured()
        return self.number(float(measured)) if measured.isdigit() else f'T.cast({measured}, "{self.c}")'


class _Kept(_Gpu):
    """The row stays in registers."""

    def __init__(self, norm: Norm, schedule: GpuSchedule) -> None:
        super().__init__(norm, schedule)
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
        return [f"for k in T.unroll({self.s.vectors}):", *indented(self.guarded(self.guard, lines))]

    def parameter(self, name: str, full: bool) -> str:
        return f"{name}[{f'{self.i}, ' if full else ''}{self.at}"

    def read(self) -> list[str]:
        n, lanes = self.norm, self.s.lanes
        lines = self.moved("x[", f"X[{self.i}, {self.at}", lanes, n.dtype, f"k * {lanes}")
        if n.adds:
            lines += self.moved("r[", f"R[{self.i}, {self.at}", lanes, n.dtype, f"k * {lanes}")
        if self.s.ahead:
            lines += self.moved("w[", self.parameter("W", n.full_scale), lanes, n.scale_dtype, f"k * {lanes}")
        return lines

    def take(self) -> list[str]:
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


class _Streamed(_Gpu):
    """The row is read twice, and its length may be unknown."""

    def __init__(self, norm: Norm, schedule: GpuSchedule) -> None:
        super().__init__(norm, schedule)
        self.i = f"(block * {schedule.rows} + row)"
        self.vectors = "h" if norm.size is None else str(norm.size // schedule.lanes)
        self.turns = f"(({self.vectors} + {schedule.threads - 1}) // {schedule.threads})"

    def function(self) -> list[str]:
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
        return f"({k} * {self.s.threads} + lane) * {self.s.lanes}"

    def guard(self, k: str) -> list[str]:
        return self.within(self.row_exists, f"{k} * {self.s.threads} + lane < {self.vectors}")

    def take(self, k: str) -> list[str]:
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
        n, lanes, at = self.norm, self.s.lanes, self.at(k)
        lines = self.moved("x[", f"{'S' if n.adds else 'X'}[{self.i}, {at}", lanes, n.dtype)
        lines += self.moved("w[", f"W[{f'{self.i}, ' if n.full_scale else ''}{at}", lanes, n.scale_dtype)
        if n.biased:
            lines += self.moved("b[", f"B[{f'{self.i}, ' if n.full_bias else ''}{at}", lanes, n.scale_dtype)
        lines += [f"for v in T.unroll({lanes}):", *indented(self.finish("x[v]", "w[v]", "b[v]", "y[v]"))]
        lines += [f"for v in T.vectorized({lanes}):", f"    Y[{self.i}, {at} + v] = y[v]"]
        return self.guarded(self.guard(k), lines)


class _Columns(_Gpu):
    """Normalised values lie ``inner`` apart: a block has ``threads`` columns side by side, cut in ``rows`` slices."""

    def __init__(self, norm: Norm, schedule: GpuSchedule) -> None:
        super().__init__(norm, schedule)
        threads = schedule.threads
        self.strips = f"T.max(T.truncdiv({self.m} + {threads - 1}, T.int64({threads})), T.int64(1))"
        # truncated, as no number is negative: rounding towards minus infinity costs a selection each time
        self.i = f"T.truncdiv(block, {self.strips})"
        self.column = f"(T.truncmod(block, {self.strips}) * {threads} + lane)"

    def function(self) -> list[str]:
        n, s = self.norm, self.s
        body = [
            *self.long_sum(self.turns(self.measured()), self.take),
            "partial[row, lane] = total[0]",
            f"total[0] = {tree([f'partial[{r}, lane]' for r in range(s.rows)])}",
            *self.factor(self.count()),
            f"for k in range({self.turns(self.size)}):",
            *indented(self.put("k")),
        ]
        scratch = [self.local("x", 1, n.dtype), *self.registers()] + ([self.local("r", 1, n.dtype)] if n.adds else [])
        scratch += [self.local(name, 1, self.c) for name in ("lost", "part")]
        scratch += [self.shared("partial", s.rows, s.threads)]
        return self.launched(f"{self.n} * {self.strips}", scratch, body)

    def turns(self, count: str) -> str:
        return f"(({count} + {self.s.rows - 1}) // {self.s.rows})"

    def j(self, k: str) -> str:
        return f"({k} * {self.s.rows} + row)"

    def at(self, k: str) -> str:
        return f"{self.i}, {self.j(k)}, {self.column}"

    def guard(self, k: str, count: str) -> list[str]:
        return self.within(self.row_exists, f"{self.column} < {self.m}", f"{self.j(k)} < {count}")

    def take(self, k: str) -> list[str]:
        at = self.at(k)
        lines = [f"x[0] = X[{at}]"]
        if self.norm.adds:
            lines += [f"r[0] = R[{at}]", *self.added("x[0]", "r[0]"), f"S[{at}] = x[0]"]
        lines += [f"part[0] = part[0] + {self.square('x[0]')}"]
        return self.guarded(self.guard(k, self.measured()), lines)

    def put(self, k: str) -> list[str]:
        n, at = self.norm, self.at(k)
        scale, bias = (
            f"{name}[{at if full else self.j(k)}]" for name, full in (("W", n.full_scale), ("B", n.full_bias))
        )
        lines = [f"x[0] = {'S' if n.adds else 'X'}[{at}]", *self.finish("x[0]", scale, bias, f"Y[{at}]")]
        return self.guarded(self.guard(k, self.size), lines)
