"""CUDA text of the GPU schedule, run on the emulator of support/cuda: shuffles, barriers and bounds without a GPU."""

import ctypes
import re
import shutil
import subprocess
import tempfile
import weakref
from pathlib import Path

from rmsnorm_deploy.tvm.schedules.gpu.vectors import VIEW
from tests.support.native import compiler
from tests.support.tvm.gpu_runners import Runner

SHIM = Path(__file__).resolve().parents[1] / "cuda" / "shim"
HEADER = Path(__file__).with_name("cuda_text.h")
FLAGS = ["-std=c++17", "-O1", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-w"]


def host_text(source):
    """What follows TVM's own head of a CUDA text: the functions of targets/gpus/cuda.py, and the kernels."""
    functions = re.findall(r"^__device__ inline .*?^}\n", source, re.MULTILINE | re.DOTALL)
    kernels = source[source.index('extern "C" __global__') :]
    return "".join(functions) + kernels.replace("__shared__ alignas(64)", "alignas(64) __shared__")


class Cuda(Runner):
    """The emulator stops at a barrier that not all threads come to, and at an access outside a tensor."""

    kind = "cuda"

    def __init__(self, schedules=None):
        super().__init__(schedules)
        self.compiler = compiler()
        self.shifts = {}  # bytes by which a tensor does not begin at a multiple of 16
        self.folder = Path(tempfile.mkdtemp(prefix="emulated-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.build("-c", SHIM / "emulator.cpp", "-o", self.folder / "emulator.o")
        # Two thirds of what a kernel takes are its headers, which GCC reads from here in a moment.
        self.build("-x", "c++-header", HEADER, "-o", self.folder / f"{HEADER.name}.gch")

    def build(self, *arguments):
        command = [*self.compiler, *FLAGS, f"-I{SHIM}", f"-I{HEADER.parent}", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]

    def compiled(self, source):
        text = host_text(source)
        names = re.search(r"norm_kernel\(([^)]*)\)", text).group(1).split(", ")
        parameters = [(n.rsplit(" ", 1)[1], n.rsplit(" ", 1)[0].replace(" __restrict__", "")) for n in names]
        given = ", ".join(f"*({dtype}*)p[{i}]" for i, (_, dtype) in enumerate(parameters))
        launch = (
            'extern "C" void launch(unsigned blocks, unsigned threads, void** p) { emulator::run('
            f"(const void*)norm_kernel, dim3(blocks), dim3(threads), 0, false, [&] {{ norm_kernel({given}); }}); }}\n"
        )
        path = self.folder / f"kernel{len(self.made)}"
        path.with_suffix(".cpp").write_text(f'#include "{HEADER.name}"\n{text}\n{launch}')
        self.build("-shared", "-o", path.with_suffix(".so"), path.with_suffix(".cpp"), self.folder / "emulator.o")
        library = ctypes.CDLL(str(path.with_suffix(".so")))
        library.emulator_message.restype = ctypes.c_char_p
        library.emulator_allocate.restype = ctypes.c_void_p
        library.emulator_allocate.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        library.emulator_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        return library, [name for name, _ in parameters]

    def launch(self, compiled, named, sizes, launch):
        library, parameters = compiled
        places, values = {}, []
        for name in parameters:
            if not name.endswith("_ptr"):
                values.append(ctypes.c_int64(sizes[name]))
                continue
            argument = name.removesuffix("_ptr").removesuffix(VIEW)
            if argument in places:
                values.append(ctypes.c_void_p(places[argument][0]))
                continue
            array = named[argument]
            whole, room = ctypes.c_void_p(), ctypes.c_size_t()
            # against the page behind it, where its size is one that leaves it aligned
            shift = self.shifts.get(argument, 0)
            address = shift + library.emulator_allocate(
                array.nbytes + shift,
                not shift and array.nbytes % 16 == 0,
                ctypes.addressof(whole),
                ctypes.addressof(room),
            )
            ctypes.memmove(address, array.ctypes.data, array.nbytes)
            places[argument] = (address, whole, room)
            values.append(ctypes.c_void_p(address))
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        library.emulator_seed(self.ran)
        library.launch(launch["blockIdx.x"], launch["threadIdx.x"], pointers)
        message = library.emulator_message().decode()
        for name in ("Y", "S"):
            if name in named and not message:
                ctypes.memmove(named[name].ctypes.data, places[name][0], named[name].nbytes)
        for _, whole, room in places.values():
            library.emulator_free(whole, room)
        assert not message, message
