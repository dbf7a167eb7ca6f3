"""What can be proven about a model's sizes: integers, or expressions of its inputs' dimensions."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import tvm.ir
import tvm_ffi
from tvm import sym, tirx

_MOST = 2**40
"""Larger than any dimension: bounds keep TVM's proofs free of overflow."""


class Dimensions:
    """Arithmetic on sizes, with TVM's prover behind it.

    A size is a Python ``int`` (a truth value: ``bool``) where it is known, else a TVM expression. No variable is
    below 0. Where only an empty tensor stands in the way of a plain result, as in min(1, length), the
    tensor is taken not to be empty, and the variable's name goes into :attr:`positive`: the caller has to check.

    Attributes:
        positive: names of the variables that must not be 0.
    """

    def __init__(self) -> None:
        self.positive: set[str] = set()
        self._analyzers = [sym.Analyzer(), sym.Analyzer()]
        self._bound: dict[Any, None] = {}
        self._fresh_ones: set[Any] = set()

    def bind(self, dims: Iterable[Any]) -> None:
        """Tell the prover of every variable in ``dims``."""
        for dim in dims:
            for variable in variables(dim):
                if variable not in self._bound:
                    self._bound[variable] = None
                    for least, analyzer in enumerate(self._analyzers):
                        analyzer.bind(variable, _range(variable, least))

    def fresh(self, name: str) -> Any:
        """A new variable: a size that only running the model can tell."""
        variable = tirx.Var(f"{name}_{len(self._fresh_ones) + 1}", "int64")
        self._bound[variable] = None
        self._fresh_ones.add(variable)
        for analyzer in self._analyzers:
            analyzer.bind(variable, _range(variable, 0))
        return variable

    def simple(self, value: Any) -> Any:
        """``value`` simplified; a Python number where it is one."""
        if isinstance(value, (bool, int)):
            return value
        value = expression(value)
        plain, assuming = (plain_number(a.simplify(value)) for a in self._analyzers)
        if isinstance(assuming, (bool, int)) and not isinstance(plain, (bool, int)):
            return self._assume(value, assuming)
        if not isinstance(plain, (bool, int)) and _complexity(assuming) < _complexity(plain):
            return self._assume(value, assuming)
        return plain

    def proven(self, condition: Any) -> bool | None:
        """Whether ``condition`` holds: always, never, or None where it depends."""
        result = self.simple(condition)
        return result if isinstance(result, bool) else None

    def equal(self, a: Any, b: Any) -> bool | None:
        """Whether two sizes are equal. Nothing is assumed for them to differ: then they may as well be unknown."""
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        if tvm_ffi.structural_equal(expression(a), expression(b)):
            return True
        condition = tirx.EQ(expression(a), expression(b))
        if plain_number(self._analyzers[1].simplify(condition)) is True:
            return self.proven(condition)
        plain = plain_number(self._analyzers[0].simplify(condition))
        return plain if isinstance(plain, bool) else None

    def least(self, a: Any, b: Any) -> Any:
        """The smaller one."""
        return self._one_of(a, b, tirx.LE, tirx.min)

    def most(self, a: Any, b: Any) -> Any:
        """The larger one."""
        return self._one_of(a, b, tirx.GE, tirx.max)

    def product(self, dims: Sequence[Any]) -> Any:
        """The product, 1 for none."""
        return functools.reduce(lambda a, b: self.simple(a * b), dims, 1)

    def quotient(self, dims: Sequence[Any], divisors: Sequence[Any]) -> Any:
        """product(dims) // product(divisors), where common factors cancel without any proof."""
        left, right = [f for d in dims for f in _factors(d)], []
        for divisor in (f for d in divisors for f in _factors(d)):
            for i, dim in enumerate(left):
                if not isinstance(divisor, int) and self.equal(dim, divisor):
                    del left[i]
                    break
            else:
                right.append(divisor)
        below = self.product(right)
        above = self.product(left)
        if isinstance(below, int) and below == 0:
            return 0
        return above if isinstance(below, int) and below == 1 else self.simple(floordiv(above, below))

    def _one_of(self, a: Any, b: Any, better: Any, either: Any) -> Any:
        a, b = self.simple(a), self.simple(b)
        for x, y in ((a, b), (b, a)):
            if self.proven(better(expression(x), expression(y))):
                return x
        return self.simple(either(expression(a), expression(b)))

    def _assume(self, value: Any, result: Any) -> Any:
        self.positive |= {v.name for v in self._needed(value, result)}
        return result

    def _needed(self, value: Any, result: Any) -> list[Any]:
        """As few variables as make ``result`` of ``value`` when they are not 0.

        Any one of a sum is enough; a cache may be empty, and the tokens, which are inputs before it, are not.
        """
        found = set(variables(value))
        ordered = [v for v in self._bound if v in found and v not in self._fresh_ones]
        already = [v for v in ordered if v.name in self.positive]
        for chosen in (already, *([*already, v] for v in ordered)):
            analyzer = sym.Analyzer()
            for v in found:
                analyzer.bind(v, _range(v, 1 if v in chosen else 0))
            if tvm_ffi.structural_equal(expression(plain_number(analyzer.simplify(value))), expression(result)):
                return chosen
        return ordered


def _range(variable: Any, least: int) -> Any:
    extent = tirx.IntImm(str(variable.ty.dtype), _MOST)
    return tvm.ir.Range.from_min_extent(extent * 0 + least, extent)


def expression(value: Any) -> Any:
    """A size as a TVM expression."""
    if isinstance(value, bool):
        return tirx.const(value, "bool")
    if isinstance(value, int):
        return tirx.IntImm("int64", value)
    return value.asobject() if hasattr(value, "asobject") else value


def plain_number(value: Any) -> Any:
    """A constant TVM expression as a Python number, any other as it is."""
    if isinstance(value, tirx.IntImm):
        return bool(value.value) if str(value.ty.dtype) == "bool" else int(value.value)
    return value


def floordiv(a: Any, b: Any) -> Any:
    """The quotient, rounded down."""
    return a // b if isinstance(a, int) and isinstance(b, int) else tirx.floordiv(expression(a), expression(b))


def is_static(dims: Iterable[Any]) -> bool:
    """Whether every size is a number."""
    return all(isinstance(d, int) for d in dims)


def shape_of(value: Any) -> list[Any] | None:
    """The sizes of a tensor, or None where TVM does not know them."""
    shape = getattr(value.ty, "shape", None)
    values = getattr(shape, "values", None)
    return None if values is None else [plain_number(d) for d in values]


def _factors(value: Any) -> list[Any]:
    if isinstance(value, tirx.Mul):
        return [*_factors(plain_number(value.a)), *_factors(plain_number(value.b))]
    return [value]


def variables(value: Any) -> list[Any]:
    """The variables that a size depends on."""
    return [] if isinstance(value, (bool, int)) else list(tirx.analysis.undefined_vars(expression(value)))


def _complexity(value: Any) -> int:
    return 0 if isinstance(value, (bool, int)) else len(str(value))
