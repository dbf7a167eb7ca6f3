"""Arrays of other libraries as TVM's tensors and back, in place: DLPack, and what it cannot say."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray

Array = NDArray[Any]

WIDEST = 64
"""Bytes: where TVM's own tensors begin, and GPU kernels take it for granted that all do."""
_VERSION = (1, 1)
"""Of DLPack. Only its versions from 1 on can say that an array must not be written; compiled models never write one."""
_CARRIERS: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16)}
"""What types that NumPy or DLPack does not know are exported as, by the size of an element."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's type for TVM's name of it.

    Raises:
        TypeError: there is none.
    """
    try:
        return np.dtype(name)
    except TypeError:
        return np.dtype(getattr(ml_dtypes, name, name))


def tensor_on_cpu(array: Array) -> Any:
    """``array`` as a TVM tensor, in place: the tensor keeps it alive.

    An array whose rows have gaps, whose elements lie across their natural places, or have the other byte order, is
    copied.
    """
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned and array.dtype.isnative):
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    if not array.size:  # its strides can be anything, and TVM's kernels look at them
        return tvm.runtime.empty(array.shape, array.dtype.name)
    if array.dtype.kind != "V":
        return tvm_ffi.from_dlpack(array.__dlpack__(max_version=_VERSION))
    carrier = array.view(_CARRIERS[array.dtype.itemsize])
    tensor: Any = tvm_ffi.from_dlpack(carrier.__dlpack__(max_version=_VERSION))
    return tensor._create_view(array.shape, array.dtype.name)


_PLAIN = 0x501
"""NumPy's flags of arrays whose rows follow each other, whose elements lie in their natural places, and that may be
written: others TVM does not take for itself."""


def is_plain(array: Array) -> bool:
    """Whether TVM takes an array as it is, unless it is empty or its type is not one of NumPy's own."""
    return array.flags.num & _PLAIN == _PLAIN


def exported(value: Any) -> Any:
    """What has ``__dlpack__``, such as a tensor of PyTorch or CuPy, as a TVM tensor on its own device, in place.

    Raises:
        ValueError: its library does not give it away, or as something that TVM does not know; the message says why.
    """
    try:
        try:
            capsule = value.__dlpack__(max_version=_VERSION)
        except TypeError:  # made before DLPack had versions
            capsule = value.__dlpack__()
        return tvm_ffi.from_dlpack(capsule)
    except Exception as error:  # libraries raise whatever comes
        raise ValueError(str(error).strip().split("\n")[0] or type(error).__name__) from error


def compacted(tensor: Any) -> Any:
    """A copy, without gaps and in its natural place, of a tensor on the CPU that has gaps or has another one."""
    dtype = numpy_dtype(str(tensor.dtype))
    if 0 in tensor.shape:
        return tvm.runtime.empty(tensor.shape, tensor.dtype)
    strides = [stride * dtype.itemsize for stride in tensor.strides]
    first = tensor.data_ptr() + sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True) if s < 0)
    last = tensor.data_ptr() + sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True) if s > 0)
    memory = (ctypes.c_char * (last + dtype.itemsize - first)).from_address(first)
    array: Array = np.ndarray(tensor.shape, dtype, memory, tensor.data_ptr() - first, strides)
    return tensor_on_cpu(np.array(array, order="C"))


def numpy_of(tensor: Any, dtype: np.dtype[Any] | None = None) -> Array:
    """A TVM tensor as a NumPy array: in place where it is on the CPU, and the array keeps it alive; else a copy.

    Args:
        tensor: contiguous.
        dtype: its type, where that is known already: TVM takes a microsecond to say.
    """
    if tensor.device.dlpack_device_type() != _CPU:
        return np.asarray(tensor.numpy())
    if dtype is None:
        dtype = numpy_dtype(str(tensor.dtype))
    if dtype.kind != "V":
        return np.from_dlpack(tensor)
    return np.asarray(_Carried(tensor, _CARRIERS[dtype.itemsize].str)).view(dtype)


class _Carried:
    """The memory of a tensor of a type that NumPy cannot take through DLPack, as one of a type that it can."""

    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, tensor: Any, carrier: str) -> None:
        self.tensor = tensor
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": tensor.shape,
            "typestr": carrier,
            "version": 3,
        }


_CPU = tvm.cpu().dlpack_device_type()
