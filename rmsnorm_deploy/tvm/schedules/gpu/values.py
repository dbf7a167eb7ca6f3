"""What happens to one value on a GPU, in the type of the arithmetic and nothing wider."""

from __future__ import annotations

import struct

from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.values import Values


class GpuValues(Values):
    """Conversions and arithmetic in the languages of GPUs.

    Attributes:
        native_bfloat16: whether the language rounds to bfloat16 itself; then ``brief[0]`` is a variable of that type.
    """

    def __init__(self, norm: Norm, native_bfloat16: bool) -> None:
        super().__init__(norm)
        self.native_bfloat16 = native_bfloat16

    def number(self, value: float) -> str:
        """See the base. TVM writes seven digits of it into OpenCL, Metal and WGSL: else go the bits."""
        dtype, bits = ("f", "I") if self.c == "float32" else ("d", "Q")
        exact = struct.unpack(dtype, struct.pack(dtype, value))[0]
        if struct.pack(dtype, float(f"{exact:.6e}")) == struct.pack(dtype, exact):
            return f"T.{self.c}({exact!r})"
        integer = struct.unpack(bits, struct.pack(dtype, exact))[0]
        return f'T.reinterpret("{self.c}", T.uint{32 if bits == "I" else 64}({integer:#x}))'

    def rounded(self, name: str) -> list[str]:
        """See the base; by way of a variable where the language rounds to bfloat16 itself."""
        if self.norm.rounding == "bfloat16" and self.native_bfloat16:
            return [f'brief[0] = T.cast({name}, "bfloat16")', f'{name} = T.cast(brief[0], "{self.c}")']
        return super().rounded(name)

    def to_bfloat16(self, value: str) -> str:
        """See the base; nothing where the language rounds itself."""
        return value if self.native_bfloat16 else super().to_bfloat16(value)

    def unless_nan(self, value: str, rounded: str) -> str:
        """See the base. The bits are asked: some languages have no isnan, others may assume that there are no NaN."""
        nan = f"T.bitwise_and(T.reinterpret('uint32', {value}), T.uint32(0x7FFFFFFF)) > T.uint32(0x7F800000)"
        return f'T.reinterpret("float32", T.if_then_else({nan}, T.uint32(0x7FC00000), {rounded}))'

    def root(self, total: str, count: str, rms: str) -> list[str]:
        """See the base. Where the root is compared, a language may take a NaN for any number: its bits are asked."""
        lines = super().root(total, count, rms)
        if self.c != "float32" or not any("T.if_then_else" in line for line in lines):
            return lines
        bits = f"T.reinterpret('uint32', {rms})"
        return [*lines, f"{rms} = {self.unless_nan(total, bits)}"]

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
