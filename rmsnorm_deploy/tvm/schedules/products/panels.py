"""A product with a weight in panels: pieces of it become float32 in a cache, and a BLAS library multiplies them.

Measured (one thread, 896 by 4864 and 4864 by 896, AVX-512; the time of one product with the same weights in float32
and as they were, in rows): 1 row takes 0.5 of it in float32 and 0.35 in float16, 32 rows 0.62 and 0.71, 128 rows 0.82
and 0.84, 512 rows 0.88 and 0.90. With the library's kernels for AVX2, which copy whatever they are given: 0.6 and 0.4,
0.97, 1.0 and 1.0 where a piece is brought into the cache first, as one of float16 is.

So 16-bit weights are converted at each call. Weights that are converted once, when a model is loaded, need twice the
memory and cannot be mapped files; they are a sixth faster at 32 rows, 3 % at 128, and for one row, which waits for
memory, take 1.6 times as long.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from rmsnorm_deploy.tvm.schedules.flat import int64
from rmsnorm_deploy.tvm.schedules.products.cblas import AS_IT_IS, ROW_MAJOR, SERIAL_BELOW
from rmsnorm_deploy.tvm.schedules.products.product import Size, times
from rmsnorm_deploy.tvm.schedules.products.weight import PANEL, Weight
from rmsnorm_deploy.tvm.schedules.script import kernel_of
from rmsnorm_deploy.tvm.schedules.values import indented

TERMS, ROWS = 448, 32
"""Of a piece, and rows at a time: OpenBLAS takes what has up to a million products as it lies (AVX-512)."""
EXACT_TERMS = 256
"""Sums of so many products of two differences of 8-bit numbers have no rounding in float32; with a signed number in
place of one difference, as many as in any other piece."""
MANY_ROWS = 128
"""Rows at a time where the library copies what it multiplies: the more the better."""
LANES = 16


@dataclasses.dataclass(frozen=True)
class PanelProduct:
    """C = A B, B a weight in panels.

    Attributes:
        rows: the dimensions of A before its terms.
        weight: B.
        dtype: of C: float32, or int32, where A and B have whole numbers.
        small: whether the library multiplies small matrices as they lie.
    """

    rows: tuple[Size, ...]
    weight: Weight
    dtype: str
    small: bool

    @property
    def m(self) -> Size:
        """Rows of the result."""
        return times(self.rows)

    @property
    def name(self) -> str:
        """A name for the kernel. Equal products have equal names; different ones can have the same name."""
        m = self.m if isinstance(self.m, int) else "any"
        return f"product_{m}x{self.weight.terms}x{self.weight.columns}_{self.weight.name}_panels"


class Kernel:
    """The text of one product's kernel."""

    def __init__(self, product: PanelProduct, prefix: str) -> None:
        """``prefix`` stands before the library's names."""
        self.product, self.prefix = product, prefix
        self.w, self.m = product.weight, product.m
        self.exact = product.dtype == "int32"
        symmetric = self.w.dtype == "int8" and not self.w.zero  # half as large as a difference can be
        self.piece = min(self.w.terms, EXACT_TERMS if self.exact and not symmetric else TERMS)
        self.pieces = -(-self.w.terms // self.piece)
        self.as_it_lies = product.small and self.w.dtype == "float32" and not (self.w.scale or self.w.zero)

    def source(self) -> str:
        """TVMScript."""
        p, w = self.product, self.w
        shapes = [("A", "float32", (*p.rows, w.terms)), *((n, d, s) for n, s, d in w.parts)]
        shapes.append(("C", p.dtype, (*p.rows, w.columns)))
        lines = [
            "@T.prim_func(s_tir=True)",
            f"def {p.name}({', '.join(f'p{name}: T.handle' for name, _, _ in shapes)}):",
            # op_pattern 8 is "opaque": nothing is to be fused into it
            '    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})',
            *(f"    {s} = T.int64()" for s in dict.fromkeys(d for d in p.rows if isinstance(d, str))),
        ]
        for name, dtype, shape in shapes:
            viewed = "_" if name in "AC" else ""
            lines.append(f'    {name}{viewed} = T.match_buffer(p{name}, ({_sizes(shape)},), "{dtype}")')
        m = int64(self.m)
        lines.append(f'    A = T.decl_buffer(({m}, {w.terms}), "float32", data=A_.data)')
        lines.append(f'    C = T.decl_buffer(({m}, {w.columns}), "{p.dtype}", data=C_.data)')
        return "\n".join([*lines, *indented(self.body())]) + "\n"

    def body(self) -> list[str]:
        """All panels."""
        if self.m == 0:
            return ["T.evaluate(0)"]
        one, many = self.loop(self.row(), 1), self.loop(self.rows(), self.m)
        if isinstance(self.m, int):
            return one if self.m == 1 else many
        return [f"if {self.m} == T.int64(1):", *indented(one), "else:", *indented(many)]

    def loop(self, task: list[str], m: Size) -> list[str]:
        """Over the panels, side by side where that pays."""
        work = self.w.terms * self.w.columns * (m if isinstance(m, int) else 2)
        if self.w.panels == 1 or work < SERIAL_BELOW:
            return [f"for task in range({int64(self.w.panels)}):", *indented(task)]
        return [f"for task in T.parallel({int64(self.w.panels)}):", *indented(task)]

    def block(self, scratch: list[tuple[str, int, str]], lines: list[str]) -> list[str]:
        """``lines`` with scratch of their own."""
        return [
            'with T.sblock("task"):',
            f"    T.reads(A_[{_everything((*self.product.rows, self.w.terms))}])",
            f"    T.writes(C_[{_everything((*self.product.rows, self.w.columns))}])",
            *(f'    {n} = T.sblock_alloc_buffer(({size},), "{dtype}", scope="global")' for n, size, dtype in scratch),
            *indented(lines),
        ]

    # -- one row: a panel's columns are summed side by side

    def row(self) -> list[str]:
        """One panel times one row."""
        w = self.w
        # what has one scale for all terms is summed in pieces all the same: shorter sums lose fewer digits
        block = self.piece if w.blocks == 1 else w.block
        count = -(-w.terms // block)
        term, factor = f"b * {block} + k", f"b * {block} // {w.block}" if w.blocks > 1 else "0"
        total = f'T.cast(sums[{_AT}], "int32")' if self.exact else f"sums[{_AT}]"
        if w.scale:
            scale = _wide(f"S[task, {factor}, {_AT}]", w.scale)
            total = f"{total} * {scale}"
        add = [f"sums[{{c}}] = sums[{{c}}] + A[0, {term}] * ({self.value(term, 'zeros[{c}]')})"]
        length = str(block) if w.terms % block == 0 else f"T.min({block}, {w.terms} - b * {block})"
        lines = [
            *_lanes([f"total[{_AT}] = T.{self.product.dtype}(0)"]),
            f"for b in range({count}):",
            *indented(_lanes([f"sums[{_AT}] = T.float32(0)", *self.zeros(factor)])),
            f"    for k in range({length}):",
            *indented(self.each(add, term), 2),
            *indented(_lanes([f"total[{_AT}] = total[{_AT}] + {total}"])),
            *self.store("0", "total[{c}]"),
        ]
        return self.block(
            [("sums", PANEL, "float32"), ("zeros", PANEL, "float32"), ("total", PANEL, self.product.dtype)], lines
        )

    def zeros(self, factor: str) -> list[str]:
        """What is subtracted from each column of a panel, put into ``zeros``."""
        w = self.w
        if not (w.zero or w.offset):
            return []
        zero = _wide(f"Z[task, {factor}, {_AT}]", w.zero) if w.zero else f"T.float32({w.offset})"
        return [f"zeros[{_AT}] = {zero}"]

    def value(self, term: str, zero: str) -> str:
        """A column's value in float32, without its scale: ``{c}`` is the column, ``{stored}`` what is stored."""
        wide = "{stored}" if self.w.packed else _wide(f"B[task, {term}, {{c}}]", self.w.dtype)
        if self.w.packed:
            wide = f'T.cast({wide}, "float32")'
        return f"{wide} - {zero}" if self.w.zero or self.w.offset else wide

    def each(self, statements: list[str], term: str) -> list[str]:
        """Statements for each column of a panel, as vectors."""
        if not self.w.packed:
            return _lanes([s.format(c=_AT, stored="") for s in statements])
        stored = f"B[task, {term}, v * {LANES} + j]"
        halves = (
            (f"v * {LANES} + j", f"T.bitwise_and({stored}, T.uint8(15))"),
            (
                f"{PANEL // 2} + v * {LANES} + j",
                f"T.shift_right({stored}, T.uint8(4))",
            ),
        )
        return _lanes([s.format(c=c, stored=part) for c, part in halves for s in statements], PANEL // 2)

    def store(self, row: str, value: str) -> list[str]:
        """The columns of one row that there are, for the panel ``task``."""
        w = self.w
        whole, rest = divmod(w.columns, PANEL)
        at = f"C[{row}, task * {PANEL} + {{c}}] = {value}"
        full = _lanes([at.format(c=_AT)])
        part = [f"for j in range({rest}):", "    " + at.format(c="j")]
        if not rest:
            return full
        return [f"if task < {whole}:", *indented(full), "else:", *indented(part)] if whole else part

    # -- several rows

    def rows(self) -> list[str]:
        """One panel times all rows."""
        k0 = f"p * {self.piece}"
        length = str(self.piece) if self.w.terms % self.piece == 0 else f"T.min({self.piece}, {self.w.terms} - {k0})"
        most = ROWS if self.product.small else MANY_ROWS if self.exact else 0
        rows, first, count = _divided(self.m, most)
        multiply = self.multiply(k0, f'T.cast({length}, "int32")', first, count)
        lines = [
            f"for p in range({self.pieces}):",
            *([] if self.as_it_lies else indented(self.bring(k0, length))),
            f"    for r in range({rows}):",
            *indented(multiply, 2),
        ]
        scratch = [] if self.as_it_lies else [("W", self.piece * PANEL, "float32")]
        scratch += [(name, PANEL, "float32") for name in ("zeros", "scales") if scratch]
        if self.exact:
            scratch.append(("sums", (most or MANY_ROWS) * PANEL, "float32"))
        return self.block(scratch, lines)

    def bring(self, k0: str, length: str) -> list[str]:
        """A piece of the panel in float32, into ``W``."""
        w = self.w
        # terms that have the same scales
        group = self.piece if w.blocks == 1 else math.gcd(self.piece, w.block)
        whole = w.terms % group == 0 and (self.piece == group or w.terms % self.piece == 0)
        at = f"g * {group} + k"
        value = self.value(f"{k0} + {at}", "zeros[{c}]")
        factor = f"({k0} + g * {group}) // {w.block}" if w.blocks > 1 else "0"
        factors = self.zeros(factor)
        if w.scale:
            factors.append(f"scales[{_AT}] = " + _wide(f"S[task, {factor}, {_AT}]", w.scale))
            value = f"({value}) * scales[{{c}}]"
        return [
            f"for g in range(({length} + {group - 1}) // {group}):",
            *indented(_lanes(factors) if factors else []),
            f"    for k in range({group if whole else f'T.min({group}, {length} - g * {group})'}):",
            *indented(self.each([f"W[({at}) * {PANEL} + {{c}}] = {value}"], f"{k0} + {at}"), 2),
        ]

    def multiply(self, k0: str, length: str, first: str, count: str) -> list[str]:
        """A piece times some rows, added to what there is."""
        columns = f'T.cast(T.min({PANEL}, {self.w.columns} - task * {PANEL}), "int32")'
        b = f"B[task, {k0}, 0]" if self.as_it_lies else "W[0]"
        c, leading = (f"C[{first}, task * {PANEL}]", self.w.columns) if not self.exact else ("sums[0]", PANEL)
        beta = "T.Select(p == 0, T.float32(0), T.float32(1))" if not self.exact else "T.float32(0)"
        given = (
            *(ROW_MAJOR, AS_IT_IS, AS_IT_IS, f'T.cast({count}, "int32")', columns, length, "T.float32(1)"),
            *(f"T.address_of(A[{first}, {k0}])", self.w.terms, f"T.address_of({b})", PANEL),
            *(beta, f"T.address_of({c})", leading),
        )
        call = f'T.evaluate(T.call_extern("int32", "{self.prefix}cblas_sgemm", {", ".join(map(str, given))}))'
        if not self.exact:
            return [call]
        whole = f'T.cast(sums[q * {PANEL} + j], "int32")'
        at = f"C[{first} + q, task * {PANEL} + j]"
        add = f"{at} = T.Select(p == 0, T.int32(0), {at}) + {whole}"
        return [
            call,
            f"for q in range({count}):",
            f"    for j in range(T.min({PANEL}, {self.w.columns} - task * {PANEL})):",
            "        " + add,
        ]


_AT = f"v * {LANES} + j"


def kernel(product: PanelProduct, prefix: str) -> Any:
    """A scheduled ``tvm.tirx.PrimFunc`` of A, the weight's parts and C that calls the library with ``prefix``."""
    return kernel_of(Kernel(product, prefix).source())


def _lanes(statements: list[str], columns: int = PANEL) -> list[str]:
    """Statements for each of the columns, as vectors that are written out."""
    return [
        f"for v in T.unroll({columns // LANES}):",
        f"    for j in T.vectorized({LANES}):",
        *indented(statements, 2),
    ]


def _wide(value: str, dtype: str) -> str:
    return value if dtype == "float32" else f'T.cast({value}, "float32")'


def _divided(m: Size, most: int) -> tuple[str, str, str]:
    """How many times so many rows there are, the first of them, and how many."""
    if not most:
        return "1", "r", int64(m)
    if isinstance(m, int):
        count = -(-m // most)
        return str(count), f"r * {most}", f"T.min({most}, {m} - r * {most})" if m % most else str(most)
    return f"({m} + {most - 1}) // {most}", f"r * {most}", f"T.min({most}, {m} - r * {most})"


def _sizes(shape: tuple[Size, ...]) -> str:
    return ", ".join(map(int64, shape))


def _everything(shape: tuple[Size, ...]) -> str:
    return ", ".join(f"0:{int64(d)}" for d in shape)
