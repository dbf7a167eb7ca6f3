"""A kernel of our own in a module that is being imported, written as TVM's tensor expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rmsnorm_deploy.tvm.sizes.dimensions import expression, shape_of, variables

_OPAQUE = 8


def emit_kernel(
    bb: Any,
    name: str,
    compute: Callable[..., Any],
    tensors: Sequence[Any],
    sizes: Sequence[Any],
    shape: Sequence[Any] = (),
) -> Any:
    """A variable for what ``compute`` makes of ``tensors`` and ``sizes``.

    A kernel must take every size as an argument: the variables of its tensors' shapes are its own, not the model's.

    Args:
        bb: TVM's block builder.
        name: of the kernel.
        compute: a function of tensors and sizes that returns ``te.compute(...)``.
        tensors: Relax values.
        sizes: numbers or expressions.
        shape: of the result, where it has sizes that the tensors do not have.
    """
    used = {v for s in sizes for v in variables(s)}
    shaped = {v for t in tensors for d in shape_of(t) or () for v in variables(d)}
    shaped |= {v for d in shape for v in variables(d)}
    # TVM 0.27's FuseTIR fails on a size that is in no tensor's shape, so that such a kernel stays alone
    attributes = {"op_pattern": _OPAQUE} if used - shaped else {}
    values = [expression(s) for s in sizes]
    return bb.emit(bb.emit_te(compute, *tensors, *values, primfunc_name_hint=name, primfunc_attrs=attributes))
