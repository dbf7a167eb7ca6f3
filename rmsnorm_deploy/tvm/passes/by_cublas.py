"""Products of matrices become calls of cuBLAS; equal products share a kernel."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from rmsnorm_deploy.tvm.passes.products import described
from rmsnorm_deploy.tvm.passes.seen import Seen, dtype_of, replaced
from rmsnorm_deploy.tvm.passes.views import is_call
from rmsnorm_deploy.tvm.schedules.products.cublas import ATTRIBUTE, TYPES, CublasProduct


def lower_products_by_cublas(module: Any) -> Any:
    """``module`` with every product that cuBLAS has computed by it, in the types in which the factors are stored.

    Products of whole numbers stay as they are.
    """
    return replaced(module, _described, 0)


def functions_of(module: Any) -> list[str]:
    """The C functions that the kernels of ``module`` call."""
    kernels = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
    return sorted(str(f.attrs[ATTRIBUTE]) for f in kernels if f.attrs is not None and ATTRIBUTE in f.attrs)


def _described(call: Any, seen: Seen) -> tuple[CublasProduct, list[Any]] | None:
    if is_call(call, "matmul"):
        rounded = seen.rounded.get(call)
        left = rounded is not None and _product(call, rounded, seen) is not None
        return None if left else _product(call, dtype_of(call), seen)
    # a sum in float32 that nobody else reads is rounded where it is made
    if seen.rounds(call):
        made = seen.made(call.args[0])
        return _product(made, dtype_of(call), seen) if is_call(made, "matmul") else None
    return None


def _product(call: Any, result: str, seen: Seen) -> tuple[CublasProduct, list[Any]] | None:
    """``call`` with its result in the type ``result``."""
    stored = [seen.widened(factor) for factor in call.args]
    for factors in (stored, list(call.args)):
        types = {dtype_of(factor) for factor in factors}
        if len(types) > 1:
            continue
        found = described(call, seen.bindings, factors, tuple(TYPES))
        if found is None:
            continue
        product, a, b = found
        spec = CublasProduct(product, types.pop(), result)
        if spec.possible():
            return spec, [a, b]
    return None
