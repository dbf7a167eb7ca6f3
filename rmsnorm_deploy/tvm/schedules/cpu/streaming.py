"""The kernel for tensors that no cache holds: results go past the caches, and the next row is fetched meanwhile."""

from __future__ import annotations

import dataclasses

from rmsnorm_deploy.op.dtypes import float_type
from rmsnorm_deploy.tvm.schedules.cpu.rows import Rows
from rmsnorm_deploy.tvm.schedules.cpu.writer import CpuSchedule
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.values import indented

STREAMED_TASKS = 4
"""Times as many values a task has where results are stored past the caches: it ends with a wait for its stores."""
MOST_STREAMED = 1 << 20
"""Features of a row that is stored past the caches, fewer than: a row is kept in scratch."""
LLVM_NAMES = {"float16": "half", "float32": "float", "float64": "double"}


class Streaming(Rows):
    """Rows of tensors that no cache holds: results are stored past the caches, so that no line of theirs is read first.

    TIR has no such store. A function of LLVM's own text has, and is inlined. A sum that went past the caches is not
    there to be read, and is kept in scratch beside.
    """

    def __init__(self, norm: Norm, schedule: CpuSchedule) -> None:
        values = STREAMED_TASKS * schedule.task_values
        super().__init__(norm, dataclasses.replace(schedule, batch=1, task_values=values))
        self.fetch = f"rmsnorm_deploy_fetch_{norm.dtype}_{self.lanes}"
        self.end = f"rmsnorm_deploy_stream_end_{norm.dtype}_{self.lanes}"
        self.name = f"rmsnorm_deploy_stream_{norm.dtype}_{self.lanes}"

    def possible(self) -> bool:
        """Whether every row consists of whole vectors, aligned as these stores must be."""
        whole = self.features % max(2, self.lanes) == 0 and self.features < MOST_STREAMED
        return bool(self.schedule.stream_from) and whole and self.norm.dtype in LLVM_NAMES

    def tasks(self) -> list[str]:
        """See the base; with the text of the functions around."""
        return [f'with T.attr(0, "pragma_import_llvm", {self.llvm()!r}):', *indented(super().tasks())]

    def llvm(self) -> str:
        """The store as a function, and what makes the stores of a task visible to other threads."""
        vector = f"<{self.lanes} x {LLVM_NAMES[self.norm.dtype]}>"
        bytes_ = self.lanes * float_type(self.norm.dtype).itemsize
        return (
            f"define linkonce_odr i32 @{self.name}(ptr %p, {vector} %v) alwaysinline {{\n"
            f"  store {vector} %v, ptr %p, align {bytes_}, !nontemporal !0\n  ret i32 0\n}}\n"
            f"define linkonce_odr i32 @{self.end}() alwaysinline {{\n  fence seq_cst\n  ret i32 0\n}}\n"
            f"define linkonce_odr i32 @{self.fetch}(ptr %p) alwaysinline {{\n"
            "  call void @llvm.prefetch.p0(ptr %p, i32 0, i32 3, i32 1)\n  ret i32 0\n}\n"
            "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)\n"
            "!0 = !{i32 1}\n"
        )

    def scratch(self) -> list[tuple[str, int, str]]:
        """See the base; and the sums of a row."""
        # this one may come from the pool: tasks are large here
        return super().scratch() + ([("held", self.features, self.c)] if self.norm.adds else [])

    def rows(self, count: str, first: str) -> list[str]:
        """See the base; and a wait for its stores."""
        return [*super().rows(count, first), f'T.evaluate(T.call_extern("int32", "{self.end}"))']

    def value(self, at: str) -> str:
        """See the base; a sum is read from scratch."""
        return f"held[{at.split(', ')[1]}]" if self.norm.adds else super().value(at)

    def wide(self, value: str, dtype: str) -> str:
        """See the base; scratch is wide already."""
        return value if value.startswith("held") else super().wide(value, dtype)

    def add_residual(self, at: str, lane: str) -> list[str]:
        """The sum as it will be stored, in scratch."""
        if not self.norm.adds:
            return []
        added, _ = super().add_residual(at, lane)
        return [
            added,
            f"{self.value(at)} = {super().wide(self.narrow(f't[{lane}]', self.norm.dtype), self.norm.dtype)}",
        ]

    def each_lane(self, statements: list[str], result: str, i: str, first: str) -> list[str]:
        """See the base; the store is one of a whole vector."""
        # the next row is fetched meanwhile; behind the last one it is nobody's memory, and that does no harm
        inputs = ["X", "R"] if self.norm.adds else ["X"]
        fetch = [
            f'T.evaluate(T.call_extern("int32", "{self.fetch}", T.address_of({name}[{i} + 1, {first}])))'
            for name in inputs
        ]
        lanes = [f"for v in T.vectorized({self.lanes}):", *indented(statements)]
        return [*lanes, *fetch, self.stream(result, i, first, "t", "0")]

    def take(self, i: str, first: str, count: int | None = None) -> list[str]:
        """See the base; and the sums stored."""
        lines = super().take(i, first, count)
        if not self.norm.adds:
            return lines
        at = f"{first} + a * {self.lanes}"
        return [*lines, *indented([self.stream("S", i, at, "held", at)])]

    def stream(self, result: str, i: str, first: str, source: str, at: str) -> str:
        """A vector of scratch to a result. Loops over lanes cannot call a function with a vector."""
        value = f"{source}[T.Ramp({at}, 1, {self.lanes})]"
        if self.norm.dtype != self.c:
            value = f'T.cast({value}, "{self.norm.dtype}x{self.lanes}")'
        return f'T.evaluate(T.call_extern("int32", "{self.name}", T.address_of({result}[{i}, {first}]), {value}))'
