"""TVMScript for a norm's arguments and for what happens to one value, in no wider arithmetic than the stash type."""

from __future__ import annotations

import struct

from rmsnorm_deploy.tvm.norm import Norm


def indented(lines: list[str], by: int = 1) -> list[str]:
    """``lines``, further in."""
    return ["    " * by + line for line in lines]


def tree(terms: list[str]) -> str:
    """Their sum, in pairs: fewer roundings one after the other."""
    while len(terms) > 1:
        odd = terms[-1:] if len(terms) % 2 else []
        terms = [f"({a} + {b})" for a, b in zip(terms[:-1:2], terms[1::2], strict=True)] + odd
    return terms[0]


class Values:
    """Conversions and arithmetic of one norm.

    Attributes:
        norm: the norm.
        c: type of the arithmetic.
        native_bfloat16: whether the language rounds to bfloat16 itself; then ``brief[0]`` is a variable of that type.
    """

    def __init__(self, norm: Norm, native_bfloat16: bool) -> None:
        self.norm = norm
        self.c = norm.stash
        self.native_bfloat16 = native_bfloat16

    def number(self, value: float) -> str:
        """A constant of the arithmetic. TVM writes seven digits of it into OpenCL, Metal and WGSL: else go the bits."""
        dtype, bits = ("f", "I") if self.c == "float32" else ("d", "Q")
        exact = struct.unpack(dtype, struct.pack(dtype, value))[0]
        if struct.pack(dtype, float(f"{exact:.6e}")) == struct.pack(dtype, exact):
            return f"T.{self.c}({exact!r})"
        integer = struct.unpack(bits, struct.pack(dtype, exact))[0]
        return f'T.reinterpret("{self.c}", T.uint{32 if bits == "I" else 64}({integer:#x}))'

    def wide(self, value: str, dtype: str) -> str:
        """``value``, of type ``dtype``, for the arithmetic."""
        return value if dtype == self.c else f'T.cast({value}, "{self.c}")'

    def narrow(self, value: str, dtype: str) -> str:
        """``value``, a variable of the arithmetic, rounded to ``dtype``."""
        if dtype == self.c:
            return value
        if dtype == "bfloat16" and not self.native_bfloat16:
            value = self._to_bfloat16(value)
        return f'T.cast({value}, "{dtype}")'

    def rounded(self, name: str) -> list[str]:
        """Round a variable to the norm's rounding type and back."""
        rounding = self.norm.rounding
        if rounding == self.c:
            return []
        if rounding == "bfloat16" and self.native_bfloat16:
            # by way of a variable: TVM drops a cast to bfloat16 that is followed by one back
            return [f'brief[0] = T.cast({name}, "bfloat16")', f'{name} = T.cast(brief[0], "{self.c}")']
        if rounding == "bfloat16":
            return [f"{name} = {self.wide(self._to_bfloat16(name), 'float32')}"]
        return [f'{name} = T.cast({self.narrow(name, rounding)}, "{self.c}")']

    def _to_bfloat16(self, value: str) -> str:
        """``value`` as a float32 that bfloat16 can hold, rounded to nearest even; every NaN stays one.

        Whether it is a NaN is asked of the bits: some languages have no isnan, others may assume that there are none.
        """
        value = value if self.c == "float32" else f'T.cast({value}, "float32")'
        bits = f'T.reinterpret("uint32", {value})'
        odd = f"T.bitwise_and(T.shift_right({bits}, T.uint32(16)), T.uint32(1))"
        rounded = f"T.bitwise_and({bits} + T.uint32(0x7FFF) + {odd}, T.uint32(0xFFFF0000))"
        nan = f"T.bitwise_and({bits}, T.uint32(0x7FFFFFFF)) > T.uint32(0x7F800000)"
        return f'T.reinterpret("float32", T.if_then_else({nan}, T.uint32(0x7FC00000), {rounded}))'

    def rms(self, total: str, count: str, rms: str) -> list[str]:
        """The RMS, from the sum of squares. A NaN survives the floor."""
        p = self.norm.parameters
        lines = [f"{rms} = T.sqrt({total} / {count} + {self.number(p.epsilon)})"]
        if p.epsilon_outside:
            lines.append(f"{rms} = {rms} + {self.number(p.epsilon_outside)}")
        if p.rms_floor:
            floor = self.number(p.rms_floor)
            lines.append(f"{rms} = T.if_then_else({rms} < {floor}, {floor}, {rms})")
        return lines

    @property
    def divides(self) -> bool:
        """Whether values are divided by the RMS; else a rounded reciprocal is good enough for their type."""
        return self.c == self.norm.dtype

    def finish(self, value: str, scale: str, bias: str, y: str) -> list[str]:
        """From one value of X (or of the sum) to one value of Y, in the scratch variables ``t`` and ``u``.

        ``factor[0]`` is the RMS where :attr:`divides`, else its reciprocal.
        """
        n = self.norm
        parameter = [] if n.scale_dtype == n.rounding else self.rounded("u[0]")
        lines = [
            f"t[0] = {self.wide(value, n.dtype)} {'/' if self.divides else '*'} factor[0]",
            *self.rounded("t[0]"),
            f"u[0] = {self.wide(scale, n.scale_dtype)}",
            *parameter,
            "t[0] = t[0] * u[0]",
        ]
        if n.biased:
            lines += [*self.rounded("t[0]"), f"u[0] = {self.wide(bias, n.scale_dtype)}", *parameter]
            lines += ["t[0] = t[0] + u[0]"]
        lines += [] if n.rounding == n.dtype else self.rounded("t[0]")
        return [*lines, f"{y} = {self.narrow('t[0]', n.dtype)}"]

    def arguments(self, shape: str, vector: str) -> list[tuple[str, str, str]]:
        """Name, shape and type of each: X, residual, scale, bias, Y, sum. A scale and bias have ``vector``'s shape."""
        n = self.norm
        given = [("X", shape, n.dtype)]
        given += [("R", shape, n.dtype)] if n.adds else []
        given += [("W", shape if n.full_scale else vector, n.scale_dtype)]
        given += [("B", shape if n.full_bias else vector, n.scale_dtype)] if n.biased else []
        given += [("Y", shape, n.dtype)]
        return given + ([("S", shape, n.dtype)] if n.adds else [])

    def head(self, symbols: list[str], arguments: list[tuple[str, str, str]]) -> list[str]:
        """Everything before the loops."""
        handles = ", ".join(f"p{name}: T.handle" for name, _, _ in arguments)
        return [
            "@T.prim_func(s_tir=True)",
            f"def {self.norm.name}({handles}):",
            # op_pattern 8 is "opaque": nothing is to be fused into it
            '    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})',
            *(f"    {s} = T.int64()" for s in symbols),
            *(f'    {name} = T.match_buffer(p{name}, {shape}, "{dtype}")' for name, shape, dtype in arguments),
        ]
