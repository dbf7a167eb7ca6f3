import ctypes

import pytest

from benchmarks.gpu.contract import Kernels
from benchmarks.gpu.driver import Gpu, cuda
from rmsnorm_deploy.run.library import cuda_architectures, library_path
from tests.support.cuda import emulator as em

GUARD = 256
CANARY = 0xA5


class Whatever:
    """The name of a kernel, which a device does not tell: it passes for every name."""

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = None

    def __contains__(self, part):
        return True

    def startswith(self, part):
        return True


class OnDevice:
    """The kernels on the GPU, in the place of the library of CPU kernels that ``Call.run`` gets.

    Every tensor is copied to the device, to the same place within 16 bytes and between guards that are compared
    afterwards.
    """

    kernel = Whatever()
    sizes = em.Emulator.sizes

    def __init__(self):
        self.gpu = Gpu()
        self.kernels = Kernels(library_path())
        self.kernels.lib.rmsnorm_deploy_cuda_run.argtypes = None  # the cases have a class of their own for the params
        self.room, self.size = 0, 0
        self.stream = self.gpu.stream()

    def device(self, **_):
        """The emulator pretends to be other devices here."""

    def memory(self, size):
        if size > self.size:
            if self.room:
                self.gpu.free(self.room)
            self.size = 2 * size
            self.room = self.gpu.allocate(self.size)
        return self.room

    def rmsnorm_deploy_cpu_run(self, reference):
        return self.on_copies(reference._obj)

    def rmsnorm_deploy_cpu_run_gated(self, reference, gate):
        if reference is None or gate is None:
            return self.kernels.lib.rmsnorm_deploy_cuda_run_gated(reference, gate, None)
        return self.on_copies(reference._obj, gate._obj)

    def on_copies(self, *structs):
        given = em.given_of(*structs)
        sizes = em.Emulator._sizes(*structs)
        places, whole = {}, 0  # by original address: offset and bytes
        for name, size in sizes.items():
            address = getattr(given(name), name)
            if address not in places:
                places[address] = (whole + GUARD + address % 16, size)
                whole += -(-(size + 16) // 16) * 16 + 2 * GUARD
        base = self.memory(whole)
        image = bytearray([CANARY]) * whole
        for address, (offset, size) in places.items():
            image[offset : offset + size] = ctypes.string_at(address, size)
        self.gpu.upload(base, bytes(image))
        moved = [type(struct).from_buffer_copy(struct) for struct in structs]
        to = em.given_of(*moved)
        for name in sizes:
            setattr(to(name), name, base + places[getattr(given(name), name)][0])
        code = self.start(*moved)
        self.gpu.synchronize()
        after = self.gpu.download(base, whole)
        for name in ("y", "sum", "quantised", "least", "most"):
            if name in sizes and code == 0:
                offset, size = places[getattr(given(name), name)]
                ctypes.memmove(getattr(given(name), name), after[offset : offset + size], size)
                image[offset : offset + size] = after[offset : offset + size]
        assert after == bytes(image), "something else than the results was written"
        return code

    def start(self, params, gate=None):
        """Launch one call on device memory, on a stream of its own; the contract's code."""
        return self.kernels.code(params, ctypes.c_void_p(self.stream), gate)

    def rmsnorm_deploy_error_text(self, code):
        return self.kernels.text(code)


@pytest.fixture(scope="session")
def on_device():
    if problem := cuda.driver().problem:
        pytest.skip(f"needs an NVIDIA GPU: {problem}")
    if not cuda_architectures(library_path()):
        pytest.skip("needs a library that was built with CUDA; install the CUDA toolkit and build again")
    return OnDevice()


@pytest.fixture
def kernels(on_device):
    return on_device
