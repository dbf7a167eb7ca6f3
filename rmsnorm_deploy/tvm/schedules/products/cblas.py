"""A product as calls of CBLAS: the matrix in tiles, of a size that depends on the product's sizes alone.

BLAS runs each call in one thread, and TVM's threads take tiles. So there is one pool of threads, and the result is the
same for any number of them: how a sum is divided does not depend on who computes it.
"""

from __future__ import annotations

import math
from typing import Any

from rmsnorm_deploy.tvm.schedules.flat import at_least_1, int64
from rmsnorm_deploy.tvm.schedules.products.product import Operand, Product, Size, times
from rmsnorm_deploy.tvm.schedules.script import kernel_of
from rmsnorm_deploy.tvm.schedules.values import indented

TILE_COLUMNS = 512
TILE_ROWS = 512
SERIAL_BELOW = 1 << 18
"""Multiplications below which waking other threads takes longer than they save."""
ROW_MAJOR, AS_IT_IS, TRANSPOSED = 101, 111, 112


class Kernel:
    """The text of one product's kernel."""

    def __init__(self, product: Product, prefix: str) -> None:
        """``prefix`` stands before the library's names."""
        self.product = product
        self.prefix = prefix
        self.letter = "s" if product.dtype == "float32" else "d"
        self.m, self.n, self.k = product.m, product.n, product.k
        self.tile_n, self.tile_m = _tile(self.n, TILE_COLUMNS), _tile(self.m, TILE_ROWS)
        self.tiles_n, self.tiles_m = _tiles(self.n, self.tile_n), _tiles(self.m, self.tile_m)

    def source(self) -> str:
        """TVMScript."""
        p = self.product
        arguments = (("A", p.a), ("B", p.b), ("C", p.c))
        symbols = dict.fromkeys(s for _, o in arguments for s in o.shape if isinstance(s, str))
        lines = [
            "@T.prim_func",
            f"def {p.name}({', '.join(f'p{name}: T.handle' for name, _ in arguments)}):",
            # op_pattern 8 is "opaque": nothing is to be fused into it
            '    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})',
            *(f"    {s} = T.int64()" for s in symbols),
        ]
        for name, operand in arguments:
            shape = ", ".join(int64(s) for s in operand.shape)
            lines.append(f'    {name} = T.match_buffer(p{name}, ({shape},), "{p.dtype}")')
        return "\n".join([*lines, *("    " + line for line in self.body())]) + "\n"

    def body(self) -> list[str]:
        """All tiles of all matrices."""
        tasks = times([*self.product.batch, self.tiles_m, self.tiles_n])
        work = times([*self.product.batch, self.m, self.n, self.k])
        serial = [f"for task in range({int64(tasks)}):", *indented(self.task())]
        if tasks == 1 or (isinstance(work, int) and work < SERIAL_BELOW):
            return serial
        parallel = [f"for task in T.parallel({int64(tasks)}):", *indented(self.task())]
        known = math.prod(s for s in (*self.product.batch, self.m, self.n, self.k) if isinstance(s, int))
        if isinstance(work, int) or known >= SERIAL_BELOW:
            return parallel
        return [f"if {work} < T.int64({SERIAL_BELOW}):", *indented(serial), "else:", *indented(parallel)]

    def task(self) -> list[str]:
        """One tile of one matrix: the product with a row or a column where there is only one, else of two matrices."""
        if self.n == 1:
            return [self.times_column()]
        if self.m == 1:
            return [self.times_row()]
        if isinstance(self.m, int):
            return [self.tile()]
        return [f"if {self.m} == T.int64(1):", "    " + self.times_row(), "else:", "    " + self.tile()]

    # -- the calls

    def tile(self) -> str:
        """A tile by gemm."""
        a, b, c = self.product.a, self.product.b, self.product.c
        k = _int32(self.k)
        alpha, beta = self.number(1), self.number(0)
        return self.call(
            "gemm",
            *(ROW_MAJOR, *(TRANSPOSED if o.transposed else AS_IT_IS for o in (a, b))),
            *(_int32(self.rows()), _int32(self.columns()), k, alpha),
            *(self.at("A", a, row=self.first_row()), _leading(a)),
            *(self.at("B", b, column=self.first_column()), _leading(b), beta),
            *(self.at("C", c, row=self.first_row(), column=self.first_column()), _leading(c)),
        )

    def times_row(self) -> str:
        """The tile's part of one row times B."""
        a, b, c = self.product.a, self.product.b, self.product.c
        x = self.at("A", a), _int32(a.stride(a.columns))
        matrix = self.at("B", b, column=self.first_column())
        return self.gemv(matrix, b, (self.columns(), self.k), x, (self.at("C", c, column=self.first_column()), "1"))

    def times_column(self) -> str:
        """The tile's part of A times one column."""
        a, b, c = self.product.a, self.product.b, self.product.c
        x = self.at("B", b), _int32(b.stride(b.rows))
        matrix = self.at("A", a, row=self.first_row())
        y = self.at("C", c, row=self.first_row()), _int32(c.stride(c.rows))
        return self.gemv(matrix, a, (self.rows(), self.k), x, y, summed="columns")

    def gemv(
        self,
        matrix: str,
        operand: Operand,
        sizes: tuple[Size, Size],
        x: tuple[str, str],
        y: tuple[str, str],
        summed: str = "rows",
    ) -> str:
        """``sizes`` are the results, and the terms of each; ``summed`` is what of the matrix they lie along."""
        side_by_side = (summed == "columns") != operand.transposed
        results, terms = (_int32(s) for s in sizes)
        shape = (AS_IT_IS, results, terms) if side_by_side else (TRANSPOSED, terms, results)
        alpha, beta = self.number(1), self.number(0)
        return self.call("gemv", ROW_MAJOR, *shape, alpha, matrix, _leading(operand), *x, beta, *y)

    def call(self, name: str, *arguments: object) -> str:
        """A call of the library."""
        given = ", ".join(map(str, arguments))
        return f'T.evaluate(T.call_extern("int32", "{self.prefix}cblas_{self.letter}{name}", {given}))'

    def number(self, value: int) -> str:
        """A number of the product's type."""
        return f"T.{self.product.dtype}({value})"

    # -- where a task is

    def first_row(self) -> str:
        """The first row of a task's tile."""
        return (
            "T.int64(0)"
            if self.tiles_m == 1
            else f"(task // {at_least_1(self.tiles_n)} % {at_least_1(self.tiles_m)} * {self.tile_m})"
        )

    def first_column(self) -> str:
        """The first column of a task's tile."""
        return "T.int64(0)" if self.tiles_n == 1 else f"(task % {at_least_1(self.tiles_n)} * {self.tile_n})"

    def rows(self) -> Size:
        """How many rows a task's tile has."""
        return self.m if self.tiles_m == 1 else f"T.min(T.int64({self.tile_m}), {int64(self.m)} - {self.first_row()})"

    def columns(self) -> Size:
        """How many columns a task's tile has."""
        return (
            self.n if self.tiles_n == 1 else f"T.min(T.int64({self.tile_n}), {int64(self.n)} - {self.first_column()})"
        )

    def at(self, name: str, operand: Operand, row: str = "T.int64(0)", column: str = "T.int64(0)") -> str:
        """The address of a value of the task's matrix."""
        index = ["T.int64(0)"] * len(operand.shape)
        inner: list[Size] = [self.tiles_m, self.tiles_n]
        for i, (size, place) in reversed(list(enumerate(zip(self.product.batch, operand.batch, strict=True)))):
            if place is not None:
                axis, shared = place
                position = f"task // {at_least_1(times(inner))}"
                position += f" % {at_least_1(size)}" if i else ""
                position = position if size != 1 else "T.int64(0)"
                index[axis] = f"({position}) // T.int64({shared})" if shared != 1 else position
            inner.insert(0, size)
        for axes, first in ((operand.rows, row), (operand.columns, column)):
            rest = first
            for axis in reversed(axes[1:]):
                index[axis] = f"({rest}) % {at_least_1(operand.shape[axis])}"
                rest = f"({rest}) // {at_least_1(operand.shape[axis])}"
            if axes:
                index[axes[0]] = rest
        return f"T.address_of({name}[{', '.join(index)}])"


def kernel(product: Product, prefix: str) -> Any:
    """``product`` as a scheduled ``tvm.tirx.PrimFunc`` of A, B and C that calls the library with ``prefix``."""
    return kernel_of(Kernel(product, prefix).source())


def _tile(size: Size, usual: int) -> int:
    """Equal tiles, of whole vectors, near the usual size."""
    if not isinstance(size, int):
        return usual
    count = max(1, round(size / usual))
    return -(-size // count // 16) * 16 if count > 1 else max(size, 1)


def _tiles(size: Size, tile: int) -> Size:
    if isinstance(size, int):
        return -(-size // tile)
    return f"(({size} + T.int64({tile - 1})) // T.int64({tile}))"


def _leading(operand: Operand) -> str:
    """CBLAS refuses 0, which a tensor without values would have."""
    size = operand.leading
    return str(max(1, size)) if isinstance(size, int) else f'T.cast(T.max({size}, T.int64(1)), "int32")'


def _int32(size: Size) -> str:
    return str(size) if isinstance(size, int) else f'T.cast({size}, "int32")'
