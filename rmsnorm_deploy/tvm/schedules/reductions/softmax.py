"""Softmax and log-softmax on CPUs, in float32, with what stands in front of it in attention: a factor and a mask."""

from __future__ import annotations

import dataclasses
import math

from rmsnorm_deploy.tvm.schedules.flat import (
    Scratch,
    Tensor,
    at_least_1,
    folded,
    function,
    int64,
    lanes,
    over,
    rows,
)
from rmsnorm_deploy.tvm.schedules.products.product import Size, times
from rmsnorm_deploy.tvm.schedules.values import indented

STACKED = 4
"""Vectors that are calculated side by side."""


@dataclasses.dataclass(frozen=True)
class Softmax:
    """A softmax of (X factor + mask).

    Attributes:
        shape: of X.
        axis: of which the results sum to 1.
        log: whether the logarithm is wanted.
        dtype: of X.
        result: of Y.
        factor: that X is multiplied with, or divided by; None without.
        divides: whether it is divided.
        mask: shape of what is added, each size that of X or 1; None without. For the last axis only, as the factor.
        mask_dtype: its type.
    """

    shape: tuple[Size, ...]
    axis: int
    log: bool
    dtype: str
    result: str
    factor: float | None = None
    divides: bool = False
    mask: tuple[Size, ...] | None = None
    mask_dtype: str = "float32"

    @property
    def name(self) -> str:
        """A name for the kernel. Equal ones have equal names; different ones can have the same."""
        size = self.shape[self.axis]
        masked = "masked_" if self.mask is not None else ""
        return f"{masked}{'log_' * self.log}softmax_{size if isinstance(size, int) else 'any'}_{self.result}"

    def source(self, width: int) -> str:
        """TVMScript for a CPU with vectors of ``width`` float32 values."""
        return _Rows(self, width).source() if self.axis == len(self.shape) - 1 else _columns(self, width)


# e^x = 2^n e^r; the polynomial of (e^r - 1 - r) / r^2 for |r| < ln 2 / 2 is a fit, of an error below 1e-9
_POLYNOMIAL = (1.3944868e-3, 8.3334985e-3, 4.1666288e-2, 0.16666666, 0.5)
_MAGIC = 12582912.0
"""1.5 times 2^23: what is added to it is rounded to whole numbers, and stands in the low bits."""
_LN2 = (0.693359375, -2.12194440e-4)
"""In two parts, of which the first has few bits: n times it is exact."""
_LEAST = -87.0
"""What is smaller has a result that is 0 beside the 1 that every row has."""


def exponential(x: str, n: str, r: str) -> list[str]:
    """Statements that put e^``x``, for x <= 0, into ``r``; ``n`` is overwritten. NaN stays NaN, -inf becomes 0."""
    whole = f"({n} - T.float32({_MAGIC}))"
    bits = f'T.shift_left(T.reinterpret("uint32", {n}), T.uint32(23)) + T.uint32(0x3F800000)'
    polynomial = f"T.float32({_POLYNOMIAL[0]})"
    for coefficient in _POLYNOMIAL[1:]:
        polynomial = f"({polynomial} * {r} + T.float32({coefficient}))"
    value = f'(({polynomial} * ({r} * {r}) + {r}) + T.float32(1)) * T.reinterpret("float32", {bits})'
    return [
        f"{n} = {x} * T.float32({math.log2(math.e)}) + T.float32({_MAGIC})",
        f"{r} = ({x} - {whole} * T.float32({_LN2[0]})) - {whole} * T.float32({_LN2[1]})",
        f"{r} = T.Select({x} < T.float32({_LEAST}), T.float32(0), {value})",
    ]


class _Rows:
    """Over the last axis."""

    def __init__(self, softmax: Softmax, width: int) -> None:
        self.softmax = softmax
        self.widths = (STACKED * width, width, 1)
        self.size = softmax.shape[-1]
        self.x = Tensor("X", softmax.shape, softmax.dtype)
        self.mask = None if softmax.mask is None else Tensor("M", softmax.mask, softmax.mask_dtype)
        self.y = Tensor("Y", softmax.shape, softmax.result)
        self.prepared = softmax.factor is not None or softmax.mask is not None
        self.direct = softmax.result == "float32"
        self.kept = not self.direct and (self.prepared or not softmax.log)

    def source(self) -> str:
        """The kernel."""
        reads = [self.x, *([self.mask] if self.mask else [])]
        wide = self.widths[0]
        scratch: Scratch = [(name, wide, "float32") for name in ("most", "total", "n", "r", "d")]
        scratch += [("last", 1, "float32")]
        scratch += [("kept", self.size if isinstance(self.size, int) else at_least_1(self.size), "float32")] * self.kept
        body = rows(times(self.softmax.shape[:-1]), self.size, (reads, [self.y]), scratch, self.row())
        return function(self.softmax.name, [*reads, self.y], body)

    def given(self, at: str) -> str:
        """A value as softmax is taken of it."""
        s = self.softmax
        value = self.x.wide(f"{{i}} * {int64(self.size)} + {at}")
        if s.factor is not None:
            value = f"{value} {'/' if s.divides else '*'} T.float32({s.factor!r})"
        if self.mask is not None:
            value = f"{value} + {self.mask.wide(f'{self.mask_row()} + {at}')}"
        return value

    def mask_row(self) -> str:
        """Where the mask of row ``i`` begins."""
        assert self.softmax.mask is not None
        mask, shape = self.softmax.mask, self.softmax.shape
        mask = (1,) * (len(shape) - len(mask)) + mask
        terms = []
        for axis in range(len(shape) - 1):
            if mask[axis] == 1:
                continue
            place = f"{{i}} // {at_least_1(times(shape[axis + 1 : -1]))}"
            place = place if axis == 0 else f"{place} % {at_least_1(shape[axis])}"
            terms.append(f"({place}) * {int64(times(mask[axis + 1 :]))}")
        return " + ".join(terms) or "T.int64(0)"

    def keep(self, at: str, value: str) -> str:
        """A value put aside, in the result where that is in float32."""
        return f"kept[{at}] = {value}" if self.kept else self.y.store(self.place(at), value)

    def aside(self, at: str) -> str:
        """A value that was put aside."""
        return f"kept[{at}]" if self.kept else f"Y[{self.place(at)}]"

    def place(self, at: str) -> str:
        """A place in the result."""
        return f"{{i}} * {int64(self.size)} + {at}"

    def row(self) -> list[str]:
        """Row ``i``."""
        wide = self.widths[0]
        at = "{k} + v"
        value = self.aside(at) if self.prepared else self.given(at)

        def most(width: int) -> list[str]:
            if not self.prepared:
                return lanes(width, f"most[v] = T.max({value}, most[v])")
            prepare = [f"d[v] = {self.given(at)}", self.keep(at, "d[v]")]
            return lanes(width, *prepare, "most[v] = T.max(d[v], most[v])")

        def exponentials(width: int) -> list[str]:
            lines = [f"d[v] = {value} - most[0]", *exponential("d[v]", "n[v]", "r[v]"), "total[v] = total[v] + r[v]"]
            return lanes(width, *lines, *([] if self.softmax.log else [self.keep(at, "r[v]")]))

        def results(width: int) -> list[str]:
            if self.softmax.log:
                return lanes(width, self.y.store(self.place(at), f"({value} - most[0]) - last[0]"))
            return lanes(width, self.y.store(self.place(at), f"{self.aside(at)} * last[0]"))

        last = "T.log(total[0])" if self.softmax.log else "T.float32(1) / total[0]"
        return [
            *lanes(wide, "most[v] = T.float32('-inf')", "total[v] = T.float32(0)"),
            *over(self.size, self.widths, most),
            *folded("most", wide, "T.max({a}, {b})"),
            *over(self.size, self.widths, exponentials),
            *folded("total", wide, "{a} + {b}"),
            f"last[0] = {last}",
            *over(self.size, self.widths, results),
        ]


def _columns(softmax: Softmax, width: int) -> str:
    """Over another axis: values beside one another are calculated side by side."""
    shape, axis = softmax.shape, softmax.axis
    outer, size, inner = times(shape[:axis]), shape[axis], times(shape[axis + 1 :])
    wide = 2 * width
    x, y = Tensor("X", shape, softmax.dtype), Tensor("Y", shape, softmax.result)
    blocks: Size = -(-inner // wide) if isinstance(inner, int) else f"(({inner} + {wide - 1}) // {wide})"

    def some(count: int, first: str) -> list[str]:
        each = f"for j in range({int64(size)}):"
        at = f"({{i}} // {at_least_1(blocks)} * {int64(size)} + j) * {int64(inner)} + {first} + v"
        power = [f"d[v] = {x.wide(at)} - most[v]", *exponential("d[v]", "n[v]", "r[v]")]
        if softmax.log:
            last, result = ["total[v] = T.log(total[v])"], [y.store(at, f"({x.wide(at)} - most[v]) - total[v]")]
        else:
            last, result = ["total[v] = T.float32(1) / total[v]"], [*power, y.store(at, "r[v] * total[v]")]
        return [
            *lanes(count, "most[v] = T.float32('-inf')", "total[v] = T.float32(0)"),
            each,
            *indented(lanes(count, f"most[v] = T.max({x.wide(at)}, most[v])")),
            each,
            *indented(lanes(count, *power, "total[v] = total[v] + r[v]")),
            *lanes(count, *last),
            each,
            *indented(lanes(count, *result)),
        ]

    first = f"{{i}} % {at_least_1(blocks)} * {wide}"
    rest = f"T.min(T.int64({wide}), {int64(inner)} - {first})"
    single = [f"for c in range({rest}):", *indented(some(1, f"{first} + c"))]
    body = [f"if {rest} == T.int64({wide}):", *indented(some(wide, first)), "else:", *indented(single)]
    scratch: Scratch = [(name, wide, "float32") for name in ("most", "total", "n", "r", "d")]
    values = times([size, wide])
    return function(softmax.name, [x, y], rows(times([outer, blocks]), values, ([x], [y]), scratch, body))
