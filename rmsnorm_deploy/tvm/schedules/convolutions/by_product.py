"""A convolution as products by a BLAS library: what a tile of the result needs of X is laid out as a matrix.

The tiles depend on the sizes alone, and BLAS runs in one thread: so the result is the same for any number of threads.
"""

from __future__ import annotations

import dataclasses

from rmsnorm_deploy.tvm.schedules.convolutions.convolution import Convolution
from rmsnorm_deploy.tvm.schedules.convolutions.reach import within
from rmsnorm_deploy.tvm.schedules.flat import Scratch, Tensor, at_least_1, block, function, int64, lanes, over
from rmsnorm_deploy.tvm.schedules.products.cblas import AS_IT_IS, ROW_MAJOR, TRANSPOSED
from rmsnorm_deploy.tvm.schedules.products.product import Size, times
from rmsnorm_deploy.tvm.schedules.values import indented

MATRIX_VALUES = 1 << 18
"""Of a tile's matrix, about: what the second cache holds."""
LEAST_PLACES, MOST_PLACES = 128, 512
LONG_STEP = 3
"""From this stride on, neighbours in a row of the kernel are laid out side by side, not neighbouring places."""


@dataclasses.dataclass(frozen=True)
class ByProduct:
    """A convolution, and what stands before the names of the library's functions."""

    convolution: Convolution
    prefix: str

    @property
    def name(self) -> str:
        """See :class:`Convolution`; it begins with what says that BLAS is called."""
        return f"product_{self.convolution.name}"

    def source(self, width: int) -> str:
        """TVMScript for a CPU with vectors of ``width`` float32 values."""
        return _Text(self, width).source()


class _Text:
    def __init__(self, wanted: ByProduct, width: int) -> None:
        self.c = c = wanted.convolution
        self.prefix, self.width = wanted.prefix, width
        self.x, self.w, self.y = (Tensor(n, s, "float32") for n, s in (("X", c.x), ("W", c.w), ("Y", c.y)))
        self.most = max(LEAST_PLACES, min(MOST_PLACES, MATRIX_VALUES // max(1, c.terms) // 16 * 16))
        # Y's places are rows of the last size: a tile is some whole rows, or a piece of one
        self.row: Size = c.y[-1]
        self.all_rows: Size = times(c.y[2:-1])
        row = at_least_1(self.row)
        if isinstance(self.row, int):
            self.rows: Size = max(1, self.most // max(1, self.row))
            self.rows = min(self.rows, self.all_rows) if isinstance(self.all_rows, int) else self.rows
            self.piece: Size = max(1, min(self.row, self.most))
            self.pieces: Size = -(-self.row // self.piece)
        else:
            self.rows = 1 if self.all_rows == 1 else f"T.max(T.int64({self.most}) // {row}, T.int64(1))"
            self.piece = f"T.max(T.min({self.row}, T.int64({self.most})), T.int64(1))"
            self.pieces = f"(({self.row} + {self.piece} - T.int64(1)) // {self.piece})"
        self.side_by_side = c.strides[-1] >= LONG_STEP and c.dilations[-1] == 1 and c.w[-1] >= 4 and not c.padded
        both_known = isinstance(self.rows, int) and isinstance(self.piece, int)
        self.places: int = self.rows * self.piece if both_known else self.most  # type: ignore[assignment, operator]

    def source(self) -> str:
        """The kernel."""
        c = self.c
        blocks = _divided(self.all_rows, self.rows)
        tasks = times([c.x[0], c.groups, blocks, self.pieces])
        task, place = "task", {}
        for name, count in (("piece", self.pieces), ("rows", blocks), ("group", c.groups), ("image", c.x[0])):
            place[name] = "T.int64(0)" if count == 1 else f"({task} % {at_least_1(count)})"
            task = task if count == 1 else f"({task} // {at_least_1(count)})"
        self.image, self.group = place["image"], place["group"]
        self.first_row = f"({place['rows']} * {int64(self.rows)})"
        self.first = f"({place['piece']} * {int64(self.piece)})"
        self.row_count = f"T.min({int64(self.rows)}, {int64(self.all_rows)} - {self.first_row})"
        self.length = f"T.min({int64(self.piece)}, {int64(self.row)} - {self.first})"
        scratch: Scratch = [] if c.pointwise else [("matrix", c.terms * self.places, "float32")]
        fill = [] if c.pointwise else self.fill()
        body = block([self.x, self.w], [self.y], scratch, [*fill, self.product()])
        loop = "range" if tasks == 1 else "T.parallel"
        return function(
            f"product_{c.name}", [self.x, self.w, self.y], [f"for task in {loop}({int64(tasks)}):", *indented(body)]
        )

    def fill(self) -> list[str]:
        """The tile's matrix: (terms, places), or (places, terms) where neighbours in the kernel lie side by side."""
        c = self.c
        channel = f"({self.image} * {int64(c.x[1])} + {self.group} * {c.w[1]} + ch)"
        # the row of X for the row r of the tile, a number for each size but the last
        source, inside = channel, []
        rest = f"({self.first_row} + r)"
        for axis in range(len(c.strides) - 1):
            size, behind = c.x[2 + axis], times(c.y[3 + axis : -1])
            at = rest if behind == 1 else f"({rest} // {at_least_1(behind)})"
            at = at if axis == 0 else f"({at} % {at_least_1(c.y[2 + axis])})"
            at = f"({at} * {c.strides[axis]} + h{axis} * {c.dilations[axis]} - {c.before[axis]})"
            source = f"({source} * {int64(size)} + {at})"
            inside += [f"{at} >= T.int64(0)", f"{at} < {int64(size)}"] if c.padded else []
        term = "ch"
        for axis, size in enumerate(c.w[2:]):
            term = f"({term} * {size} + h{axis})"
        column = f"r * {self.length}" if self.rows != 1 else "T.int64(0)"
        last = len(c.strides) - 1
        loops = ["ch", *(f"h{axis}" for axis in range(last + 1))]
        counts = [c.w[1], *c.w[2:]]
        line = f"{source} * {int64(c.x[-1])}"
        if self.side_by_side:
            from_, to = f"{line} + ({self.first} + j) * {c.strides[-1]}", f"({column} + j) * {c.terms} + {term}"
            one = to.replace(f"h{last}", "{k}")

            def copied(width: int) -> list[str]:
                return lanes(width, f"matrix[{one} + v] = X[{from_} + {{k}} + v]")

            inner = [f"for j in range({self.length}):", *indented(over(c.w[-1], (self.width, 4, 1), copied))]
            loops, counts = loops[:-1], counts[:-1]
        else:
            to = f"{term} * {int64(self.places)} + {column}"
            inner = self.line(line, to, last)
            if inside:
                nothing = over(
                    self.length, (self.width, 1), lambda n: lanes(n, f"matrix[{to} + {{k}} + v] = T.float32(0)")
                )
                inner = [f"if {' and '.join(inside)}:", *indented(inner), "else:", *indented(nothing)]
        inner = [f"for r in range({self.row_count}):", *indented(inner)]
        for name, count in zip(reversed(loops), reversed(counts), strict=True):
            inner = [f"for {name} in range({count}):", *indented(inner)]
        return inner

    def line(self, source: str, to: str, last: int) -> list[str]:
        """A row of the kernel's part in a row of the tile, with zeros where it reaches beyond X."""
        c = self.c
        stride = c.strides[last]
        shift = f"(h{last} * {c.dilations[last]} - {c.before[last]})"
        width = self.width if stride == 1 else 1

        def copied(n: int) -> list[str]:
            at = "{first} + {k} + v"
            return lanes(n, f"matrix[{to} + {at}] = X[{source} + ({self.first} + {at}) * {stride} + {shift}]")

        def zeros(n: int) -> list[str]:
            return lanes(n, f"matrix[{to} + {{first}} + {{k}} + v] = T.float32(0)")

        def part(first: str, count: str, body: object) -> list[str]:
            return [text.replace("{first}", first) for text in over(count, (width, 1) if width > 1 else (1,), body)]  # type: ignore[arg-type]

        if not c.padded:
            return part("T.int64(0)", self.length, copied)
        low, high = within(c, f"h{last}", self.first, self.length)
        return [
            *part("T.int64(0)", low, zeros),
            *part(low, f"({high} - {low})", copied),
            *part(high, f"({self.length} - {high})", zeros),
        ]

    def product(self) -> str:
        """The tile of Y: W times the matrix."""
        c = self.c
        places = int64(c.places)
        first = f"{self.first_row} * {int64(self.row)} + {self.first}"
        y = f"Y[({self.image} * {c.w[0]} + {self.group} * {c.results}) * {places} + {first}]"
        matrix = "matrix[0]"
        layout, leading = (TRANSPOSED, str(c.terms)) if self.side_by_side else (AS_IT_IS, str(self.places))
        if c.pointwise:  # X is the matrix
            matrix = f"X[({self.image} * {int64(c.x[1])} + {self.group} * {c.w[1]}) * {places} + {first}]"
            leading = f'T.cast({places}, "int32")'
        arguments = [
            *(ROW_MAJOR, AS_IT_IS, layout, c.results, f'T.cast({self.row_count} * {self.length}, "int32")', c.terms),
            *("T.float32(1)", f"T.address_of(W[{self.group} * {c.results * c.terms}])", c.terms),
            *(f"T.address_of({matrix})", leading, "T.float32(0)", f"T.address_of({y})"),
            f'T.cast({places}, "int32")',
        ]
        return f'T.evaluate(T.call_extern("int32", "{self.prefix}cblas_sgemm", {", ".join(map(str, arguments))}))'


def _divided(size: Size, by: Size) -> Size:
    """Rounded up."""
    if isinstance(size, int) and isinstance(by, int):
        return -(-size // by)
    return size if by == 1 else f"(({int64(size)} + {int64(by)} - T.int64(1)) // {int64(by)})"
