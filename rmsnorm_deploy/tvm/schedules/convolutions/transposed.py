"""A transposed convolution: a product by a BLAS library, whose results are added up where they overlap."""

from __future__ import annotations

import dataclasses
import math

from rmsnorm_deploy.tvm.schedules.convolutions.convolution import Convolution
from rmsnorm_deploy.tvm.schedules.convolutions.reach import within
from rmsnorm_deploy.tvm.schedules.flat import Scratch, Tensor, at_least_1, block, function, int64, lanes, over
from rmsnorm_deploy.tvm.schedules.products.cblas import AS_IT_IS, ROW_MAJOR, TRANSPOSED
from rmsnorm_deploy.tvm.schedules.products.product import times
from rmsnorm_deploy.tvm.schedules.values import indented

CHANNELS = 8
"""Of a group that a task computes."""


@dataclasses.dataclass(frozen=True)
class Transposed:
    """The transpose of a convolution: from tensors of its ``y`` to those of its ``x``.

    Attributes:
        convolution: that is transposed; its ``x`` is the result here, its ``y`` is what is given.
        prefix: what stands before the names of the library's functions.
    """

    convolution: Convolution
    prefix: str

    @property
    def name(self) -> str:
        """See :class:`Convolution`; it begins with what says that BLAS is called."""
        return f"product_transposed_{self.convolution.name}"

    def source(self, width: int) -> str:
        """TVMScript for a CPU with vectors of ``width`` float32 values."""
        c = self.convolution
        x, w, y = Tensor("X", c.y, "float32"), Tensor("W", c.w, "float32"), Tensor("Y", c.x, "float32")
        taps, places, area = math.prod(c.w[2:]), c.places, times(c.x[2:])
        channels = next(n for n in range(min(CHANNELS, c.w[1]), 0, -1) if c.w[1] % n == 0)
        blocks = c.w[1] // channels
        tasks = times([c.x[0], c.groups, blocks])
        group, first = f"(task // {blocks} % {c.groups})", f"(task % {blocks} * {channels})"
        image = f"(task // {blocks * c.groups})"
        given = f"({image} * {c.w[0]} + {group} * {c.results}) * {int64(places)}"
        result = f"({image} * {int64(c.x[1])} + {group} * {c.w[1]} + {first} + ch) * {int64(area)}"
        arguments = [
            *(ROW_MAJOR, TRANSPOSED, AS_IT_IS, channels * taps, f'T.cast({int64(places)}, "int32")', c.results),
            "T.float32(1)",
            f"T.address_of(W[{group} * {c.results * c.w[1] * taps} + {first} * {taps}])",
            c.w[1] * taps,
            *(f"T.address_of(X[{given}])", f'T.cast({at_least_1(places)}, "int32")', "T.float32(0)"),
            *("T.address_of(part[0])", f'T.cast({at_least_1(places)}, "int32")'),
        ]
        product = f'T.evaluate(T.call_extern("int32", "{self.prefix}cblas_sgemm", {", ".join(map(str, arguments))}))'
        zero = over(area, (width, 1), lambda n: lanes(n, f"Y[{result} + {{k}} + v] = T.float32(0)"))
        each = [f"for ch in range({channels}):", *indented([*zero, *self.sums(result, width)])]
        # a piece of memory has a size, also where there is nothing in it
        scratch: Scratch = [("part", times([channels * taps, at_least_1(places)]), "float32")]
        body = block([x, w], [y], scratch, [product, *each])
        loop = "range" if tasks == 1 else "T.parallel"
        return function(self.name, [x, w, y], [f"for task in {loop}({int64(tasks)}):", *indented(body)])

    def sums(self, result: str, width: int) -> list[str]:
        """Every row of the product added to the rows of Y that it reaches."""
        c = self.convolution
        last, row, above = len(c.strides) - 1, c.y[-1], times(c.y[2:-1])
        line, inside, tap = "0", [], "ch"
        for axis in range(last):
            behind = times(c.y[3 + axis : -1])
            at = "r" if behind == 1 else f"(r // {at_least_1(behind)})"
            at = at if axis == 0 else f"({at} % {at_least_1(c.y[2 + axis])})"
            at = f"({at} * {c.strides[axis]} + h{axis} * {c.dilations[axis]} - {c.before[axis]})"
            line = f"({line} * {int64(c.x[2 + axis])} + {at})"
            inside += [f"{at} >= T.int64(0)", f"{at} < {int64(c.x[2 + axis])}"]
        for axis, size in enumerate(c.w[2:]):
            tap = f"({tap} * {size} + h{axis})"
        stride, shift = c.strides[last], f"(h{last} * {c.dilations[last]} - {c.before[last]})"
        low, high = within(c, f"h{last}", "T.int64(0)", int64(row))
        place = f"({low} + {{k}} + v)"

        def add(n: int) -> list[str]:
            to = f"Y[{result} + {line} * {int64(c.x[-1])} + {place} * {stride} + {shift}]"
            return lanes(n, f"{to} = {to} + part[({tap} * {int64(above)} + r) * {int64(row)} + {place}]")

        body = over(f"({high} - {low})", (width, 1) if stride == 1 else (1,), add)
        body = [f"if {' and '.join(inside)}:", *indented(body)] if inside else body
        body = [f"for r in range({int64(above)}):", *indented(body)]
        for axis in reversed(range(last + 1)):
            body = [f"for h{axis} in range({c.w[2 + axis]}):", *indented(body)]
        return body
