"""Convolutions become kernels of ours on CPUs; what these do not do is left to TVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from rmsnorm_deploy.tvm.passes.seen import Seen, Spec, dtype_of, replaced
from rmsnorm_deploy.tvm.passes.views import Names, is_call, sizes_of
from rmsnorm_deploy.tvm.schedules.convolutions.by_product import ByProduct
from rmsnorm_deploy.tvm.schedules.convolutions.convolution import Convolution
from rmsnorm_deploy.tvm.schedules.convolutions.direct import MOST_CHANNELS, Direct
from rmsnorm_deploy.tvm.schedules.cpu.choose import CpuSchedules

_LAYOUTS = {"nn.conv1d": ("NCW", "OIW"), "nn.conv2d": ("NCHW", "OIHW"), "nn.conv3d": ("NCDHW", "OIDHW")}


def lower_convolutions(target: Any, prefix: str | None) -> Callable[[Any], Any]:
    """The pass that makes kernels of convolutions for ``target``, a CPU.

    Args:
        target: from :func:`rmsnorm_deploy.tvm.targets.resolve.resolve`.
        prefix: what stands before the names of the BLAS library's functions; None without a library.
    """

    def describe(call: Any, _seen: Seen) -> tuple[Spec, list[Any]] | None:
        found = convolution(call)
        if found is not None and found.groups > 1 and found.results <= MOST_CHANNELS:
            return Direct(found), list(call.args)
        if found is None or prefix is None:
            return None
        return ByProduct(found, prefix), list(call.args)

    return lambda module: replaced(module, describe, CpuSchedules.of(target).lanes)


def convolution(call: Any) -> Convolution | None:
    """A convolution in float32 whose channels and kernel are known; None for everything else."""
    name = next((name for name in _LAYOUTS if is_call(call, name)), None)
    if name is None or (call.attrs.data_layout, call.attrs.kernel_layout) != _LAYOUTS[name]:
        return None
    shapes = [sizes_of(v) for v in (*call.args, call)]
    if any(dtype_of(v) != "float32" for v in (*call.args, call)):
        return None
    x, w, y = shapes
    if x is None or w is None or y is None or not all(isinstance(n, tirx.IntImm) for n in (*w, x[1])):
        return None
    a, names = call.attrs, Names()
    padding = [int(n) for n in a.padding]
    before, after = padding[: len(padding) // 2], padding[len(padding) // 2 :]
    strides, begin, end, dilations = (tuple(int(n) for n in v) for v in (a.strides, before, after, a.dilation))
    weight = tuple(int(n) for n in w)
    found = Convolution(names.sizes(x), weight, names.sizes(y), strides, begin, end, dilations, int(a.groups))
    return found if all(found.w) and min(padding) >= 0 else None
