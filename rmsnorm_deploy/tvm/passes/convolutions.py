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
from rmsnorm_deploy.tvm.schedules.convolutions.transposed import Transposed
from rmsnorm_deploy.tvm.schedules.cpu.choose import CpuSchedules

_LAYOUTS = {"nn.conv1d": ("NCW", "OIW"), "nn.conv2d": ("NCHW", "OIHW"), "nn.conv3d": ("NCDHW", "OIDHW")}
"""How data and weights of convolutions lie."""


def lower_convolutions(target: Any, prefix: str | None) -> Callable[[Any], Any]:
    """The pass that makes kernels of convolutions for ``target``, a CPU.

    Args:
        target: from :func:`rmsnorm_deploy.tvm.targets.resolve.resolve`.
        prefix: what stands before the names of the BLAS library's functions; None without a library.
    """

    def describe(call: Any, _seen: Seen) -> tuple[Spec, list[Any]] | None:
        found = transposed(call)
        if found is not None and prefix is not None:
            return Transposed(found, prefix), list(call.args)
        found = convolution(call)
        if found is not None and found.groups > 1 and found.results <= MOST_CHANNELS:
            return Direct(found), list(call.args)
        if found is None or prefix is None:
            return None
        return ByProduct(found, prefix), list(call.args)

    return lambda module: replaced(module, describe, CpuSchedules.of(target).lanes)


def is_convolution(call: Any) -> bool:
    """Whether ``call`` is a convolution whose data and weights lie as ONNX has them."""
    name = next((name for name in _LAYOUTS if is_call(call, name)), None)
    return name is not None and (call.attrs.data_layout, call.attrs.kernel_layout) == _LAYOUTS[name]


def convolution(call: Any) -> Convolution | None:
    """A convolution in float32 whose channels and kernel are known; None for everything else."""
    if not is_convolution(call):
        return None
    return _of(call.args[0], call.args[1], call, call.attrs)


def transposed(call: Any) -> Convolution | None:
    """The convolution of which ``call`` is the transpose; None for everything else, and where it is not known."""
    name = next((name for name in _LAYOUTS if is_call(call, f"{name}_transpose")), None)
    if name is None:
        return None
    data, kernel = _LAYOUTS[name]
    if (call.attrs.data_layout, call.attrs.kernel_layout) != (data, kernel.replace("OI", "IO")):
        return None
    return _of(call, call.args[1], call.args[0], call.attrs)


def _of(x: Any, w: Any, y: Any, attributes: Any) -> Convolution | None:
    if any(dtype_of(v) != "float32" for v in (x, w, y)):
        return None
    of_x, of_w, of_y = (sizes_of(v) for v in (x, w, y))
    if of_x is None or of_w is None or of_y is None:
        return None
    if not all(isinstance(n, tirx.IntImm) for n in (*of_w, of_x[1], of_y[1])):
        return None
    names = Names()
    padding = [int(n) for n in attributes.padding]
    before, after = padding[: len(padding) // 2], padding[len(padding) // 2 :]
    each = (attributes.strides, before, after, attributes.dilation)
    strides, begin, end, dilations = (tuple(int(n) for n in values) for values in each)
    weight, groups = tuple(int(n) for n in of_w), int(attributes.groups)
    found = Convolution(names.sizes(of_x), weight, names.sizes(of_y), strides, begin, end, dilations, groups)
    return found if all(weight) and min(padding) >= 0 else None
