"""As much of PyTorch as benchmarks/gpu/peers.py uses, on memory of the host: with it those lines run without a GPU."""

import ctypes
import types

import ml_dtypes
import numpy as np


class DType:
    def __init__(self, kind):
        self.kind = np.dtype(kind)
        self.itemsize = self.kind.itemsize


float16, bfloat16, float32, uint8 = (DType(k) for k in (np.float16, ml_dtypes.bfloat16, np.float32, np.uint8))


class Tensor:
    def __init__(self, array):
        self.array = array

    @property
    def shape(self):
        return self.array.shape

    def view(self, what):
        return Tensor(self.array.view(what.kind) if isinstance(what, DType) else self.array.reshape(what))

    def __getitem__(self, row):
        return Tensor(self.array[row])

    def __add__(self, other):
        return Tensor(self.array + other.array)

    def contiguous(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return self.array


def as_tensor(memory, device):
    assert device == "cuda"
    interface = memory.__cuda_array_interface__
    assert interface["typestr"] == "|u1"
    (count,), (pointer, read_only) = interface["shape"], interface["data"]
    assert not read_only
    return Tensor(np.frombuffer((ctypes.c_uint8 * count).from_address(pointer), np.uint8))


def rms_norm(x, normalized_shape, weight, eps):
    assert tuple(normalized_shape) == x.shape[-1:]
    wide = x.array.astype(np.float32)
    y = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + np.float32(eps))
    return Tensor((y * weight.array.astype(np.float32)).astype(x.array.dtype))


nn = types.SimpleNamespace(functional=types.SimpleNamespace(rms_norm=rms_norm))


def compile(function, dynamic):
    assert dynamic is False
    return function


_dynamo = types.SimpleNamespace(config=types.SimpleNamespace(cache_size_limit=8, recompile_limit=8))


def set_grad_enabled(mode):
    assert mode is False


class Stream:
    cuda_stream = 77


class CUDAGraph:
    capturing = False

    def capture_begin(self, capture_error_mode):
        assert capture_error_mode == "thread_local"
        assert not CUDAGraph.capturing
        CUDAGraph.capturing = True

    def capture_end(self):
        assert CUDAGraph.capturing
        CUDAGraph.capturing = False

    def replay(self):
        assert not CUDAGraph.capturing


cuda = types.SimpleNamespace(
    is_available=lambda: True,
    Stream=Stream,
    set_stream=lambda stream: None,
    CUDAGraph=CUDAGraph,
    synchronize=lambda: None,
    empty_cache=lambda: None,
)
