"""What every layout's kernel is made of: its arguments, its scratch, and the arithmetic behind the statistic.

A kernel is TVMScript text that is written out and parsed, because what matters (which loop is a vector, where scratch
lives) is then readable in the result.

Scratch has the scope "global" and few bytes: that is what TVM leaves on the stack, where LLVM makes registers of it.
What has another scope, or 1024 bytes and more, it takes from a pool: 20 ns for each piece, in every task.
"""

from __future__ import annotations

import dataclasses

from rmsnorm_deploy.tvm.schedules.values import Values, indented

ALWAYS_SERIAL = 1 << 62
"""As ``serial_below``: nothing but the serial loop is compiled."""
MOST = {"lanes": 64, "accumulators": 64, "batch": 1024}
"""What is written out in the code: its length and the time to compile it go by them."""
STACK_BYTES = 1024
"""Scratch of fewer bytes is on the stack; see above."""
LEAST_RMS, MOST_RMS = 2.0**-100, 2.0**100
"""Between these an RMS has a reciprocal whose low part is a normal number, too; elsewhere values are divided."""
_ROUND_DOWN = 1.0 - 2.0**-23
"""Makes the high part smaller than the reciprocal, so that the low one is positive: infinity times both is infinity."""


@dataclasses.dataclass(frozen=True)
class CpuSchedule:
    """What can be chosen without changing the result by more than rounding.

    Attributes:
        lanes: values in one vector of float32 arithmetic, a power of two; half as many in float64.
        accumulators: vectors that are summed side by side; any number up to 64.
        serial_below: values in X below which the threads are left asleep.
        task_values: a task takes as many rows as make up this many values, and whole batches.
        batch: rows whose roots and reciprocals are taken together, as one vector.
        stream_from: bytes of all tensors together from which results are stored past the caches; 0 for never.
    """

    lanes: int = 8
    accumulators: int = 4
    serial_below: int = 98304
    task_values: int = 16384
    batch: int = 1
    stream_from: int = 16 << 20

    def __post_init__(self) -> None:
        """Refuse what would be another result, or more code than anybody can compile.

        Raises:
            ValueError: a value cannot be chosen.
        """
        least = {"lanes": 1, "accumulators": 1, "task_values": 1, "batch": 1}
        values = dataclasses.asdict(self)
        if self.lanes & (self.lanes - 1) or not all(
            least.get(name, 0) <= value <= MOST.get(name, ALWAYS_SERIAL) for name, value in values.items()
        ):
            raise ValueError(f"there is no such schedule: {self}")


class Writer(Values):
    """What the layouts share: the function around them, and the arithmetic behind the statistic."""

    def number(self, value: float) -> str:
        """See the base; roots and reciprocals are taken in float64."""
        return f"T.float64({value!r})"

    def unless_nan(self, value: str, rounded: str) -> str:
        """See the base."""
        return f"T.if_then_else(T.isnan({value}), T.float32('nan'), T.reinterpret(\"float32\", {rounded}))"

    # -- pieces

    @property
    def split(self) -> bool:
        """Whether the reciprocal has a high and a low part: rounded to float32 it would cost a float32 result a ULP."""
        return self.c == "float32" and self.norm.dtype == "float32"

    def reciprocal(self, rms: str, at: str) -> list[str]:
        """The reciprocal of ``rms``, in one part or two."""
        inverse = f"{self.number(1.0)} / {rms}"
        if not self.split:
            return [f'inverse[{at}] = T.cast({inverse}, "{self.c}")']
        return [
            f'inverse[{at}] = T.cast({inverse} * {self.number(_ROUND_DOWN)}, "float32")',
            f'low[{at}] = T.cast({inverse} - T.cast(inverse[{at}], "float64"), "float32")',
        ]

    def times_reciprocal(self, at: str) -> str:
        """The normalised value, to be completed by :meth:`finish`.

        TVM fuses the product on the right with the addition: that has to be the large one, so that only the sum is
        rounded.
        """
        return (f"{{x}} * low[{at}] + " if self.split else "") + f"{{x}} * inverse[{at}]"

    def finish(self, at: str, feature: str, lane: str, normalised: str) -> list[str]:
        """From one value ``{x}`` of X (or of the sum) to one of Y, in ``t``; ``normalised`` says how to normalise."""
        n = self.norm
        t, u = f"t[{lane}]", f"u[{lane}]"
        lines = [f"{t} = {normalised.format(x=self.wide(self.value(at), n.dtype))}", *self.rounded(t)]
        scale, value = self.parameter("W", at if n.full_scale else feature, u)
        lines += [*scale, f"{t} = {t} * {value}", *self.rounded(t)]
        if n.biased:
            bias, value = self.parameter("B", at if n.full_bias else feature, u)
            lines += [*bias, f"{t} = {t} + {value}", *self.rounded(t)]
        return lines

    def store(self, name: str, at: str, lane: str) -> str:
        """``t`` as a value of a result."""
        return f"{name}[{at}] = {self.narrow(f't[{lane}]', self.norm.dtype)}"

    def parameter(self, name: str, at: str, u: str) -> tuple[list[str], str]:
        """Statements that put a value of scale or bias into ``u``, as it is used, and the expression to use."""
        return [f"{u} = {self.wide(f'{name}[{at}]', self.norm.scale_dtype)}", *self.rounded(u)], u

    def add_residual(self, at: str, lane: str) -> list[str]:
        """The sum, stored, where there is a residual."""
        if not self.norm.adds:
            return []
        return [f"t[{lane}] = {self.combined(f'X[{at}]', f'R[{at}]')}", self.store("S", at, lane)]

    def value(self, at: str) -> str:
        """What is normalised."""
        return f"{'S' if self.norm.adds else 'X'}[{at}]"

    # -- the function

    def block(self, scratch: list[tuple[str, int, str]], body: list[str]) -> list[str]:
        """``body`` with its scratch, allocated once."""
        reads = ", ".join(self.region(name, shape) for name, shape, _ in self.arguments() if name not in "YS")
        writes = ", ".join(self.region(name, shape) for name, shape, _ in self.arguments() if name in "YS")
        return [
            'with T.sblock("task"):',
            f"    T.reads({reads})",
            f"    T.writes({writes})",
            *(f'    {n} = T.sblock_alloc_buffer(({size},), "{dtype}", scope="global")' for n, size, dtype in scratch),
            *indented(body),
        ]

    def function(self) -> list[str]:
        """The whole kernel, line by line."""
        raise NotImplementedError
