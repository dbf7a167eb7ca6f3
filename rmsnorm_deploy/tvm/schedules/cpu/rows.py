"""The usual kernel: values of a row lie side by side, and their number is known.

The statistic of a row goes into ``accumulators`` vectors of ``lanes`` values, so that no addition waits for the one
before; after ``CHAIN`` additions they are put aside, so that a long row loses no digits. Root and reciprocal are taken
in float64, for a batch of short rows at a time.
"""

from __future__ import annotations

from rmsnorm_deploy.op.dtypes import float_type
from rmsnorm_deploy.tvm.schedules.cpu.writer import ALWAYS_SERIAL, LEAST_RMS, MOST_RMS, STACK_BYTES, CpuSchedule, Writer
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.values import indented, tree

CHAIN = 32
"""Additions into one accumulator before it is put aside."""


class Rows(Writer):
    """Normalised values lie side by side, and their number is known."""

    def __init__(self, norm: Norm, schedule: CpuSchedule, large: Rows | None = None) -> None:
        """``large`` writes the loop over tasks for tensors from ``stream_from`` bytes on."""
        super().__init__(norm)
        self.large = large
        assert norm.size is not None
        self.features = norm.size
        self.schedule = schedule
        self.lanes = max(1, schedule.lanes // (2 if self.c == "float64" else 1))
        partial = norm.parameters.partial_size
        self.measured = self.features if partial is None else min(partial, self.features)
        narrow = norm.scale_dtype != self.c and self.features * float_type(self.c).itemsize < STACK_BYTES
        vectors = {"W": not norm.full_scale, "B": norm.biased and not norm.full_bias}
        self.widened = [name for name, is_vector in vectors.items() if narrow and is_vector]

    def function(self) -> list[str]:
        """The whole kernel, line by line."""
        s = self.schedule
        if s.serial_below >= ALWAYS_SERIAL:
            return [*self.head(), *indented(self.block(self.scratch(), self.rows(self.n, "0")))]
        several = [f"if {self.n} < {max(2, s.serial_below // max(1, self.features))}:"]
        several += indented(self.block(self.scratch(), self.rows(self.n, "0")))
        if self.large is not None:
            row = self.features * self.norm.bytes_moved
            several += [f"elif {self.n} >= {-(-s.stream_from // row)}:", *indented(self.large.tasks())]
        return [*self.head(), *indented([*several, "else:", *indented(self.tasks())])]

    def tasks(self) -> list[str]:
        """All rows, chunk by chunk, for any number of threads."""
        s = self.schedule
        rows = max(1, -(-s.task_values // max(1, self.features)))
        rows = -(-rows // s.batch) * s.batch
        task = self.rows(f"T.min({rows}, {self.n} - task * {rows})", f"task * {rows}")
        return [
            f"for task in T.parallel(({self.n} + {rows - 1}) // {rows}):",
            *indented(self.block(self.scratch(), task)),
        ]

    def scratch(self) -> list[tuple[str, int, str]]:
        """Name, length and type of what a task needs."""
        s = self.schedule
        width = s.accumulators * self.lanes
        found = [("acc", width, self.c), ("t", self.lanes, self.c), ("u", self.lanes, self.c)]
        found += [("part", self.lanes, "float64"), ("total", s.batch, "float64"), ("rms", s.batch, "float64")]
        found += [("inverse", s.batch, self.c)] + ([("low", s.batch, self.c)] if self.split else [])
        found += [("aside", width, "float64")] if self.measured > CHAIN * width else []
        return found + [(f"wide{name}", self.features, self.c) for name in self.widened]

    def parameter(self, name: str, at: str, u: str) -> tuple[list[str], str]:
        """See the base; converted beforehand where rows are short."""
        if name in self.widened:
            return [], f"wide{name}[{at}]"
        return super().parameter(name, at, u)

    def widen(self) -> list[str]:
        """Scale and bias of short rows are converted once for all rows of a task."""
        lines = []
        for name in self.widened:
            convert, value = super().parameter(name, "v", "u[0]")
            lines += [f"for v in range({self.features}):", *indented([*convert, f"wide{name}[v] = {value}"])]
        return lines

    def rows(self, count: str, first: str) -> list[str]:
        """``count`` rows from ``first`` on."""
        batch = self.schedule.batch
        if batch == 1:
            return [*self.widen(), f"for q in range({count}):", *indented(self.batch(f"{first} + q", "1"))]
        return [
            *self.widen(),
            f"for b in range(({count} + {batch - 1}) // {batch}):",
            *indented(self.batch(f"{first} + b * {batch}", f"T.min({batch}, {count} - b * {batch})")),
        ]

    def batch(self, first: str, count: str) -> list[str]:
        """At most a batch of rows: of all the statistics, then of all the values."""
        low, high = self.number(LEAST_RMS), self.number(MOST_RMS)
        i, q, each = f"{first} + r", "r", f"for r in range({count}):"
        statistics = [
            *self.root(f"total[{q}]", self.number(float(self.measured)), f"rms[{q}]"),
            *self.reciprocal(f"rms[{q}]", q),
        ]
        values = [
            f"if rms[{q}] >= {low} and rms[{q}] <= {high}:",
            *indented(self.output(i, self.times_reciprocal(q), self.lanes)),
            "else:",
            f'    inverse[{q}] = T.cast(rms[{q}], "{self.c}")',
            *indented(self.output(i, f"{{x}} / inverse[{q}]", 1)),
        ]
        return [
            each,
            *indented(self.sum_of_squares(i, f"total[{q}]")),
            f"for r in T.vectorized({self.schedule.batch}):",
            *indented(statistics),
            each,
            *indented(values),
        ]

    def output(self, i: str, factor: str, lanes: int) -> list[str]:
        """The second pass over row ``i``, ``lanes`` values at a time."""
        lines = []
        whole = self.features // lanes
        if lanes > 1 and whole:
            at = f"k * {lanes} + v"
            lines += [f"for k in range({whole}):"]
            lines += indented(self.each_lane(self.finish(f"{i}, {at}", at, "v", factor), "Y", i, f"k * {lanes}"))
        rest = self.features - whole * lanes if lanes > 1 else self.features
        if rest:
            at = f"{self.features - rest} + v"
            lines += [f"for v in range({rest}):", *indented(self.finish(f"{i}, {at}", at, "0", factor))]
            lines.append(f"    {self.store('Y', f'{i}, {at}', '0')}")
        return lines

    def each_lane(self, statements: list[str], result: str, i: str, first: str) -> list[str]:
        """Statements for each lane ``v``, and ``t`` stored in row ``i`` of a result, from column ``first`` on."""
        stored = self.store(result, f"{i}, {first} + v", "v")
        return [f"for v in T.vectorized({self.lanes}):", *indented([*statements, stored])]

    def _each(self, *statements: str, count: int | None = None) -> list[str]:
        """Statements for each lane of each accumulator."""
        vectors = self.schedule.accumulators if count is None else count
        return [
            f"for a in T.unroll({vectors}):",
            f"    for v in T.vectorized({self.lanes}):",
            *indented(list(statements), 2),
        ]

    def _take(self, at: str, slot: str, lane: str) -> list[str]:
        value = self.wide(self.value(at), self.norm.dtype)
        return [*self.add_residual(at, lane), f"acc[{slot}] = acc[{slot}] + {value} * {value}"]

    def take(self, i: str, first: str, count: int | None = None) -> list[str]:
        """A vector for each accumulator, from column ``first`` of row ``i`` on."""
        slot = f"a * {self.lanes} + v"
        return self._each(*self._take(f"{i}, {first} + {slot}", slot, "v"), count=count)

    def sum_of_squares(self, i: str, total: str) -> list[str]:
        """Of row ``i`` into ``total``, in float64."""
        lanes, vectors = self.lanes, self.schedule.accumulators
        width = lanes * vectors
        lines = self._each(f"acc[a * {lanes} + v] = T.{self.c}(0)")
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
                inner = [
                    f"for k in range({length}):",
                    *indented(self.take(i, f"{done} + o * {length * width} + k * {width}")),
                ]
                if put_aside:
                    inner += self._each(f"aside[{slot}] = aside[{slot}] + {aside}", f"acc[{slot}] = T.{self.c}(0)")
                lines += [f"for o in range({blocks}):", *indented(inner)]
                done += blocks * length * width
        if rest // lanes:
            lines += self.take(i, f"{done}", rest // lanes)
            done += rest // lanes * lanes
        if self.measured - done:
            lines += [f"for v in range({self.measured - done}):", *indented(self._take(f"{i}, {done} + v", "v", "0"))]
        parts = [f"acc[{a} * {lanes} + v]" for a in range(vectors)]
        parts = parts if self.c == "float64" else [f'T.cast({p}, "float64")' for p in parts]
        parts += [f"aside[{a} * {lanes} + v]" for a in range(vectors)] if put_aside else []
        # in float64: the few additions at the end would else lose more than all others together
        lines += [f"for v in T.vectorized({lanes}):", f"    part[v] = {tree(parts)}"]
        while lanes > 2:  # fold the vector upon itself: single lanes would be taken out one by one
            lanes //= 2
            lines += [f"for v in T.vectorized({lanes}):", f"    part[v] = part[v] + part[{lanes} + v]"]
        return [*lines, f"{total} = {tree([f'part[{v}]' for v in range(lanes)])}"]
