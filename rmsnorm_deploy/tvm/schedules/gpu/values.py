"""What happens to one value on a GPU, in the type of the arithmetic and nothing wider."""

from __future__ import annotations

import struct

from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.values import Values
from rmsnorm_deploy.tvm.targets.gpu import Function, Gpu


def call(function: Function, *arguments: str) -> str:
    """A call of ``function``, an expression; TVM puts its definition in front of the kernel."""
    given = ", ".join([f'"{function.name}"', *arguments])
    return f'T.cuda.func_call({given}, source_code={function.source!r}, return_type="{function.returns}")'


def fused(a: str, b: str, c: str) -> str:
    """The float32 a * b + c, rounded once. ``T.fma`` has no meaning to TVM's code generator for CUDA."""
    return f'T.call_pure_extern("float32", "fmaf", {a}, {b}, {c})'


class GpuValues(Values):
    """Conversions and arithmetic in the languages of GPUs.

    Attributes:
        gpu: what the GPU has.
        native_bfloat16: whether the language rounds to bfloat16 itself; then ``brief[0]`` is a variable of that type.
        rooted: whether the reciprocal of the RMS is made of an estimate. It is as exact as the root, so that values may
            be multiplied by it; and it is a normal number, as nothing but the root of a mean is in it.
    """

    def __init__(self, norm: Norm, gpu: Gpu) -> None:
        super().__init__(norm)
        self.gpu, self.native_bfloat16 = gpu, gpu.rounds_bfloat16
        self.rooted = gpu.estimates_roots and self.c == "float32" and len(super().root("", "", "")) == 1

    @staticmethod
    def local(name: str, count: int, dtype: str) -> str:
        """A variable in the registers of a thread."""
        return f'{name} = T.sblock_alloc_buffer(({count},), "{dtype}", scope="local")'

    @property
    def plain_sum(self) -> bool:
        """Whether a residual is just added."""
        return self.combined("x", "r") == f"{self.wide('x', self.norm.dtype)} + {self.wide('r', self.norm.dtype)}"

    def added(self, x: str, residual: str) -> list[str]:
        """The sum in the place of ``x``."""
        return [f"t[0] = {self.combined(x, residual)}", f"{x} = {self.narrow('t[0]', self.norm.dtype)}"]

    def square(self, x: str) -> str:
        """The square of a value of X, in the type of the arithmetic."""
        return f"{self.wide(x, self.norm.dtype)} * {self.wide(x, self.norm.dtype)}"

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
        """Whether values are divided by the RMS; else its rounded reciprocal is good enough for their type."""
        return self.c == self.norm.dtype and not self.rooted

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
