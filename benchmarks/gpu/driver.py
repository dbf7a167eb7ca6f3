"""One GPU through the CUDA driver, which is there wherever a GPU can be used: no toolkit and no package is needed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.gpu.package import package_file

cuda = package_file("run/nvidia.py")

# CUdevice_attribute
_MULTIPROCESSORS, _L2_BYTES, _MAJOR, _MINOR = 16, 38, 75, 76
_THREAD_LOCAL = 1  # CUstreamCaptureMode


class CudaError(RuntimeError):
    """What the driver answered to a call."""


class Graph:
    """Launches that were captured and can be replayed."""

    def __init__(self, gpu: Gpu, graph: ctypes.c_void_p) -> None:
        self.gpu = gpu
        self.executable = ctypes.c_void_p()
        try:
            gpu.call("cuGraphInstantiateWithFlags", ctypes.byref(self.executable), graph, ctypes.c_ulonglong(0))
        finally:
            gpu.call("cuGraphDestroy", graph)

    def replay(self, stream: int) -> None:
        self.gpu.call("cuGraphLaunch", self.executable, ctypes.c_void_p(stream))

    def close(self) -> None:
        self.gpu.call("cuGraphExecDestroy", self.executable)


class Gpu:
    """The first GPU, its primary context current on this thread: the one that the CUDA runtime and PyTorch use too."""

    def __init__(self) -> None:
        found = cuda.driver()
        if found.problem:
            raise CudaError(found.problem)
        self.driver_cuda = found.cuda
        self.name = found.devices[0]
        self.lib = cuda.driver_library()
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self._device = device
        self.multiprocessors = self._attribute(_MULTIPROCESSORS)
        self.l2_bytes = self._attribute(_L2_BYTES)
        self.capability = f"{self._attribute(_MAJOR)}.{self._attribute(_MINOR)}"

    def call(self, function: str, *arguments: object) -> None:
        if code := getattr(self.lib, function)(*arguments):
            text = ctypes.c_char_p()
            self.lib.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(f"{function}: {(text.value or b'unknown error').decode()} ({code})")

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value

    # -- memory --------------------------------------------------------------------------------------------------------

    def free_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size: int) -> int:
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(size, 1)))
        return pointer.value

    def free(self, pointer: int) -> None:
        self.call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def upload(self, pointer: int, data: np.ndarray | bytes) -> None:
        """Copy to the device; complete on return, for every stream."""
        raw = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
        if raw:
            self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), raw, ctypes.c_size_t(len(raw)))
            self.synchronize()  # from ordinary memory, the call itself may return before the last bytes are there

    def download(self, pointer: int, size: int) -> bytes:
        room = ctypes.create_string_buffer(max(size, 1))
        if size:
            self.call("cuMemcpyDtoH_v2", room, ctypes.c_uint64(pointer), ctypes.c_size_t(size))
        return room.raw[:size]

    def fill(self, pointer: int, byte: int, size: int) -> None:
        self.call("cuMemsetD8_v2", ctypes.c_uint64(pointer), ctypes.c_ubyte(byte), ctypes.c_size_t(size))
        self.synchronize()

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        arguments = ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size), ctypes.c_void_p(stream)
        self.call("cuMemcpyDtoDAsync_v2", *arguments)

    # -- kernels of others -------------------------------------------------------------------------------------------

    def load_module(self, code: bytes) -> int:
        """Machine code (cubin or fatbin) or PTX."""
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), code)
        return module.value or 0

    def function(self, module: int, name: str) -> int:
        found = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(found), ctypes.c_void_p(module), name.encode())
        return found.value or 0

    def launch(
        self,
        function: int,
        blocks: int,
        threads: int,
        arguments: Sequence[ctypes.c_uint64 | ctypes.c_int64],
        stream: int,
    ) -> None:
        """One launch of a grid in one dimension, without dynamic shared memory."""
        given = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        shape = (ctypes.c_uint(n) for n in (blocks, 1, 1, threads, 1, 1, 0))
        self.call("cuLaunchKernel", ctypes.c_void_p(function), *shape, ctypes.c_void_p(stream), given, None)

    # -- order and time ------------------------------------------------------------------------------------------------

    def stream(self) -> int:
        made = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(made), 1)  # 1: does not wait for the default stream
        return made.value or 0

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")

    def event(self) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(made), 0)
        return made

    def record(self, event: ctypes.c_void_p, stream: int) -> None:
        self.call("cuEventRecord", event, ctypes.c_void_p(stream))

    def microseconds(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        """Between two recorded events; waits for the second."""
        value = ctypes.c_float()
        self.call("cuEventSynchronize", end)
        self.call("cuEventElapsedTime", ctypes.byref(value), start, end)
        return 1000.0 * value.value

    def capture(self, stream: int, work: Callable[[], None]) -> Graph:
        """What ``work`` does on ``stream``, captured and not run."""
        graph = ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), _THREAD_LOCAL)
        try:
            work()
        finally:
            self.call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        return Graph(self, graph)
