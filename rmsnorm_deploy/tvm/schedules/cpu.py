"""The CPU schedule: vector accumulators, a tail for any size, chunks of rows for the threads.

A kernel is TVMScript text that is written out here and parsed, because what matters (which loop is a vector, where
scratch lives) is then readable in the result; ``source`` returns the text.

The statistic of a row goes into ``accumulators`` vectors of ``lanes`` values, so that no addition waits for the one
before; after ``CHAIN`` additions they are put aside, so that a long row loses no digits. Root and reciprocal are taken
in float64, for a batch of short rows at a time.

Scratch has the scope "global" and few bytes: that is what TVM leaves on the stack, where LLVM makes registers of it.
What has another scope, or 1024 bytes and more, it takes from a pool: 20 ns for each piece, in every task.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tvm.script import from_source
from tvm.script import ir as I
from tvm.script import tirx as T
from tvm.target import codegen

from rmsnorm_deploy.tvm.norm import Norm

ANY_RANK = True
CHAIN = 32
"""Additions into one accumulator before it is put aside."""
BATCH_BYTES = 16384
"""Of X in a batch, at most, so that it is still in the first cache when it is read again."""
MOST_BATCH = 16
COLUMNS = 64
"""Columns that one task of a channel-first norm takes together."""

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_LEAST_RMS, _MOST_RMS = 2.0**-100, 2.0**100
"""Between these an RMS has a reciprocal whose low part is a normal number, too; elsewhere values are divided."""
_ROUND_DOWN = 1.0 - 2.0**-23
"""Makes the high part smaller than the reciprocal, so that the low one is positive: infinity times both is infinity."""


@dataclasses.dataclass(frozen=True)
class CpuSchedule:
    """What can be chosen without changing the result by more than rounding.

    Attributes:
        lanes: values in one vector of float32 arithmetic; half as many in float64.
        accumulators: vectors that are summed side by side; any number.
        serial_below: values in X below which the threads are left asleep.
        task_values: a task takes as many rows as make up this many values, and whole batches.
        batch: rows whose roots and reciprocals are taken together, as one vector.
    """

    lanes: int = 8
    accumulators: int = 4
    serial_below: int = 49152
    task_values: int = 8192
    batch: int = 1


def default(norm: Norm, target: Any) -> CpuSchedule:
    """The schedule that is taken when nothing was tuned."""
    row, batch = (norm.size or BATCH_BYTES) * _BYTES[norm.dtype], 1
    while batch < MOST_BATCH and 2 * batch * row <= BATCH_BYTES:
        batch *= 2
    return CpuSchedule(lanes=16 if codegen.llvm_get_vector_width(target) >= 512 else 8, batch=batch)


def candidates(norm: Norm, target: Any) -> list[CpuSchedule]:
    """The schedules that tuning tries, the default first."""
    first = default(norm, target)
    return [first]


def kernel(norm: Norm, schedule: CpuSchedule | None = None) -> Any:
    """``norm`` as a scheduled ``tvm.tirx.PrimFunc`` with a symbolic number of rows.

    Its arguments are X, residual (AddRMSNorm), scale, bias (GeneralRMSNorm), Y, sum (AddRMSNorm); X has shape
    (outer..., size), or (outer..., size, inner...) where ``norm.columns``.
    """
    return from_source(source(norm, schedule), {"T": T, "I": I})


def source(norm: Norm, schedule: CpuSchedule | None = None) -> str:
    """The kernel's TVMScript."""
    writer = _Columns(norm) if norm.columns or norm.size is None else _Rows(norm, schedule or CpuSchedule())
    return "\n".join(writer.function()) + "\n"


def _indent(lines: list[str], by: int = 1) -> list[str]:
    return ["    " * by + line for line in lines]


def _names(letter: str, count: int) -> list[str]:
    return [letter] if count == 1 else [f"{letter}{i}" for i in range(count)]


def _product(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"({' * '.join(names)})" if names else "1"


def _tuple(dims: list[str]) -> str:
    return f"({', '.join(dims)})"


class _Writer:
    """What both layouts share: the arguments and the arithmetic behind the statistic."""

    def __init__(self, norm: Norm) -> None:
        self.norm = norm
        self.c = norm.stash
        self.size = "h" if norm.size is None else str(norm.size)
        self.outer = _names("n", norm.outer_rank)
        self.inner = _names("m", norm.inner_rank) if norm.columns else []
        # the numbers of rows and, for columns, of values beside one another
        self.n, self.m = _product(self.outer), _product(self.inner)
        self.shape = _tuple([self.n, self.size, *([self.m] if norm.columns else [])])
        self.whole = _tuple([*self.outer, self.size, *self.inner])
        self.vector = f"({self.size},)"

    # -- types

    def wide(self, value: str, dtype: str) -> str:
        return value if dtype == self.c else f'T.cast({value}, "{self.c}")'

    def number(self, value: float, dtype: str = "float64") -> str:
        return f"T.{dtype}({value!r})"

    def narrow(self, value: str, dtype: str) -> str:
        """``value``, the name of a variable, in ``dtype``."""
        if dtype == self.c:
            return value
        if dtype == "bfloat16":
            value = self._to_bfloat16(value)
        return f'T.cast({value}, "{dtype}")'

    def _to_bfloat16(self, value: str) -> str:
        """``value`` as a float32 that bfloat16 can hold, rounded to nearest even; every NaN stays one.

        TVM drops a Cast to bfloat16 that is followed by one back, and turns a NaN with all bits set into a zero.
        """
        value = value if self.c == "float32" else f'T.cast({value}, "float32")'
        bits = f'T.reinterpret("uint32", {value})'
        odd = f"T.bitwise_and(T.shift_right({bits}, T.uint32(16)), T.uint32(1))"
        rounded = f"T.bitwise_and({bits} + T.uint32(32767) + {odd}, T.uint32(4294901760))"
        return f"T.if_then_else(T.isnan({value}), T.float32('nan'), T.reinterpret(\"float32\", {rounded}))"

    def rounded(self, name: str) -> list[str]:
        """Round a variable to the norm's rounding type and back."""
        rounding = self.norm.rounding
        if rounding == self.c:
            return []
        if rounding == "bfloat16":
            return [f"{name} = {self.wide(self._to_bfloat16(name), 'float32')}"]
        return [f'{name} = T.cast({self.narrow(name, rounding)}, "{self.c}")']

    # -- pieces

    @property
    def split(self) -> bool:
        """Whether the reciprocal has a high and a low part: rounded to float32 it would cost a float32 result a ULP."""
        return self.c == "float32" and self.norm.dtype == "float32"

    def reciprocal(self, rms: str, at: str) -> list[str]:
        inverse = f"{self.number(1.0)} / {rms}"
        if not self.split:
            return [f'inverse[{at}] = T.cast({inverse}, "{self.c}")']
        return [
            f'inverse[{at}] = T.cast({inverse} * {self.number(_ROUND_DOWN)}, "float32")',
            f'low[{at}] = T.cast({inverse} - T.cast(inverse[{at}], "float64"), "float32")',
        ]

    def times_reciprocal(self, at: str) -> str:
        """The normalised value, to be completed by :meth:`finish`."""
        return f"{{x}} * inverse[{at}]" + (f" + {{x}} * low[{at}]" if self.split else "")

    def finish(self, at: str, feature: str, lane: str, normalised: str) -> list[str]:
        """From one value ``{x}`` of X (or of the sum) to one value of Y; ``normalised`` says how it is normalised."""
        n = self.norm
        t, u = f"t[{lane}]", f"u[{lane}]"
        lines = [f"{t} = {normalised.format(x=self.wide(self.value(at), n.dtype))}", *self.rounded(t)]
        lines += [f"{u} = {self.wide(f'W[{at if n.full_scale else feature}]', n.scale_dtype)}", *self.rounded(u)]
        lines += [f"{t} = {t} * {u}", *self.rounded(t)]
        if n.biased:
            lines += [f"{u} = {self.wide(f'B[{at if n.full_bias else feature}]', n.scale_dtype)}", *self.rounded(u)]
            lines += [f"{t} = {t} + {u}", *self.rounded(t)]
        return [*lines, f"Y[{at}] = {self.narrow(t, n.dtype)}"]

    def add_residual(self, at: str, lane: str) -> list[str]:
        """The sum, stored, where there is a residual."""
        if not self.norm.adds:
            return []
        total = f"{self.wide(f'X[{at}]', self.norm.dtype)} + {self.wide(f'R[{at}]', self.norm.dtype)}"
        return [f"t[{lane}] = {total}", f"S[{at}] = {self.narrow(f't[{lane}]', self.norm.dtype)}"]

    def value(self, at: str) -> str:
        return f"{'S' if self.norm.adds else 'X'}[{at}]"

    def root(self, total: str, count: str, rms: str) -> list[str]:
        """The float64 RMS, from the sum of squares. A NaN survives the floor."""
        p = self.norm.parameters
        lines = [f"{rms} = T.sqrt({total} / {count} + {self.number(p.epsilon)})"]
        if p.epsilon_outside:
            lines.append(f"{rms} = {rms} + {self.number(p.epsilon_outside)}")
        if p.rms_floor:
            floor = self.number(p.rms_floor)
            lines.append(f"{rms} = T.if_then_else({rms} < {floor}, {floor}, {rms})")
        return lines

    # -- the function

    def arguments(self) -> list[tuple[str, str, str]]:
        n = self.norm
        given = [("X", self.shape, n.dtype)]
        given += [("R", self.shape, n.dtype)] if n.adds else []
        given += [("W", self.shape if n.full_scale else self.vector, n.scale_dtype)]
        given += [("B", self.shape if n.full_bias else self.vector, n.scale_dtype)] if n.biased else []
        given += [("Y", self.shape, n.dtype)]
        return given + ([("S", self.shape, n.dtype)] if n.adds else [])

    def head(self) -> list[str]:
        arguments = self.arguments()
        handles = ", ".join(f"p{name}: T.handle" for name, _, _ in arguments)
        symbols = [*self.outer, *(["h"] if self.norm.size is None else []), *self.inner]
        lines = [
            "@T.prim_func(s_tir=True)",
            f"def {self.norm.name}({handles}):",
            # op_pattern 8 is "opaque": nothing is to be fused into it
            '    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})',
            *(f"    {s} = T.int64()" for s in symbols),
        ]
        viewed = [a for a in arguments if self._viewed(a[1])]
        for name, shape, dtype in arguments:
            given = (f"{name}_", self.whole) if self._viewed(shape) else (name, shape)
            lines.append(f'    {given[0]} = T.match_buffer(p{name}, {given[1]}, "{dtype}")')
        return [*lines, *(f'    {n} = T.decl_buffer({shape}, "{dtype}", data={n}_.data)' for n, shape, dtype in viewed)]

    def _viewed(self, shape: str) -> bool:
        """Whether a tensor has more dimensions than the kernel is written for."""
        return shape == self.shape != self.whole

    def _region(self, name: str, shape: str) -> str:
        """All of an argument."""
        if self._viewed(shape):
            name, shape = f"{name}_", self.whole
        return f"{name}[{', '.join(f'0:{d.strip()}' for d in shape.strip('()').split(',') if d.strip())}]"

    def block(self, scratch: list[tuple[str, int, str]], body: list[str]) -> list[str]:
        """``body`` with its scratch, allocated once."""
        reads = ", ".join(self._region(name, shape) for name, shape, _ in self.arguments() if name not in "YS")
        writes = ", ".join(self._region(name, shape) for name, shape, _ in self.arguments() if name in "YS")
        return [
            'with T.sblock("task"):',
            f"    T.reads({reads})",
            f"    T.writes({writes})",
            *(f'    {n} = T.sblock_alloc_buffer(({size},), "{dtype}", scope="global")' for n, size, dtype in scratch),
            *_indent(body),
        ]

    def function(self) -> list[str]:
        raise NotImplementedError


class _Rows(_Writer):
    """Normalised values lie side by side, and their number is known."""

    def __init__(self, norm: Norm, schedule: CpuSchedule) -> None:
        super().__init__(norm)
        assert norm.size is not None
        self.features = norm.size
        self.schedule = schedule
        self.lanes = max(1, schedule.lanes // (2 if self.c == "float64" else 1))
        partial = norm.parameters.partial_size
        self.measured = self.features if partial is None else min(partial, self.features)

    def function(self) -> list[str]:
        s = self.schedule
        rows = max(1, -(-s.task_values // max(1, self.features)))
        rows = -(-rows // s.batch) * s.batch
        serial = self.rows(self.n, "0")
        task = self.rows(f"T.min({rows}, {self.n} - task * {rows})", f"task * {rows}")
        return [
            *self.head(),
            f"    if {self.n} < {max(2, s.serial_below // max(1, self.features))}:",
            *_indent(self.block(self.scratch(), serial), 2),
            "    else:",
            f"        for task in T.parallel(({self.n} + {rows - 1}) // {rows}):",
            *_indent(self.block(self.scratch(), task), 3),
        ]

    def scratch(self) -> list[tuple[str, int, str]]:
        s = self.schedule
        width = s.accumulators * self.lanes
        found = [("acc", width, self.c), ("t", self.lanes, self.c), ("u", self.lanes, self.c)]
        found += [("part", self.lanes, "float64"), ("total", s.batch, "float64"), ("rms", s.batch, "float64")]
        found += [("inverse", s.batch, self.c)] + ([("low", s.batch, self.c)] if self.split else [])
        return found + ([("aside", width, "float64")] if self.measured > CHAIN * width else [])

    def rows(self, count: str, first: str) -> list[str]:
        """``count`` rows from ``first`` on."""
        batch = self.schedule.batch
        if batch == 1:
            return [f"for q in range({count}):", *_indent(self.batch(f"{first} + q", "1"))]
        return [
            f"for b in range(({count} + {batch - 1}) // {batch}):",
            *_indent(self.batch(f"{first} + b * {batch}", f"T.min({batch}, {count} - b * {batch})")),
        ]

    def batch(self, first: str, count: str) -> list[str]:
        """At most a batch of rows: of all the statistics, then of all the values."""
        low, high = self.number(_LEAST_RMS), self.number(_MOST_RMS)
        i, q, each = f"{first} + r", "r", f"for r in range({count}):"
        statistics = [
            *self.root(f"total[{q}]", self.number(float(self.measured)), f"rms[{q}]"),
            *self.reciprocal(f"rms[{q}]", q),
        ]
        values = [
            f"if rms[{q}] >= {low} and rms[{q}] <= {high}:",
            *_indent(self.output(i, self.times_reciprocal(q), self.lanes)),
            "else:",
            f'    inverse[{q}] = T.cast(rms[{q}], "{self.c}")',
            *_indent(self.output(i, f"{{x}} / inverse[{q}]", 1)),
        ]
        return [
            each,
            *_indent(self.sum_of_squares(i, f"total[{q}]")),
            f"for r in T.vectorized({self.schedule.batch}):",
            *_indent(statistics),
            each,
            *_indent(values),
        ]

    def output(self, i: str, factor: str, lanes: int) -> list[str]:
        lines = []
        whole = self.features // lanes
        if lanes > 1 and whole:
            at = f"k * {lanes} + v"
            lines += [f"for k in range({whole}):", f"    for v in T.vectorized({lanes}):"]
            lines += _indent(self.finish(f"{i}, {at}", at, "v", factor), 2)
        rest = self.features - whole * lanes if lanes > 1 else self.features
        if rest:
            at = f"{self.features - rest} + v"
            lines += [f"for v in range({rest}):", *_indent(self.finish(f"{i}, {at}", at, "0", factor))]
        return lines

    def _fill(self, name: str) -> list[str]:
        return self._each(f"{name}[a * {self.lanes} + v] = T.{self.c}(0)")

    def _each(self, *statements: str, count: int | None = None) -> list[str]:
        """Statements for each lane of each accumulator."""
        vectors = self.schedule.accumulators if count is None else count
        return [
            f"for a in T.unroll({vectors}):",
            f"    for v in T.vectorized({self.lanes}):",
            *_indent(list(statements), 2),
        ]

    def _take(self, at: str, slot: str, lane: str) -> list[str]:
        value = self.wide(self.value(at), self.norm.dtype)
        return [*self.add_residual(at, lane), f"acc[{slot}] = acc[{slot}] + {value} * {value}"]

    def sum_of_squares(self, i: str, total: str) -> list[str]:
        """Of row ``i`` into ``total``, in float64."""
        lanes, vectors = self.lanes, self.schedule.accumulators
        width = lanes * vectors
        lines = self._fill("acc")
        whole, rest = divmod(self.measured, width)
        slot = f"a * {lanes} + v"
        put_aside = whole > CHAIN
        aside = f"acc[{slot}]" if self.c == "float64" else f'T.cast(acc[{slot}], "float64")'
        if put_aside:
            lines += self._each(f"aside[{slot}] = T.float64(0)")
        done = 0
        for length in (CHAIN, whole % CHAIN) if put_aside else (whole,):
            blocks = whole // CHAIN if put_aside and not done else 1
            if length:
                base = f"{done} + o * {length * width} + k * {width} + {slot}"
                inner = [f"for k in range({length}):", *_indent(self._each(*self._take(f"{i}, {base}", slot, "v")))]
                if put_aside:
                    inner += self._each(f"aside[{slot}] = aside[{slot}] + {aside}", f"acc[{slot}] = T.{self.c}(0)")
                lines += [f"for o in range({blocks}):", *_indent(inner)]
                done += blocks * length * width
        if rest // lanes:
            at = f"{i}, {done} + {slot}"
            lines += self._each(*self._take(at, slot, "v"), count=rest // lanes)
            done += rest // lanes * lanes
        if self.measured - done:
            lines += [f"for v in range({self.measured - done}):", *_indent(self._take(f"{i}, {done} + v", "v", "0"))]
        parts = [f"acc[{a} * {lanes} + v]" for a in range(vectors)]
        parts = parts if self.c == "float64" else [f'T.cast({p}, "float64")' for p in parts]
        parts += [f"aside[{a} * {lanes} + v]" for a in range(vectors)] if put_aside else []
        lines += [f"for v in T.vectorized({lanes}):", f"    part[v] = {_tree(parts)}"]
        while lanes > 2:  # fold the vector upon itself: single lanes would be taken out one by one
            lanes //= 2
            lines += [f"for v in T.vectorized({lanes}):", f"    part[v] = part[v] + part[{lanes} + v]"]
        return [*lines, f"{total} = {_tree([f'part[{v}]' for v in range(lanes)])}"]


def _tree(terms: list[str]) -> str:
    """Their sum, in pairs. In float64: the few additions at the end would else lose more than all others together."""
    while len(terms) > 1:
        odd = terms[-1:] if len(terms) % 2 else []
        terms = [f"({a} + {b})" for a, b in zip(terms[:-1:2], terms[1::2], strict=True)] + odd
    return terms[0]


class _Columns(_Writer):
    """Normalised values lie ``inner`` apart, or their number is unknown: sums in float64, scalar code."""

    def function(self) -> list[str]:
        n = self.norm
        partial = n.parameters.partial_size
        measured = self.size if partial is None else f"T.min(T.int64({partial}), T.int64({self.size}))"
        columns = COLUMNS if n.columns else 1
        blocks = f"(({self.m} + {columns - 1}) // {columns})" if n.columns else "1"
        at = f"task // {blocks}, j, task % {blocks} * {columns} + q" if n.columns else "task, j"
        width = f"T.min({columns}, {self.m} - task % {blocks} * {columns})" if n.columns else "1"
        low, high = self.number(_LEAST_RMS), self.number(_MOST_RMS)
        square = f'T.cast({self.wide(self.value(at), n.dtype)} * {self.wide(self.value(at), n.dtype)}, "float64")'
        body = [
            f"for q in range({width}):",
            "    acc[q] = T.float64(0)",
            f"for j in range({measured}):",
            f"    for q in range({width}):",
            *_indent(self.add_residual(at, "0"), 2),
            f"        acc[q] = acc[q] + {square}",
            f"for q in range({width}):",
            *_indent(self.root("acc[q]", f'T.cast({measured}, "float64")', "rms[q]")),
            *_indent(self.reciprocal("rms[q]", "q")),
            f"for j in range({self.size}):",
            f"    for q in range({width}):",
            f"        if rms[q] >= {low} and rms[q] <= {high}:",
            *_indent(self.finish(at, "j", "0", self.times_reciprocal("q")), 3),
            "        else:",
            *_indent(self.finish(at, "j", "0", f'{{x}} / T.cast(rms[q], "{self.c}")'), 3),
        ]
        scratch = [("acc", columns, "float64"), ("rms", columns, "float64"), ("inverse", columns, self.c)]
        scratch += [("t", 1, self.c), ("u", 1, self.c)] + ([("low", columns, self.c)] if self.split else [])
        return [
            *self.head(),
            f"    for task in T.parallel({self.n} * {blocks}):",
            *_indent(self.block(scratch, body), 2),
        ]
