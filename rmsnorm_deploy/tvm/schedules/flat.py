"""The text of a CPU kernel whose tensors, of any rank, are seen as one row of values each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rmsnorm_deploy.tvm.schedules.products.product import Size, times
from rmsnorm_deploy.tvm.schedules.values import indented

SERIAL_BELOW = 32768
"""Values below which waking other threads takes longer than they save."""
TASK_VALUES = 8192
"""Values of a task, about."""


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An argument.

    Attributes:
        name: in the text.
        shape: numbers, and names of sizes that are known at run time only.
        dtype: its type.
    """

    name: str
    shape: tuple[Size, ...]
    dtype: str

    @property
    def whole(self) -> str:
        """All of it, as a region."""
        return f"{self.name}_[{', '.join(f'0:{int64(s)}' for s in self.shape) or '()'}]"

    def wide(self, at: str) -> str:
        """The value at a place of the row, in float32."""
        value = f"{self.name}[{at}]"
        return value if self.dtype == "float32" else f'T.cast({value}, "float32")'

    def store(self, at: str, value: str) -> str:
        """A float32 stored at a place of the row."""
        return f"{self.name}[{at}] = " + (value if self.dtype == "float32" else f'T.cast({value}, "{self.dtype}")')


def int64(size: Size) -> str:
    """A size in the text."""
    return f"T.int64({size})" if isinstance(size, int) else f"({size})"


def at_least_1(size: Size) -> str:
    """A size to divide by: TVM looks for divisions by 0, even where there is nothing to divide."""
    return f"T.int64({max(1, size)})" if isinstance(size, int) else f"T.max({size}, T.int64(1))"


def function(name: str, tensors: list[Tensor], body: list[str]) -> str:
    """The kernel of ``tensors``, of which the results come last."""
    symbols = dict.fromkeys(s for t in tensors for s in t.shape if isinstance(s, str))
    lines = [
        "@T.prim_func(s_tir=True)",
        f"def {name}({', '.join(f'p{t.name}: T.handle' for t in tensors)}):",
        # op_pattern 8 is "opaque": nothing is to be fused into it
        '    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})',
        *(f"    {s} = T.int64()" for s in symbols),
    ]
    for t in tensors:
        shape = "".join(f"{int64(s)}, " for s in t.shape)
        lines.append(f'    {t.name}_ = T.match_buffer(p{t.name}, ({shape}), "{t.dtype}")')
    for t in tensors:
        lines.append(f'    {t.name} = T.decl_buffer(({int64(times(t.shape))},), "{t.dtype}", data={t.name}_.data)')
    return "\n".join([*lines, *indented(body)]) + "\n"


STACK_VALUES = 128
"""Scratch of at most this length is for vectors."""
Scratch = list[tuple[str, Size, str]]
"""Name, length and type of what a task needs. What is below 1024 bytes is on the stack, and becomes registers."""


def block(reads: list[Tensor], writes: list[Tensor], scratch: Scratch, body: list[str]) -> list[str]:
    """``body`` with its scratch."""
    # TVM makes scratch that one loop alone uses as small as a single turn of that loop needs, also where that is a lane
    kept = [(name, size, dtype) for name, size, dtype in scratch if isinstance(size, int) and size <= STACK_VALUES]
    return [
        'with T.sblock("task"):',
        f"    T.reads({', '.join(t.whole for t in reads)})",
        f"    T.writes({', '.join(t.whole for t in writes)})",
        *(
            f'    {name} = T.sblock_alloc_buffer(({int64(size)},), "{dtype}", scope="global")'
            for name, size, dtype in scratch
        ),
        *(f"    {name}[0] = T.{dtype}(0)" for name, _, dtype in kept),
        *(f"    {name}[{size - 1}] = T.{dtype}(0)" for name, size, dtype in kept if isinstance(size, int) and size > 1),
        *indented(body),
    ]


def rows(
    count: Size, size: Size, tensors: tuple[list[Tensor], list[Tensor]], scratch: Scratch, row: list[str]
) -> list[str]:
    """``row``, about the row ``i``, for each of ``count`` rows of ``size`` values: many are divided among threads.

    A task takes the same rows for any number of threads.
    """
    values = times([count, size])

    def some(first: str, number: str) -> list[str]:
        return [f"for q in range({number}):", *indented([line.replace("{i}", f"({first} + q)") for line in row])]

    serial = block(*tensors, scratch, some("T.int64(0)", int64(count)))
    if (isinstance(values, int) and values < SERIAL_BELOW) or count == 1:
        return serial
    chunk: Size = (
        max(1, TASK_VALUES // max(1, size))
        if isinstance(size, int)
        else (f"T.max(T.int64({TASK_VALUES}) // {at_least_1(size)}, T.int64(1))")
    )
    c = int64(chunk)
    task = some(f"task * {c}", f"T.min({c}, {int64(count)} - task * {c})")
    parallel = [
        f"for task in T.parallel(({int64(count)} + {c} - T.int64(1)) // {c}):",
        *indented(block(*tensors, scratch, task)),
    ]
    if isinstance(values, int):
        return parallel
    return [f"if {values} < T.int64({SERIAL_BELOW}):", *indented(serial), "else:", *indented(parallel)]


def over(size: Size, widths: tuple[int, ...], body: Callable[[int], list[str]]) -> list[str]:
    """``body(width)``, about ``width`` values from ``{k}`` on: as often as the first width fits, then the next."""
    lines, done, left = [], int64(0), size
    for n, width in enumerate(widths):
        count: Size
        if isinstance(left, int):
            count, left = left // width, left % width
        else:
            count, left = f"({left} // {width})", f"({left} % {width})"
        if count == 0:
            continue
        loop = "k" if len(widths) == 1 or n == 0 else f"k{n}"
        lines.append(f"for {loop} in range({int64(count)}):")
        lines += indented([line.replace("{k}", f"({done} + {loop} * {width})") for line in body(width)])
        done = f"{done} + {int64(count)} * {width}"
    return lines


def lanes(width: int, *statements: str) -> list[str]:
    """Statements for each lane ``v`` of a vector."""
    return [f"for v in {f'T.vectorized({width})' if width > 1 else 'range(1)'}:", *indented(list(statements))]


def folded(name: str, width: int, combined: str) -> list[str]:
    """The lanes of ``name`` folded upon themselves, into the first: ``combined`` says how, of {a} and {b}."""
    lines = []
    while width > 1:
        width //= 2
        value = combined.format(a=f"{name}[v]", b=f"{name}[{width} + v]")
        lines += lanes(width, f"{name}[v] = {value}")
    return lines
