"""A convolution whose groups have few channels, as where it is by depth: multiplied directly, a row of Y at a time."""

from __future__ import annotations

import dataclasses

from rmsnorm_deploy.tvm.schedules.convolutions.convolution import Convolution
from rmsnorm_deploy.tvm.schedules.convolutions.reach import within
from rmsnorm_deploy.tvm.schedules.flat import Tensor, at_least_1, function, int64, lanes, over, rows
from rmsnorm_deploy.tvm.schedules.products.product import times
from rmsnorm_deploy.tvm.schedules.values import indented

MOST_CHANNELS = 4
"""Of a group's results. With more, a product of matrices reads X less often."""


@dataclasses.dataclass(frozen=True)
class Direct:
    """A convolution."""

    convolution: Convolution

    @property
    def name(self) -> str:
        """See :class:`Convolution`."""
        return self.convolution.name

    def source(self, width: int) -> str:
        """TVMScript for a CPU with vectors of ``width`` float32 values."""
        c = self.convolution
        x, w, y = Tensor("X", c.x, "float32"), Tensor("W", c.w, "float32"), Tensor("Y", c.y, "float32")
        last, row, above = len(c.strides) - 1, c.y[-1], times(c.y[2:-1])
        # {i} is a channel of Y, r a row in it
        channel = f"({{i}} // {c.w[0]} * {int64(c.x[1])} + {{i}} % {c.w[0]} // {c.results} * {c.w[1]} + ch)"
        source, inside = channel, []
        for axis in range(last):
            behind = times(c.y[3 + axis : -1])
            at = "r" if behind == 1 else f"(r // {at_least_1(behind)})"
            at = at if axis == 0 else f"({at} % {at_least_1(c.y[2 + axis])})"
            at = f"({at} * {c.strides[axis]} + h{axis} * {c.dilations[axis]} - {c.before[axis]})"
            source = f"({source} * {int64(c.x[2 + axis])} + {at})"
            inside += [f"{at} >= T.int64(0)", f"{at} < {int64(c.x[2 + axis])}"] if c.padded else []
        tap = f"{{i}} % {c.w[0]} * {c.w[1]} + ch"
        for axis, size in enumerate(c.w[2:]):
            tap = f"({tap}) * {size} + h{axis}"
        line = f"({{i}} * {int64(above)} + r) * {int64(row)}"
        stride, shift = c.strides[last], f"(h{last} * {c.dilations[last]} - {c.before[last]})"
        low, high = within(c, f"h{last}", "T.int64(0)", int64(row)) if c.padded else ("T.int64(0)", int64(row))
        place = f"({low} + {{k}} + v)"

        def add(n: int) -> list[str]:
            value = f"X[{source} * {int64(c.x[-1])} + {place} * {stride} + {shift}]"
            return lanes(n, f"Y[{line} + {place}] = Y[{line} + {place}] + weight[0] * {value}")

        body = [f"weight[0] = W[{tap}]", *over(f"({high} - {low})", (4 * width, 1) if stride == 1 else (1,), add)]
        body = [f"for h{last} in range({c.w[-1]}):", *indented(body)]
        if inside:
            body = [f"if {' and '.join(inside)}:", *indented(body)]
        for name, count in reversed([("ch", c.w[1]), *((f"h{a}", c.w[2 + a]) for a in range(last))]):
            body = [f"for {name} in range({count}):", *indented(body)]
        zero = over(row, (width, 1), lambda n: lanes(n, f"Y[{line} + {{k}} + v] = T.float32(0)"))
        plane = [f"for r in range({int64(above)}):", *indented([*zero, *body])]
        task = rows(times([c.x[0], c.w[0]]), c.places, ([x, w], [y]), [("weight", 1, "float32")], plane)
        return function(self.name, [x, w, y], task)
