"""cuBLAS without a GPU: the stand-in ``fake_cublas.cpp``, and tensors of a GPU's that lie in the host's memory."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np

from tests.support.native import compiler

SOURCE = Path(__file__).parent / "fake_cublas.cpp"
CUDA, DEVICE = 2, 3
TYPES = {"float32": (0, 2, 32), "float64": (1, 2, 64), "float16": (2, 2, 16), "bfloat16": (14, 4, 16)}
"""What cuBLAS calls a type, and DLPack."""


class Operand(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("type", "turned", "apart", "stride", "first", "last")]


class Record(ctypes.Structure):
    """One call, in cuBLAS's own order: a is the product's right factor."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "batch", "sums")),
        *((name, ctypes.c_int64) for name in ("math", "stream", "workspace", "handle")),
        *((name, Operand) for name in "abc"),
    ]


class Fake:
    """The stand-in, built into ``folder``."""

    def __init__(self, folder):
        self.path = folder / "libfake_cublas.so"
        subprocess.run([*compiler(), "-std=c++17", "-O2", "-fPIC", "-shared", SOURCE, "-o", self.path], check=True)
        self.library = ctypes.CDLL(str(self.path))
        self.library.fake_record.restype = ctypes.POINTER(Record)

    def taken(self):
        """The calls since the last time that this was asked."""
        found = []
        for i in range(self.library.fake_count()):
            found.append(Record.from_buffer_copy(self.library.fake_record(i).contents))
        self.library.fake_clear()
        return found

    def instead(self, source):
        """``cublas.cpp`` with the stand-in also for the driver."""
        return f'#define DRIVER "{self.path}"\n{source}'


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("device_type", "device_id", "ndim")),
        *(("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)),
        *(("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class OnGpu:
    """An array as a tensor of GPU :data:`DEVICE`, for ``from_dlpack``; around it lies what nobody may read or write."""

    def __init__(self, array, dtype, around=4096):
        size = array.nbytes
        self.memory = np.full(size + 2 * around + 64, 0xFF, np.uint8)  # no number, in every type
        self.first = around + (-(self.memory.ctypes.data + around)) % 64
        self.size, self.shape, self.numpy_type = size, array.shape, array.dtype
        self.memory[self.first : self.first + size] = np.frombuffer(array.tobytes(), np.uint8)
        _, code, bits = TYPES[dtype]
        self.sizes = (ctypes.c_int64 * len(array.shape))(*array.shape)
        tensor = _DLTensor(self.address, CUDA, DEVICE, len(array.shape), code, bits, 1, self.sizes, None, 0)
        self.managed = _Managed(tensor, None, None)

    @property
    def address(self):
        return self.memory.ctypes.data + self.first

    @property
    def array(self):
        return self.memory[self.first : self.first + self.size].view(self.numpy_type).reshape(self.shape)

    def untouched(self):
        """Whether everything around it is as it was."""
        return (self.memory[: self.first] == 0xFF).all() and (self.memory[self.first + self.size :] == 0xFF).all()

    def __dlpack_device__(self):
        return (CUDA, DEVICE)

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.managed), b"dltensor", None)
