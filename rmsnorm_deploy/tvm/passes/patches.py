"""Convolutions on GPUs as products of matrices: what each place of the result needs is laid out as a column."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, te, tirx

from rmsnorm_deploy.tvm.passes.convolutions import is_convolution
from rmsnorm_deploy.tvm.passes.seen import SIXTEEN_BITS, Seen, dtype_of, rewritten
from rmsnorm_deploy.tvm.passes.views import sizes_of

MOST_COPIES = 4
"""How often a value is laid out at the most, on average: more memory than that is not worth it."""


def convolutions_as_products(module: Any) -> Any:
    """``module`` with products in place of convolutions in one group that read a value few times."""
    return _Replacing(module).run()


@relax.expr_functor.mutator
class _Replacing(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.module = module
        self.seen = Seen({}, {})

    def run(self) -> Any:
        return rewritten(self)

    def visit_call_(self, call: Any) -> Any:
        weight = _weight(call)
        if weight is None:
            return super().visit_call_(call)
        stored = [self.seen.widened(v) for v in call.args]
        alike = dtype_of(stored[0]) == dtype_of(stored[1])
        x, w = (self.visit_expr(v) for v in (stored if alike else call.args))
        result = sizes_of(call)
        assert result is not None
        images, channels, *places = result
        terms, every = math.prod(weight[1:]), math.prod(places[1:], start=places[0])
        emit = self.builder_.emit
        laid = x if _one_place(call, weight) else self.builder_.call_te(_patches, x, weight, places, call.attrs)
        laid = emit(relax.op.reshape(laid, (images, terms, every)))
        dtype = dtype_of(call)
        y = emit(
            relax.op.matmul(
                emit(relax.op.reshape(w, (channels, terms))),
                laid,
                out_dtype="float32" if dtype in SIXTEEN_BITS else dtype,
            )
        )
        y = emit(relax.op.astype(y, dtype)) if dtype in SIXTEEN_BITS else y
        return relax.op.reshape(y, result)


def _weight(call: Any) -> list[int] | None:
    """The sizes of the weight of a convolution that is to be a product; None for everything else."""
    if not is_convolution(call):
        return None
    x, w = (sizes_of(v) for v in call.args)
    if x is None or w is None or sizes_of(call) is None or not all(isinstance(n, tirx.IntImm) for n in w):
        return None
    if int(call.attrs.groups) != 1 or "float" not in dtype_of(call) or dtype_of(call.args[0]) != dtype_of(call.args[1]):
        return None
    sizes = [int(n) for n in w]
    reads, steps = math.prod(sizes[2:]), math.prod(int(n) for n in call.attrs.strides)
    if reads > MOST_COPIES * steps or not all(sizes) or min(map(int, call.attrs.padding)) < 0:
        return None
    return sizes


def _one_place(call: Any, weight: list[int]) -> bool:
    """Whether each place of the result needs one place only, the same one."""
    numbers = [*weight[2:], *map(int, call.attrs.strides), *(int(n) + 1 for n in call.attrs.padding)]
    return all(n == 1 for n in numbers)


def _patches(x: Any, weight: list[int], places: list[Any], attributes: Any) -> Any:
    """For each place of the result the values that it needs: channels, then those of the kernel, in a row."""
    _, channels, *kernel = weight
    terms = channels * math.prod(kernel)
    strides, dilations = ([int(n) for n in values] for values in (attributes.strides, attributes.dilation))
    padding = [int(n) for n in attributes.padding][: len(kernel)]

    def value(image: Any, term: Any, *place: Any) -> Any:
        inside: list[Any] = []
        at: list[Any] = []
        rest = term
        for i in reversed(range(len(kernel))):
            position = place[i] * strides[i] + rest % kernel[i] * dilations[i] - padding[i]
            rest = rest // kernel[i]
            at.insert(0, position)
            if any(int(n) for n in attributes.padding):
                inside += [position >= 0, position < x.shape[2 + i]]
        read = x(image, rest, *at)
        return tirx.if_then_else(tirx.all(*inside), read, tirx.const(0, x.dtype)) if inside else read

    return te.compute((x.shape[0], terms, *places), value, name="patches")
