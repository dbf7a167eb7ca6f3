"""Softmax and other reductions become kernels of ours on CPUs; what these do not do is left to TVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import GenericConst

from rmsnorm_deploy.tvm.passes.seen import Seen, Spec, dtype_of, replaced
from rmsnorm_deploy.tvm.passes.views import Names, is_call, same, sizes_of
from rmsnorm_deploy.tvm.schedules.cpu.choose import CpuSchedules
from rmsnorm_deploy.tvm.schedules.reductions.softmax import Softmax

Found = tuple[Spec, list[Any]]


def lower_reductions(target: Any) -> Callable[[Any], Any]:
    """The pass that makes kernels of reductions for ``target``, a CPU."""
    width = CpuSchedules.of(target).lanes
    return lambda module: replaced(module, _described, width)


def _described(call: Any, seen: Seen) -> Found | None:
    for describe in (_softmax,):
        found = describe(call, seen)
        if found is not None:
            return found
    return None


READ = ("float32", "float16", "bfloat16")


def _softmax(call: Any, seen: Seen) -> Found | None:
    found = seen.narrowed(call, ("nn.softmax", "nn.log_softmax"))
    if found is None:
        return None
    inner, result = found
    x = inner.args[0]
    sizes = sizes_of(x)
    if sizes is None or result not in ("float32", "float16") or dtype_of(x) not in READ:
        return None
    axis, log = int(inner.attrs.axis) % len(sizes), is_call(inner, "nn.log_softmax")
    names = Names()
    shape = names.sizes(sizes)
    if axis < len(sizes) - 1:
        x = seen.widened(x)
        return Softmax(shape, axis, log, dtype_of(x), result), [x]
    factor, divides, mask = None, False, None
    added = seen.made(x)
    if is_call(added, "add") and dtype_of(x) == "float32":
        for a, b in (added.args, reversed(added.args)):
            if _is_mask(b, sizes) and _has(a, sizes):
                x, mask = a, seen.widened(b)
                break
    scaled = seen.made(x)
    if (is_call(scaled, "multiply") or is_call(scaled, "divide")) and dtype_of(x) == "float32":
        number = _number(scaled.args[1])
        if number is not None and _has(scaled.args[0], sizes):
            x, factor, divides = scaled.args[0], number, is_call(scaled, "divide")
    x = seen.widened(x)
    operands = [x] if mask is None else [x, mask]
    masked = None if mask is None else names.sizes(sizes_of(mask))
    mask_dtype = "float32" if mask is None else dtype_of(mask)
    return Softmax(shape, axis, log, dtype_of(x), result, factor, divides, masked, mask_dtype), operands


def _has(value: Any, sizes: list[Any]) -> bool:
    own = sizes_of(value)
    return own is not None and len(own) == len(sizes) and all(map(same, own, sizes))


def _is_mask(value: Any, sizes: list[Any]) -> bool:
    """Whether ``value`` is the same for several rows, and not for a whole row."""
    own = sizes_of(value)
    if own is None or not 0 < len(own) <= len(sizes) or not same(own[-1], sizes[-1]):
        return False
    pairs = zip(reversed(own), reversed(sizes), strict=False)
    return all(same(a, b) or (isinstance(a, tirx.IntImm) and int(a) == 1) for a, b in pairs)


def _number(value: Any) -> float | None:
    """A constant of one value."""
    if not isinstance(value, GenericConst):
        return None
    array = value.value.numpy()
    return float(array.reshape(())) if array.size == 1 else None
