"""TVMScript that kernels for every kind of processor have in common: conversions and the root."""

from __future__ import annotations

from rmsnorm_deploy.tvm.schedules.arguments import Arguments
from rmsnorm_deploy.tvm.schedules.norm import Norm


def indented(lines: list[str], by: int = 1) -> list[str]:
    """``lines``, further in."""
    return ["    " * by + line for line in lines]


def tree(terms: list[str]) -> str:
    """Their sum, in pairs: fewer roundings one after the other."""
    while len(terms) > 1:
        odd = terms[-1:] if len(terms) % 2 else []
        terms = [f"({a} + {b})" for a, b in zip(terms[:-1:2], terms[1::2], strict=True)] + odd
    return terms[0]


class Values(Arguments):
    """Conversions and the root of one norm.

    Attributes:
        c: type of the arithmetic.
    """

    def __init__(self, norm: Norm) -> None:
        super().__init__(norm)
        self.c = norm.stash

    def number(self, value: float) -> str:
        """A constant of the arithmetic."""
        raise NotImplementedError

    def wide(self, value: str, dtype: str) -> str:
        """``value``, of type ``dtype``, for the arithmetic."""
        return value if dtype == self.c else f'T.cast({value}, "{self.c}")'

    def narrow(self, value: str, dtype: str) -> str:
        """``value``, a variable of the arithmetic, rounded to ``dtype``."""
        if dtype == self.c:
            return value
        return f'T.cast({self.to_bfloat16(value) if dtype == "bfloat16" else value}, "{dtype}")'

    def rounded(self, name: str) -> list[str]:
        """Round a variable to the norm's rounding type and back."""
        rounding = self.norm.rounding
        if rounding == self.c:
            return []
        if rounding == "bfloat16":  # TVM drops a cast to bfloat16 that is followed by one back
            return [f"{name} = {self.wide(self.to_bfloat16(name), 'float32')}"]
        return [f'{name} = T.cast({self.narrow(name, rounding)}, "{self.c}")']

    def to_bfloat16(self, value: str) -> str:
        """``value`` as a float32 that bfloat16 can hold, rounded to nearest even; every NaN stays one."""
        value = value if self.c == "float32" else f'T.cast({value}, "float32")'
        bits = f'T.reinterpret("uint32", {value})'
        odd = f"T.bitwise_and(T.shift_right({bits}, T.uint32(16)), T.uint32(1))"
        return self.unless_nan(value, f"T.bitwise_and({bits} + T.uint32(0x7FFF) + {odd}, T.uint32(0xFFFF0000))")

    def unless_nan(self, value: str, rounded: str) -> str:
        """The float32 with the bits ``rounded``, or a NaN where the float32 ``value`` is one.

        Rounding would make a zero of a NaN with all bits set.
        """
        raise NotImplementedError

    def combined(self, x: str, residual: str) -> str:
        """What is normalised where there is a residual, from a value of each, before it is rounded to X's type."""
        return f"{self.wide(x, self.norm.dtype)} + {self.wide(residual, self.norm.dtype)}"

    def root(self, total: str, count: str, rms: str) -> list[str]:
        """The RMS, from the sum of squares: the formula of every kernel. A NaN survives the floor."""
        p = self.norm.parameters
        lines = [f"{rms} = T.sqrt({total} / {count} + {self.number(p.epsilon)})"]
        if p.epsilon_outside:
            lines.append(f"{rms} = {rms} + {self.number(p.epsilon_outside)}")
        if p.rms_floor:
            floor = self.number(p.rms_floor)
            lines.append(f"{rms} = T.if_then_else({rms} < {floor}, {floor}, {rms})")
        return lines
