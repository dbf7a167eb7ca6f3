"""One product of matrices as a kernel sees it: how its operands lie in memory, everything that makes two differ."""

from __future__ import annotations

import dataclasses
import itertools
import math

Size = int | str
"""Of a dimension: a number, or the name of one that is known at run time only."""


def times(sizes: list[Size] | tuple[Size, ...]) -> Size:
    """The product of sizes: a number where it is known, else an expression."""
    number = math.prod(s for s in sizes if isinstance(s, int))
    names = [s for s in sizes if isinstance(s, str)]
    if not names:
        return number
    return " * ".join([*names, *([f"T.int64({number})"] if number != 1 else [])])


@dataclasses.dataclass(frozen=True)
class Operand:
    """A tensor in memory, seen as matrices.

    Attributes:
        shape: as it lies.
        batch: for each dimension of the product's batch, the axis and how many matrices in a row share one place of it
            (a number of query heads with the same keys); None where all matrices share the tensor.
        rows: the axes of which the rows are made, neighbours in memory; none for a single row.
        columns: the same for columns.
    """

    shape: tuple[Size, ...]
    batch: tuple[tuple[int, int] | None, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def stride(self, axes: tuple[int, ...]) -> Size:
        """How far apart neighbours along ``axes`` lie."""
        return times(self.shape[axes[-1] + 1 :]) if axes else 1

    def count(self, axes: tuple[int, ...]) -> Size:
        """How many there are along ``axes``."""
        return times([self.shape[a] for a in axes])

    @property
    def transposed(self) -> bool:
        """Whether columns lie side by side, not the values of a row."""
        last = len(self.shape) - 1
        return last in self.rows and last not in self.columns

    @property
    def leading(self) -> Size:
        """How far apart the rows lie, or where transposed the columns."""
        apart, along = (self.columns, self.rows) if self.transposed else (self.rows, self.columns)
        return self.stride(apart) if apart else self.count(along)

    def possible(self) -> bool:
        """Whether BLAS can read it where it lies: rows or columns have neighbours side by side."""
        last = len(self.shape) - 1
        merged = all(b == a + 1 for axes in (self.rows, self.columns) for a, b in itertools.pairwise(axes))
        return merged and (last in self.rows or last in self.columns or not (self.rows or self.columns))


@dataclasses.dataclass(frozen=True)
class Product:
    """C = A B for each matrix of a batch.

    Attributes:
        dtype: of the result, and on CPUs of all three.
        batch: its dimensions.
        a: the left factor.
        b: the right one.
        c: the result, whose rows have their values side by side.
    """

    dtype: str
    batch: tuple[Size, ...]
    a: Operand
    b: Operand
    c: Operand

    @property
    def m(self) -> Size:
        """Rows of the result."""
        return self.c.count(self.c.rows)

    @property
    def n(self) -> Size:
        """Columns of the result."""
        return self.c.count(self.c.columns)

    @property
    def k(self) -> Size:
        """Terms of each sum."""
        return self.a.count(self.a.columns)

    @property
    def name(self) -> str:
        """A name for the kernel. Equal products have equal names; different ones can have the same name."""
        sizes = "x".join(str(s) if isinstance(s, int) else "any" for s in (self.m, self.k, self.n))
        return f"product_{sizes}_{self.dtype}" + ("_batched" if self.batch else "")

    def possible(self) -> bool:
        """Whether BLAS can compute it where everything lies."""
        return all(o.possible() for o in (self.a, self.b, self.c)) and not self.c.transposed
