"""A weight of a product as a kernel reads it: panels of 64 columns, in which the terms of a product follow each other.

One layout serves any number of rows: one row reads each panel from its beginning to its end, and many rows take pieces
of it that are small enough for the library to read them where they lie.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

PANEL = 64
"""Columns. With as many terms as make up a piece for 32 rows, OpenBLAS multiplies without copying (AVX-512)."""


@dataclasses.dataclass(frozen=True)
class Weight:
    """A matrix of ``terms`` rows and ``columns`` columns: (stored value - offset - zero point) * scale.

    Attributes:
        dtype: of what is stored.
        terms: of each sum.
        columns: of the result.
        bits: of a stored value, where it is not the whole of its type: two of 4 bits are in a byte.
        offset: what makes an unsigned number of a signed one of 4 bits.
        scale: the type of the scales; empty without.
        zero: the type of the zero points; empty without.
        block: terms that share a scale and a zero point of each column.
    """

    dtype: str
    terms: int
    columns: int
    bits: int = 0
    offset: int = 0
    scale: str = ""
    zero: str = ""
    block: int = 0

    @property
    def panels(self) -> int:
        """How many there are; zeros fill up the last."""
        return -(-self.columns // PANEL)

    @property
    def packed(self) -> bool:
        """Whether two values are in a byte: those of columns 0 to 31 of a panel below those of columns 32 to 63."""
        return self.bits == 4

    @property
    def blocks(self) -> int:
        """How many scales a column has."""
        return -(-self.terms // self.block) if self.block else 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of what is stored."""
        return self.panels, self.terms, PANEL // 2 if self.packed else PANEL

    @property
    def parts(self) -> list[tuple[str, tuple[int, int, int], str]]:
        """Name, shape and type of each tensor of it."""
        factors = self.panels, self.blocks, PANEL
        found = [("B", self.shape, self.dtype)]
        return found + [(n, factors, dtype) for n, dtype in (("S", self.scale), ("Z", self.zero)) if dtype]

    @property
    def name(self) -> str:
        """For a kernel's name."""
        return f"{self.dtype}" if not self.packed else "4_bits"


@dataclasses.dataclass(frozen=True)
class Laid:
    """A tensor of the model that lies in panels when it is written; until then there is no second one of it.

    Attributes:
        packed: whether two values of a row of panels share a byte.
        offset: see :class:`Weight`.
        transposed: whether the columns of the product are the tensor's rows.
        shape: of the panels.
        dtype: their type.
        rows: of the tensor as a matrix, where it has another shape; what a row has too much is left out.
        unpacked: whether its bytes are two values each, the first in the lower bits.
    """

    packed: bool
    offset: int
    transposed: bool
    shape: tuple[int, int, int]
    dtype: str
    rows: int = 0
    unpacked: bool = False

    def to_text(self) -> str:
        """As it stands in a module."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Laid:
        """The inverse of :meth:`to_text`."""
        values = json.loads(text)
        return cls(**(values | {"shape": tuple(values["shape"])}))

    def of(self, values: Array) -> Array:
        """``values``, a matrix, or less where all columns or all terms share one, in panels."""
        panels, rows, _ = self.shape
        if self.rows:
            values = values.reshape(self.rows, -1)
        if self.unpacked:
            values = np.stack([values & 15, values >> 4], -1).reshape(len(values), -1)
        if self.rows:
            values = values[:, :rows]
        matrix = values.reshape((1,) * (2 - values.ndim) + values.shape)
        matrix = matrix.T if self.transposed else matrix
        if self.offset:
            matrix = (matrix.astype(np.int16) + self.offset).astype(np.uint8)
        columns = panels * PANEL if matrix.shape[1] == 1 else matrix.shape[1]
        matrix = np.broadcast_to(matrix, (rows, columns))
        result = np.zeros((panels, rows, PANEL), matrix.dtype)
        whole = columns // PANEL
        result[:whole] = matrix[:, : whole * PANEL].reshape(rows, whole, PANEL).transpose(1, 0, 2)
        if columns % PANEL:
            result[whole, :, : columns % PANEL] = matrix[:, whole * PANEL :]
        if self.packed:
            low, high = result[:, :, : PANEL // 2], result[:, :, PANEL // 2 :]
            result = low & 15 | high << 4
        return result
