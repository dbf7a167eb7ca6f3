"""The kernel where the number of features is known at run time only: scalar code, with sums in float64."""

from __future__ import annotations

from rmsnorm_deploy.tvm.schedules.cpu.writer import LEAST_RMS, MOST_RMS, Writer
from rmsnorm_deploy.tvm.schedules.values import indented


class AnySize(Writer):
    """The number of features is known at run time only: sums in float64, scalar code."""

    def function(self) -> list[str]:
        """The whole kernel, line by line."""
        partial = self.norm.parameters.partial_size
        measured = self.size if partial is None else f"T.min(T.int64({partial}), {self.size})"
        value = self.wide(self.value("task, j"), self.norm.dtype)
        body = [
            "acc[0] = T.float64(0)",
            f"for j in range({measured}):",
            *indented(self.add_residual("task, j", "0")),
            f'    acc[0] = acc[0] + T.cast({value} * {value}, "float64")',
            *self.root("acc[0]", f'T.cast({measured}, "float64")', "rms[0]"),
            f"if rms[0] >= {self.number(LEAST_RMS)} and rms[0] <= {self.number(MOST_RMS)}:",
            *indented(self.reciprocal("rms[0]", "0")),
            *indented(self.output(self.times_reciprocal("0"))),
            "else:",
            *indented(self.output(f'{{x}} / T.cast(rms[0], "{self.c}")')),
        ]
        scratch = [("acc", 1, "float64"), ("rms", 1, "float64"), ("t", 1, self.c), ("u", 1, self.c)]
        scratch += [("inverse", 1, self.c)] + ([("low", 1, self.c)] if self.split else [])
        return [
            *self.head(),
            f"    for task in T.parallel({self.n}):",
            *indented(self.block(scratch, body), 2),
        ]

    def output(self, normalised: str) -> list[str]:
        """Every value of a row."""
        lines = self.finish("task, j", "j", "0", normalised)
        return [f"for j in range({self.size}):", *indented([*lines, self.store("Y", "task, j", "0")])]
