"""What is measured on a GPU, in the order in which it tells most: after the first minute the picture is there."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from benchmarks.gpu.contract import ALL, BYTES, FLOAT32, TYPES, Params, params

EPSILON = 1e-6
OPS = ("RMSNorm", "AddRMSNorm")
DTYPES = ("bfloat16", "float16", "float32")
# Row lengths of today's models, and of their heads.
HEADS = (64, 128, 256)
SIZES = (*HEADS, 896, 1024, 2048, 2880, 3584, 4096, 5120, 7168, 8192, 16384)
DECODE, PREFILL = (1, 16, 64), (512, 4096, 16384)
HEADS_OF_A_TOKEN = 32
INNER = 4096  # places of a channel-first tensor: an image of 64x64

# Rows and size: decoding and prefill of the usual sizes, heads, and what moves enough bytes to be beyond L2.
TELLING = (
    *((1, 4096), (16384, 4096), (524288, 128), (4096, 16384), (16, 4096), (4096, 4096), (32, 128)),
    *((16384, 2880), (8192, 8192), (1, 16384), (64, 5120)),
)
# What differs from the plain norm (see Case.variant), at sizes of models that have it.
VARIANTS = (
    *(("gemma", 16384, 3584), ("gemma", 524288, 256), ("gemma, float32 scale", 16384, 3584)),
    *(("gemma", 1, 3584), ("float32 scale", 16384, 4096), ("general", 16384, 4096), ("columns", 32768, 320)),
    *(("plain", 16384, 4097), ("plain", 32768, 1001)),
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One norm of one shape.

    Attributes:
        op: RMSNorm or AddRMSNorm.
        dtype: of x and y, by name.
        rows: how many rows; channel-first, how many columns.
        size: features of a row.
        variant: "plain" is Llama's order, with a scale of x's type. "gemma" rounds once, at the end. "float32 scale"
            has a scale of that type. "general" has a bias, and its mean is over the first half of each row. "columns"
            is channel-first.
        telling: compilers that take seconds take part.
    """

    op: str
    dtype: str
    rows: int
    size: int
    variant: str = "plain"
    telling: bool = dataclasses.field(default=False, compare=False)

    @property
    def inputs(self) -> int:
        return 2 if self.op == "AddRMSNorm" else 1

    @property
    def tensor_bytes(self) -> int:
        return self.rows * self.size * BYTES[TYPES[self.dtype]]

    @property
    def moved_bytes(self) -> int:
        """What is read and written at least, scale apart."""
        return 2 * self.inputs * self.tensor_bytes

    @property
    def name(self) -> str:
        variant = "" if self.variant == "plain" else f" ({self.variant})"
        return f"{self.op} {self.dtype} {self.rows}x{self.size}{variant}"

    @property
    def once(self) -> bool:
        """Whether it rounds at the end only."""
        return self.variant.startswith("gemma")

    @property
    def scale_type(self) -> int:
        return FLOAT32 if self.variant.endswith("float32 scale") else TYPES[self.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of x; the normalised dimension is the one with number 1."""
        if self.variant != "columns":
            return self.rows, self.size
        inner = min(self.rows, INNER)
        return self.rows // inner, self.size, inner

    @property
    def measured(self) -> int | None:
        """Of how many features the mean is; None for all."""
        return max(1, self.size // 2) if self.variant == "general" else None

    @property
    def bias(self) -> bool:
        return self.variant == "general"

    def params(self, epsilon: float) -> Params:
        """The call, its pointers not yet set."""
        p = params(TYPES[self.dtype], self.shape, 1, epsilon)
        p.scale_type = self.scale_type
        p.round_type = FLOAT32 if self.once else p.x_type
        p.partial_size = self.measured or ALL
        return p


def _rows(size: int) -> Iterator[int]:
    """The rows of decoding and of prefill: tokens, or heads where a row is one."""
    for tokens in (*DECODE, *PREFILL):
        yield tokens * HEADS_OF_A_TOKEN if size in HEADS else tokens


def _thin(dtype: str) -> Iterator[Case]:
    """Every size, with one number of rows of decoding and one of prefill."""
    for size, op in itertools.product(SIZES, OPS):
        rows = list(_rows(size))
        yield from (Case(op, dtype, count, size) for count in (rows[1], rows[-1]))


def grid(dtypes: Sequence[str] = DTYPES) -> list[Case]:
    """All cases, the most telling first: bfloat16 before the other types, few rows before all."""

    def every() -> Iterator[Case]:
        first, *others = dtypes
        yield from (Case(op, first, *place, telling=True) for place, op in itertools.product(TELLING, OPS))
        yield from (Case("RMSNorm", first, rows, size, variant) for variant, rows, size in VARIANTS)
        yield from _thin(first)
        for dtype in others:
            yield from (Case("RMSNorm", dtype, *place, telling=dtype != "float32") for place in TELLING)
            yield from (Case("RMSNorm", dtype, rows, size, variant) for variant, rows, size in VARIANTS[::3])
            yield from _thin(dtype)
        for dtype, size, op in itertools.product(dtypes, SIZES, OPS):
            yield from (Case(op, dtype, count, size) for count in _rows(size))

    return list(dict.fromkeys(every()))


def chosen(dtypes: Sequence[str], sizes: Sequence[int], rows: Sequence[int]) -> list[Case]:
    """These rows, sizes and types only, and the smallest of them for each variant."""
    plain = itertools.product(dtypes, sizes, OPS, rows)
    cases = [Case(op, dtype, count, size, telling=True) for dtype, size, op, count in plain]
    names = dict.fromkeys(variant for variant, *_ in VARIANTS if variant != "plain")
    return cases + [Case("RMSNorm", dtypes[0], max(rows), min(sizes), variant) for variant in names]
