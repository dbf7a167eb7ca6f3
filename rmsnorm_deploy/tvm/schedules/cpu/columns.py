"""The kernel of channel-first norms: values of a row lie apart, those of neighbouring rows side by side."""

from __future__ import annotations

from collections.abc import Callable

from rmsnorm_deploy.tvm.schedules.cpu.writer import LEAST_RMS, MOST_RMS, CpuSchedule, Writer
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.values import indented

COLUMNS = 64
"""Columns that one task takes together."""


class Columns(Writer):
    """Normalised values lie ``m`` apart: a task takes some columns side by side, as vectors where there are enough."""

    def __init__(self, norm: Norm, schedule: CpuSchedule) -> None:
        super().__init__(norm)
        self.lanes = max(1, schedule.lanes // (2 if self.c == "float64" else 1))
        self.columns = COLUMNS
        partial = norm.parameters.partial_size
        self.measured = self.size if partial is None else f"T.min(T.int64({partial}), T.int64({self.size}))"
        self.blocks = f"(({self.m} + {self.columns - 1}) // {self.columns})"
        self.first = f"task % {self.blocks} * {self.columns}"

    def function(self) -> list[str]:
        """The whole kernel, line by line."""
        sizes = ["sums", "rms", "inverse", *(["low"] if self.split else [])]
        types = {"sums": "float64", "rms": "float64"}
        scratch = [(name, self.columns, types.get(name, self.c)) for name in sizes]
        scratch += [("t", self.lanes, self.c), ("u", self.lanes, self.c), ("beyond", 1, "int32")]
        body = [
            f"if {self.m} - {self.first} >= {self.columns}:",
            *indented(self.statistics(self.vectors)),
            "    beyond[0] = 0",
            f"    for q in range({self.columns}):",
            f"        if not ({self.regular('q')}):",
            "            beyond[0] = 1",
            "    if beyond[0] == 0:",
            *indented(self.normalised(self.vectors, self.regular_value), 2),
            "    else:",
            *indented(self.normalised(self.one_by_one, self.any_value), 2),
            "else:",
            *indented(self.statistics(self.one_by_one)),
            *indented(self.normalised(self.one_by_one, self.any_value)),
        ]
        return [
            *self.head(),
            f"    for task in T.parallel({self.n} * {self.blocks}):",
            *indented(self.block(scratch, body), 2),
        ]

    # -- the columns of a task, with ``q`` the column and ``lane`` its place in scratch for a vector

    def vectors(self, statements: Callable[[str, str], list[str]]) -> list[str]:
        """Statements for each column of a whole task."""
        return [
            f"for p in T.unroll({self.columns // self.lanes}):",
            f"    for v in T.vectorized({self.lanes}):",
            *indented(statements(f"p * {self.lanes} + v", "v"), 2),
        ]

    def one_by_one(self, statements: Callable[[str, str], list[str]]) -> list[str]:
        """Statements for each column of a task that the tensor ends in."""
        width = f"T.min({self.columns}, {self.m} - {self.first})"
        return [f"for q in range({width}):", *indented(statements("q", "0"))]

    def at(self, q: str) -> str:
        """The place of feature ``j`` of a column."""
        return f"task // {self.blocks}, j, {self.first} + {q}"

    # -- the two passes

    def statistics(self, each: Callable[[Callable[[str, str], list[str]]], list[str]]) -> list[str]:
        """The RMS of every column and its reciprocal. One sum a column, in which errors would not cancel: float64."""

        def add(q: str, lane: str) -> list[str]:
            value = self.wide(self.value(self.at(q)), self.norm.dtype)
            square = f'T.cast({value} * {value}, "float64")'
            return [*self.add_residual(self.at(q), lane), f"sums[{q}] = sums[{q}] + {square}"]

        def root(q: str, _: str) -> list[str]:
            count = f'T.cast({self.measured}, "float64")'
            return [*self.root(f"sums[{q}]", count, f"rms[{q}]"), *self.reciprocal(f"rms[{q}]", q)]

        return [
            *each(lambda q, _: [f"sums[{q}] = T.float64(0)"]),
            f"for j in range({self.measured}):",
            *indented(each(add)),
            *each(root),
        ]

    def normalised(
        self,
        each: Callable[[Callable[[str, str], list[str]]], list[str]],
        value: Callable[[str, str], list[str]],
    ) -> list[str]:
        """The second pass: every value of Y."""
        return [f"for j in range({self.size}):", *indented(each(value))]

    def regular(self, q: str) -> str:
        """Whether the RMS of a column has a reciprocal to multiply with."""
        return f"rms[{q}] >= {self.number(LEAST_RMS)} and rms[{q}] <= {self.number(MOST_RMS)}"

    def regular_value(self, q: str, lane: str) -> list[str]:
        """A value of a column whose RMS has one."""
        lines = self.finish(self.at(q), "j", lane, self.times_reciprocal(q))
        return [*lines, self.store("Y", self.at(q), lane)]

    def any_value(self, q: str, lane: str) -> list[str]:
        """A value of any column."""
        divided = f'{{x}} / T.cast(rms[{q}], "{self.c}")'
        return [
            f"if {self.regular(q)}:",
            *indented(self.finish(self.at(q), "j", lane, self.times_reciprocal(q))),
            "else:",
            *indented(self.finish(self.at(q), "j", lane, divided)),
            self.store("Y", self.at(q), lane),
        ]
