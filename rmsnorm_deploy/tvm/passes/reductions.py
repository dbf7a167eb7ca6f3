"""Softmax and other reductions become kernels of ours on CPUs; what these do not do is left to TVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import GenericConst

from rmsnorm_deploy.tvm.passes.seen import Seen, Spec, dtype_of, replaced
from rmsnorm_deploy.tvm.passes.views import Names, is_call, same, sizes_of
from rmsnorm_deploy.tvm.schedules.cpu.choose import CpuSchedules
from rmsnorm_deploy.tvm.schedules.reductions.centred import Centred
from rmsnorm_deploy.tvm.schedules.reductions.folds import Fold
from rmsnorm_deploy.tvm.schedules.reductions.softmax import Softmax

Found = tuple[Spec, list[Any]]


def lower_reductions(target: Any) -> Callable[[Any], Any]:
    """The pass that makes kernels of reductions for ``target``, a CPU."""
    width = CpuSchedules.of(target).lanes
    return lambda module: replaced(module, _described, width)


def _described(call: Any, seen: Seen) -> Found | None:
    for describe in (_softmax, _fold, _centred):
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


_FOLDS = {name: name for name in ("sum", "mean", "max", "min", "argmax", "argmin")}


def _fold(call: Any, seen: Seen) -> Found | None:
    found = seen.narrowed(call, tuple(_FOLDS))
    if found is None:
        return None
    inner, result = found
    kind = next(name for name in _FOLDS if is_call(inner, name))
    x, sizes, of_y = inner.args[0], sizes_of(inner.args[0]), sizes_of(call)
    if sizes is None or of_y is None or not sizes or dtype_of(x) not in READ:
        return None
    if result not in (("int64", "int32") if kind.startswith("arg") else ("float32", "float16")):
        return None
    if kind in ("sum", "mean") and dtype_of(inner) != "float32":  # TVM's own sums in 16 bits
        return None
    axis = inner.attrs.axis
    axis = range(len(sizes)) if axis is None else [axis] if isinstance(axis, int) or hasattr(axis, "value") else axis
    axes = sorted({int(a) % len(sizes) for a in axis})
    if not axes or axes != list(range(axes[0], axes[-1] + 1)):
        return None
    squared = seen.made(x)
    squares = (
        kind in ("sum", "mean")
        and dtype_of(x) == "float32"
        and (is_call(squared, "square") or (is_call(squared, "multiply") and squared.args[0].same_as(squared.args[1])))
    )
    x = seen.widened(squared.args[0] if squares else x)
    names = Names()
    shape = names.sizes(sizes)
    fold = Fold(kind, shape, axes[0], axes[-1] + 1, names.sizes(of_y), dtype_of(x), result, squares)
    return fold, [x]


def _centred(call: Any, seen: Seen) -> Found | None:
    found = seen.narrowed(call, ("nn.layer_norm", "nn.group_norm"))
    if found is None:
        return None
    inner, result = found
    x, *given = inner.args
    a, sizes = inner.attrs, sizes_of(x)
    if sizes is None or result not in ("float32", "float16") or dtype_of(inner) != "float32":
        return None
    rank = len(sizes)
    axes = sorted(int(i) % rank for i in a.axes)
    groups = int(a.num_groups) if is_call(inner, "nn.group_norm") else None
    if groups is None:
        axis = axes[0]
        as_wanted = axes == list(range(axis, rank)) and all(_has(p, sizes[axis:]) for p in given)
    else:
        axis = 1
        channels = int(a.channel_axis) % rank == 1 and isinstance(sizes[1], tirx.IntImm)
        as_wanted = channels and axes == list(range(2, rank)) and all(_has(p, sizes[1:2]) for p in given)
    if not as_wanted:
        return None
    scale, shift = bool(a.scale), bool(a.center)
    parameters = [p for p, wanted in zip(given, (scale, shift), strict=True) if wanted]
    shape = Names().sizes(sizes)
    x = seen.widened(x)
    return Centred(shape, axis, groups, dtype_of(x), result, "float32", float(a.epsilon), scale, shift), [
        x,
        *parameters,
    ]
