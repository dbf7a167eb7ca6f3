"""A product as one call of cuBLAS: the kernel's text only hands over how everything lies, also where sizes vary.

The function that it calls, ``artefact/cublas.cpp``, is linked into the library and puts the work on the GPU's queue.
"""

from __future__ import annotations

import dataclasses
import hashlib

from rmsnorm_deploy.tvm.schedules.flat import int64
from rmsnorm_deploy.tvm.schedules.products.product import Product, Size, times

ATTRIBUTE = "rmsnorm_deploy.function"
"""Of a kernel: the C function that it calls. No two kernels have the same, as TVM declares a function at each call, and
LLVM gives the second declaration another name. All are one in what is linked."""
TYPES = {
    # of the factors: of the result
    "float32": ("float32",),
    "float64": ("float64",),
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
}
"""What is multiplied on tensor cores where they have the type, and summed in float32 (float64 in float64)."""


@dataclasses.dataclass(frozen=True)
class CublasProduct:
    """One product of matrices, or many.

    Attributes:
        product: how they lie; its type is of no account.
        factors: the type of both.
        result: the type of the result.
    """

    product: Product
    factors: str
    result: str

    def possible(self) -> bool:
        """Whether cuBLAS has it."""
        p = self.product
        return p.k != 0 and self.result in TYPES.get(self.factors, ()) and _batch(p) is not None

    @property
    def function(self) -> str:
        """See :data:`ATTRIBUTE`."""
        return f"{self.name}_{hashlib.sha256(repr(self).encode()).hexdigest()[:16]}"

    @property
    def name(self) -> str:
        """See the protocol."""
        types = self.factors if self.factors == self.result else f"{self.factors}_{self.result}"
        return self.product.name.replace(self.product.dtype, types)

    def source(self, width: int) -> str:
        """See the protocol; there is only one text."""
        del width
        p = self.product
        arguments = (("A", p.a, self.factors), ("B", p.b, self.factors), ("C", p.c, self.result))
        symbols = dict.fromkeys(s for _, o, _ in arguments for s in o.shape if isinstance(s, str))
        lines = [
            "@T.prim_func",
            f"def {self.name}({', '.join(f'p{name}: T.handle' for name, _, _ in arguments)}):",
            # op_pattern 8 is "opaque": nothing is to be fused into it
            '    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8, '
            f'"{ATTRIBUTE}": "{self.function}"}})',
            *(f"    {s} = T.int64()" for s in symbols),
        ]
        for name, operand, dtype in arguments:
            shape = ", ".join(map(int64, operand.shape))
            lines.append(f'    {name} = T.match_buffer(p{name}, ({shape},), "{dtype}")')
        given: list[str] = ["A", "B", "C", *(str(int(o.transposed)) for o in (p.a, p.b))]
        given += map(int64, (p.m, p.n, p.k, p.a.leading, p.b.leading, p.c.leading))
        for dim in _batch(p) or []:
            given += map(int64, dim)
        # checked, unlike call_extern: it can fail, and says why
        lines.append(f'    T.evaluate(T.call_cpacked("{self.function}", {", ".join(given)}))')
        return "\n".join(lines) + "\n"


def _batch(product: Product) -> list[tuple[Size, Size, Size, Size]] | None:
    """Each dimension of the batch: its size, and how far apart the matrices of A, B and C are.

    Where heads share a matrix, the heads that do are a dimension of their own. None where A's are other ones than B's.
    """
    found: list[tuple[Size, Size, Size, Size]] = []
    operands = (product.a, product.b, product.c)
    for i, size in enumerate(product.batch):
        places = [o.batch[i] for o in operands]
        shared = {place[1] for place in places if place is not None} - {1}
        if len(shared) > 1 or (shared and not isinstance(size, int)):
            return None
        apart = [0 if place is None else o.stride((place[0],)) for o, place in zip(operands, places, strict=True)]
        if not shared or not isinstance(size, int):
            found.append((size, *_three(apart)))
            continue
        (many,) = shared
        alone = [place is None or place[1] != 1 for place in places]
        outer = [s if one else times([s, many]) for s, one in zip(apart, alone, strict=True)]
        found.append((size // many, *_three(outer)))
        found.append((many, *_three([0 if one else s for s, one in zip(apart, alone, strict=True)])))
    return found


def _three(values: list[Size]) -> tuple[Size, Size, Size]:
    a, b, c = values
    return a, b, c
