"""Sums, means and extremes on CPUs, by vectors of partial results; sums in float64, which costs no more than memory."""

from __future__ import annotations

import dataclasses
import math

from rmsnorm_deploy.tvm.schedules.flat import Scratch, Tensor, at_least_1, function, int64, lanes, over, rows
from rmsnorm_deploy.tvm.schedules.products.product import Size, times
from rmsnorm_deploy.tvm.schedules.values import indented


@dataclasses.dataclass(frozen=True)
class Fold:
    """What is made of neighbouring axes of X.

    Attributes:
        kind: ``sum``, ``mean``, ``max``, ``min``, ``argmax`` or ``argmin``.
        shape: of X.
        first: of the axes.
        last: the axis behind them.
        y: shape of Y.
        dtype: of X.
        result: of Y; int64 for a place.
        squares: whether the squares of X are summed.
    """

    kind: str
    shape: tuple[Size, ...]
    first: int
    last: int
    y: tuple[Size, ...]
    dtype: str
    result: str
    squares: bool = False

    @property
    def name(self) -> str:
        """A name for the kernel. Equal ones have equal names; different ones can have the same."""
        size = times(self.shape[self.first : self.last])
        of = "_of_squares" if self.squares else ""
        return f"{self.kind}{of}_{size if isinstance(size, int) else 'any'}_{self.dtype}"

    def source(self, width: int) -> str:
        """TVMScript for a CPU with vectors of ``width`` float32 values."""
        return _Text(self, width).source()


class _Text:
    def __init__(self, fold: Fold, width: int) -> None:
        self.fold = fold
        self.sums = fold.kind in ("sum", "mean")
        self.places = fold.kind.startswith("arg")
        self.width = width
        shape = fold.shape
        self.outer, self.inner = times(shape[: fold.first]), times(shape[fold.last :])
        self.size = times(shape[fold.first : fold.last])
        self.x = Tensor("X", shape, fold.dtype)
        self.y = Tensor("Y", fold.y, fold.result)

    def source(self) -> str:
        """The kernel."""
        beside = self.inner != 1
        wide = (2 if self.places or self.sums or beside else 4) * self.width
        scratch: Scratch = [("acc", wide, "float64" if self.sums else "float32")]
        scratch += [("at", wide, "int64")] * self.places
        if beside:
            count = _divided_by(self.inner, wide)
            values, body = times([self.size, wide]), self.columns(wide, count)
            count = times([self.outer, count])
        else:
            count, values, body = self.outer, self.size, self.row(wide)
        return function(self.fold.name, [self.x, self.y], rows(count, values, ([self.x], [self.y]), scratch, body))

    # -- a value and what becomes of it

    def value(self, at: str) -> str:
        """A value of X, or its square, in the type of the arithmetic."""
        if not self.sums:
            return self.x.wide(at)
        value = f'T.cast({self.x.wide(at)}, "float64")'
        return f"{value} * {value}" if self.fold.squares else value

    def begin(self, width: int) -> list[str]:
        """Nothing was seen yet."""
        if self.sums:
            return lanes(width, "acc[v] = T.float64(0)")
        nothing = f"T.float32('{'-inf' if self.fold.kind.endswith('max') else 'inf'}')"
        start = f"T.Select({int64(self.size)} == T.int64(0), {nothing}, T.float32('nan'))"
        return lanes(width, f"acc[v] = {start}", *(["at[v] = T.int64(0)"] if self.places else []))

    def take(self, width: int, at: str, place: str) -> list[str]:
        """A value for each lane. As in onnxruntime, what is no number is passed over where there is anything else."""
        value = self.value(at)
        if self.sums:
            return lanes(width, f"acc[v] = acc[v] + {value}")
        better = self.better(value, "acc[v]")
        chosen = [f"at[v] = T.Select({better}, {place}, at[v])"] if self.places else []
        return lanes(width, *chosen, f"acc[v] = T.Select({better}, {value}, acc[v])")

    def better(self, value: str, than: str) -> str:
        """Whether a value takes the place of another one, which may be no number."""
        sign = ">" if self.fold.kind.endswith("max") else "<"
        # TVM takes it for granted that values equal themselves
        no_number = f"T.isnan({than})"
        if self.places:
            no_number = f"T.And({no_number}, T.Not(T.isnan({value})))"
        return f"T.Or({value} {sign} {than}, {no_number})"

    def result(self, at: str, lane: str) -> str:
        """The result of a lane, stored."""
        if self.places:
            return f'Y[{at}] = T.cast(at[{lane}], "{self.fold.result}")'
        if not self.sums:
            return self.y.store(at, f"acc[{lane}]")
        total = f"acc[{lane}]"
        if self.fold.kind == "mean":
            total = f'{total} / T.cast({at_least_1(self.size)}, "float64")'
        return self.y.store(at, f'T.cast({total}, "float32")')

    # -- values side by side

    def row(self, wide: int) -> list[str]:
        """Row ``i``: its values lie side by side."""
        first = f"{{i}} * {int64(self.size)}"

        def take(width: int) -> list[str]:
            return self.take(width, f"{first} + {{k}} + v", "{k} + v")

        lines = [*self.begin(wide), *over(self.size, (wide, self.width, 1), take)]
        half = wide
        while half > 1:
            half //= 2
            lines += lanes(half, *self.joined(f"{half} + v"))
        return [*lines, self.result("{i}", "0")]

    def joined(self, other: str) -> list[str]:
        """The lane ``v`` with another one: the place in front where both are as good."""
        if self.sums:
            return [f"acc[v] = acc[v] + acc[{other}]"]
        better = self.better(f"acc[{other}]", "acc[v]")
        if not self.places:
            return [f"acc[v] = T.Select({better}, acc[{other}], acc[v])"]
        in_front = f"T.Or({better}, T.And(acc[{other}] == acc[v], at[{other}] < at[v]))"
        return [
            f"at[v] = T.Select({in_front}, at[{other}], at[v])",
            f"acc[v] = T.Select({better}, acc[{other}], acc[v])",
        ]

    # -- values one behind the other

    def columns(self, wide: int, blocks: Size) -> list[str]:
        """Columns beside one another, a lane for each."""
        first = f"{{i}} % {at_least_1(blocks)} * {wide}"
        outer = f"{{i}} // {at_least_1(blocks)}"
        rest = f"T.min(T.int64({wide}), {int64(self.inner)} - {first})"
        single = [f"for c in range({rest}):", *indented(self.some(1, outer, f"{first} + c"))]
        if isinstance(self.inner, int) and self.inner % wide == 0:
            return self.some(wide, outer, first)
        if isinstance(self.inner, int) and self.inner < wide:
            return single
        whole = f"if {rest} == T.int64({wide}):"
        return [whole, *indented(self.some(wide, outer, first)), "else:", *indented(single)]

    def some(self, width: int, outer: str, first: str) -> list[str]:
        """As many columns."""
        at = f"({outer} * {int64(self.size)} + j) * {int64(self.inner)} + {first} + v"

        each = [f"for j in range({int64(self.size)}):", *indented(self.take(width, at, "j"))]
        stored = self.result(f"{outer} * {int64(self.inner)} + {first} + v", "v")
        return [*self.begin(width), *each, *lanes(width, stored)]


def _divided_by(size: Size, by: int) -> Size:
    """Rounded up."""
    if isinstance(size, int):
        return math.ceil(size / by)
    return f"(({size} + T.int64({by - 1})) // T.int64({by}))"
