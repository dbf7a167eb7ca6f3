"""How a thread holds and treats one vector of a row: value by value, or two 16-bit values at a time in a word."""

from __future__ import annotations

from collections.abc import Callable

from rmsnorm_deploy.op.dtypes import float_type
from rmsnorm_deploy.tvm.schedules.gpu.values import GpuValues, call
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.values import indented
from rmsnorm_deploy.tvm.targets.gpu import Gpu, Pairs

VIEW = "_vectors"
"""What the name of such a view ends with."""
Condition = Callable[[str], str]
"""Whether the value with a number, within its vector, is one of those that are measured."""


def _copied(lanes: int, dtype: str, to: str, source: str) -> list[str]:
    """``lanes`` values from ``source`` to ``to``, which end in an open index, in accesses of at most 16 bytes."""
    width = min(lanes, 16 // (4 if dtype == "uint32" else float_type(dtype).itemsize))
    if width == lanes:
        return [f"for v in T.vectorized({lanes}):", f"    {to} + v] = {source} + v]"]
    return [
        f"for g in T.unroll({lanes // width}):",
        f"    for v in T.vectorized({width}):",
        f"        {to} + g * {width} + v] = {source} + g * {width} + v]",
    ]


def vectors(values: GpuValues, lanes: int, gpu: Gpu, suffix: str = "") -> Vectors:
    """How the threads of ``gpu`` treat vectors of ``lanes`` values; ``suffix`` ends the names of their registers."""
    pairs = dict(gpu.pairs).get(values.norm.dtype)
    if pairs is not None and _paired(values.norm, lanes):
        return InPairs(values, lanes, suffix, pairs)
    return Vectors(values, lanes, suffix)


def _paired(norm: Norm, lanes: int) -> bool:
    return (
        lanes % 2 == 0
        and norm.stash == "float32"
        and norm.scale_dtype in ("float32", norm.dtype)
        and norm.rounding in ("float32", norm.dtype)
    )


class Vectors:
    """Value by value.

    Registers have names: ``x``, ``r``, ``w``, ``b`` and ``y`` for what they hold, with a suffix. Each has a number of
    slots for one vector; ``slot`` is the number of one, an expression.

    Attributes:
        lanes: values of a vector.
        apart: whether tensors are read by way of :meth:`views`.
        scratch: how many values the variables ``t`` and ``u`` hold.
    """

    scratch = 1

    def __init__(self, values: GpuValues, lanes: int, suffix: str) -> None:
        self.values, self.norm, self.lanes, self.suffix = values, values.norm, lanes, suffix
        self.apart = values.norm.size is None and lanes > 1

    @property
    def count(self) -> str:
        """The vectors of a row, an expression."""
        size = self.norm.size
        if size is not None:
            return str(size // self.lanes)
        return "h" if self.lanes == 1 else f"T.truncdiv(h, {self.lanes})"

    def views(self) -> list[str]:
        """Declarations of the views of the arguments that this needs: with a dimension for vectors, and one within.

        So TVM knows that a vector of a row of unknown length begins at a multiple of its length.
        """
        return [self._view(*argument) for argument in self.values.arguments()] if self.apart else []

    def held(self, name: str, slots: int, dtype: str) -> str:
        """The registers ``name``."""
        return self.values.local(f"{name}{self.suffix}", slots * self.lanes, dtype)

    def read(self, name: str, slot: str, tensor: str, row: str, vector: str, dtype: str) -> list[str]:
        """A vector of a tensor; ``row`` is "" where it is one row."""
        to = f"{name}{self.suffix}[{slot} * {self.lanes}"
        return _copied(self.lanes, dtype, to, self._place(tensor, row, vector, self.lanes))

    def write(self, tensor: str, row: str, vector: str, name: str, slot: str = "0") -> list[str]:
        """The inverse."""
        source = f"{name}{self.suffix}[{slot} * {self.lanes}"
        return _copied(self.lanes, self.norm.dtype, self._place(tensor, row, vector, self.lanes), source)

    def squares(self, slot: str, measured: Condition | None) -> list[str]:
        """The squares of ``x`` into ``t[0]``, those that are ``measured``."""
        term = self.values.square(f"x{self.suffix}[{slot} * {self.lanes} + v]")
        if measured is not None:
            term = f"T.if_then_else({measured('v')}, {term}, {self.values.number(0.0)})"
        zero = f"t[0] = {self.values.number(0.0)}"
        return [zero, f"for v in T.unroll({self.lanes}):", f"    t[0] = t[0] + {term}"]

    def add(self, slot: str, residual: str) -> list[str]:
        """The sum of ``x`` and ``r`` into ``x``; ``residual`` is the slot of ``r``."""
        x, r = (f"{n}{self.suffix}[{s} * {self.lanes} + v]" for n, s in (("x", slot), ("r", residual)))
        return [f"for v in T.unroll({self.lanes}):", *indented(self.values.added(x, r))]

    def finish(self, slot: str, scale: str, bias: str = "0") -> list[str]:
        """``y``, from ``x``, ``w`` and ``b`` in these slots."""
        x, w, b = (f"{n}{self.suffix}[{s} * {self.lanes} + v]" for n, s in (("x", slot), ("w", scale), ("b", bias)))
        return [f"for v in T.unroll({self.lanes}):", *indented(self.values.finish(x, w, b, f"y{self.suffix}[v]"))]

    def _place(self, tensor: str, row: str, vector: str, width: int) -> str:
        """The beginning of a vector of ``width`` elements, with an open index."""
        front = f"{row}, " if row else ""
        return f"{tensor}{VIEW}[{front}{vector}, 0" if self.apart else f"{tensor}[{front}{vector} * {width}"

    def _view(self, name: str, shape: str, dtype: str) -> str:
        outer = f"{self.values.n}, " if shape == self.values.shape else ""
        kind, width = self._element(dtype)
        return f'{name}{VIEW} = T.decl_buffer(({outer}{self.count}, {width}), "{kind}", data={name}.data)'

    def _element(self, dtype: str) -> tuple[str, int]:
        """What a view of a tensor of this type is made of, and how many of it are a vector."""
        return dtype, self.lanes


class InPairs(Vectors):
    """Two values at a time: all of the norm but the square and the first product is one instruction for both."""

    scratch = 2

    def __init__(self, values: GpuValues, lanes: int, suffix: str, pairs: Pairs) -> None:
        super().__init__(values, lanes, suffix)
        self.pairs, self.words, self.apart = pairs, lanes // 2, True

    def held(self, name: str, slots: int, dtype: str) -> str:
        """See the base."""
        if dtype != self.norm.dtype:
            return super().held(name, slots, dtype)
        return self.values.local(f"{name}{self.suffix}", slots * self.words, "uint32")

    def read(self, name: str, slot: str, tensor: str, row: str, vector: str, dtype: str) -> list[str]:
        """See the base."""
        if dtype != self.norm.dtype:
            return super().read(name, slot, tensor, row, vector, dtype)
        return _copied(self.words, "uint32", self._words(name, slot, ""), self._place(tensor, row, vector, self.words))

    def write(self, tensor: str, row: str, vector: str, name: str, slot: str = "0") -> list[str]:
        """See the base."""
        return _copied(self.words, "uint32", self._place(tensor, row, vector, self.words), self._words(name, slot, ""))

    def squares(self, slot: str, measured: Condition | None) -> list[str]:
        """See the base."""
        zero = self.values.number(0.0)
        x = self._words("x", slot)
        lines = []
        for i, half in enumerate((self.pairs.low, self.pairs.high)):
            lines.append(f"u[{i}] = {call(half, x)}")
        for i in (0, 1):
            term = f"u[{i}] * u[{i}]"
            if measured is not None:
                term = f"T.if_then_else({measured(f'v * 2 + {i}')}, {term}, {zero})"
            lines.append(f"t[0] = t[0] + {term}")
        return [f"t[0] = {zero}", f"for v in T.unroll({self.words}):", *indented(lines)]

    def add(self, slot: str, residual: str) -> list[str]:
        """See the base. A sum in float32 that is rounded is the rounded sum: 24 bits are twice as many and two more."""
        x, r = self._words("x", slot), self._words("r", residual)
        each = f"for v in T.unroll({self.words}):"
        if self.values.plain_sum:
            return [each, f"    {x} = {call(self.pairs.total, x, r)}"]
        lines = []
        for i, half in enumerate((self.pairs.low, self.pairs.high)):
            lines += [f"u[{i}] = {call(half, r)}", f"t[{i}] = {call(half, x)}"]
            lines += [f"t[{i}] = {self.values.combined(f't[{i}]', f'u[{i}]')}"]
        return [each, *indented([*lines, f"{x} = {call(self.pairs.packed, 't[0]', 't[1]')}"])]

    def finish(self, slot: str, scale: str, bias: str = "0") -> list[str]:
        """See the base. Products of two 16-bit values are exact in float32, so that one rounding is as good there."""
        n, x, y = self.norm, self._words("x", slot), f"y{self.suffix}[v]"
        halves = (self.pairs.low, self.pairs.high)
        lines = [f"t[{i}] = {call(half, x)} * factor[0]" for i, half in enumerate(halves)]
        packed = call(self.pairs.packed, "t[0]", "t[1]")
        if n.rounding == n.dtype:
            lines += [f"{y} = {call(self.pairs.product, packed, self._rounded('w', scale))}"]
            lines += [f"{y} = {call(self.pairs.total, y, self._rounded('b', bias))}"] if n.biased else []
        else:
            for i in (0, 1):
                lines.append(f"t[{i}] = t[{i}] * {self._single('w', scale, i)}")
                lines += [f"t[{i}] = t[{i}] + {self._single('b', bias, i)}"] if n.biased else []
            lines.append(f"{y} = {packed}")
        return [f"for v in T.unroll({self.words}):", *indented(lines)]

    def _rounded(self, name: str, slot: str) -> str:
        """A pair of scale or bias, rounded to the type of X."""
        if self.norm.scale_dtype == self.norm.dtype:
            return self._words(name, slot)
        return call(self.pairs.packed, *(self._single(name, slot, i) for i in (0, 1)))

    def _single(self, name: str, slot: str, which: int) -> str:
        """One value of a pair of scale or bias."""
        if self.norm.scale_dtype == self.norm.dtype:
            return call((self.pairs.low, self.pairs.high)[which], self._words(name, slot))
        return f"{name}{self.suffix}[{slot} * {self.lanes} + v * 2 + {which}]"

    def _words(self, name: str, slot: str, word: str = " + v]") -> str:
        return f"{name}{self.suffix}[{slot} * {self.words}{word}"

    def _element(self, dtype: str) -> tuple[str, int]:
        return ("uint32", self.words) if dtype == self.norm.dtype else super()._element(dtype)
