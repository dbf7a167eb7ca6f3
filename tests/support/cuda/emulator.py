"""Builds the CUDA kernels for the host, with the stand-ins of ``shim``, and runs calls of the contract on them."""

import contextlib
import ctypes
import itertools
import math
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.gpu.contract import MAX_RANK, ROW_TENSORS, Gate, Params
from tests.support.contract import DTYPES
from tests.support.native import compiler
from tests.support.once import once

ROOT = Path(__file__).resolve().parents[3]
SHIM = Path(__file__).resolve().parent / "shim"
UNITS = (
    *("rows_float32", "rows_float16", "rows_bfloat16", "strided_float32", "strided_float64"),
    *("outputs_rows", "outputs_values", "gated_rows", "gated_values", "launch"),
)
HOST_UNITS = ("plan", "layout")
FLAGS = [
    *("-std=c++17", "-O1", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-U_FORTIFY_SOURCE"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", f"-I{SHIM}"),
    '-DRMSNORM_DEPLOY_CUDA_ARCHITECTURES="emulated"',
]
SANITIZE = ["-fsanitize=alignment,signed-integer-overflow,bounds", "-fno-sanitize-recover=all"]
UNOPTIMISED = "-O0"
"""For kernels that few calls run: they take longer to compile than to run."""
CANARY = 0xA5


def _run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def compile_units(ops, units, folder, *options):
    """Object files of ``units`` of the kernel sources in ``ops``/cuda, in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)

    def one(unit):
        target = folder / f"{unit}.o"
        _run(*compiler(), *FLAGS, *options, *SANITIZE, "-x", "c++", "-c", ops / "cuda" / f"{unit}.cu", "-o", target)
        return target

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, units))


def compile_host(ops, folder):
    """Object files of everything that is not a kernel."""
    folder.mkdir(parents=True, exist_ok=True)
    here = [ops / "cuda" / f"{unit}.cu" for unit in HOST_UNITS]
    sources = [SHIM / "emulator.cpp", *here, *sorted((ops / "contract").glob("*.cpp"))]
    for source in sources:
        _run(*compiler(), *FLAGS, "-x", "c++", "-c", source, "-o", folder / f"{source.stem}.o")
    return [folder / f"{source.stem}.o" for source in sources]


def compile_binding(ops, folder):
    """Object files of the onnxruntime binding, with the ops for a GPU registered for the CPU provider."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = [*(ops / "ort").glob("*.cpp"), *(ops / "ort" / "ours").glob("*.cpp")]
    sources = [SHIM / "binding.cpp", ops / "cpu" / "cache.cpp", *sorted(s for s in sources if s.stem != "providers")]
    targets = [folder / f"{source.parent.name}-{source.stem}.o" for source in sources]

    def one(job):
        source, target = job
        _run(*compiler(), *FLAGS, f"-I{ops}", "-c", source, "-o", target)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, zip(sources, targets, strict=True)))
    return targets


def objects(tmp_path_factory):
    """Object files of the unchanged sources, by unit; and those of the host side. A test run builds them once."""
    compiler()  # outside of make: a test that is skipped has built nothing

    def make(folder):
        compile_units(ROOT / "ops", UNITS, folder / "units")
        compile_host(ROOT / "ops", folder / "host")

    folder = once(tmp_path_factory, "emulated", make)
    return {unit: folder / "units" / f"{unit}.o" for unit in UNITS}, sorted((folder / "host").glob("*.o"))


def given_of(params, gate=None):
    """Which of a call's structs has a tensor, by the tensor's name."""
    return lambda name: gate if name == "gate" else params


class EmulatorError(AssertionError):
    """What the emulator stopped at."""


class Emulator:
    """A library of emulated kernels, in the place of the library of CPU kernels that ``Call.run`` is handed."""

    sizes = (1, 3, 7, 16, 17, 63, 64, 100, 129, 896, 2049, 4104)
    """Numbers of features for the cases of outputs: of each kernel, and beside its steps."""

    def __init__(self, objects, path):
        _run(*compiler(), "-shared", "-Wl,--no-undefined", "-o", path, *objects, "-ldl")
        self.path = path
        self.lib = lib = ctypes.CDLL(str(path))
        for function in (lib.emulator_message, lib.emulator_kernel, lib.rmsnorm_deploy_cuda_error_text):
            function.restype = ctypes.c_char_p
        lib.emulator_allocate.restype = ctypes.c_void_p
        lib.emulator_allocate.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        lib.emulator_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        lib.emulator_blocks.argtypes = [ctypes.c_int64, ctypes.c_int64]
        lib.rmsnorm_deploy_cuda_run.argtypes = [ctypes.POINTER(Params), ctypes.c_void_p]
        lib.rmsnorm_deploy_cuda_run_gated.argtypes = [
            *(ctypes.POINTER(Params), ctypes.POINTER(Gate), ctypes.c_void_p),
        ]
        self.kernels = set()  # all that have run
        self._seeds = itertools.count()

    @property
    def kernel(self):
        """The last kernel, as ``rows_kernel<float, float, 2, false, 1>``."""
        name = self.lib.emulator_kernel().decode()
        name = name.replace("rmsnorm_deploy::cuda::", "").removeprefix("void ")
        return name.partition("(")[0]

    def device(self, multiprocessors=4, shared_bytes=232448):
        """What the device says that it has."""
        self.lib.emulator_device(multiprocessors, shared_bytes)

    def launch(self, params, gate=None):
        """Run one call; returns the contract's code, or raises what the emulator found."""
        self.lib.emulator_seed(next(self._seeds))
        if gate is None:
            code = self.lib.rmsnorm_deploy_cuda_run(ctypes.byref(params), None)
        else:
            code = self.lib.rmsnorm_deploy_cuda_run_gated(ctypes.byref(params), ctypes.byref(gate), None)
        if code >= 1000:
            raise EmulatorError(self.lib.emulator_message().decode())
        if code == 0:
            self.kernels.add(self.kernel)
        return code

    @contextlib.contextmanager
    def memory(self, size, *, at_end=True):
        """The address of ``size`` bytes that end, or begin, at a page that may not be touched."""
        whole, room = ctypes.c_void_p(), ctypes.c_size_t()
        address = self.lib.emulator_allocate(size, at_end, ctypes.addressof(whole), ctypes.addressof(room))
        assert address
        try:
            yield address
        finally:
            self.lib.emulator_free(whole, room)

    def rmsnorm_deploy_cpu_run(self, reference):
        """One call on copies of its tensors, each in memory of its own, so that one byte beside it is too much.

        A copy keeps the place of its address within 16 bytes. It lies against the page behind it where that agrees
        with its size; else against the page before it, and what is behind it is compared afterwards.
        """
        return self._on_copies(reference._obj)

    def rmsnorm_deploy_cpu_run_gated(self, reference, gate):
        if reference is None or gate is None:
            return self.lib.rmsnorm_deploy_cuda_run_gated(reference, gate, None)
        return self._on_copies(reference._obj, gate._obj)

    def _on_copies(self, *structs):
        given = given_of(*structs)
        sizes = self._sizes(*structs)
        copies = {}  # by original address
        moved = [type(struct).from_buffer_copy(struct) for struct in structs]
        to = given_of(*moved)
        with contextlib.ExitStack() as stack:
            for name, size in sizes.items():
                original = getattr(given(name), name)
                if original not in copies:
                    at_end = (original + size) % 16 == 0
                    slack = 0 if at_end else original % 16
                    behind = 0 if at_end else 64
                    base = stack.enter_context(self.memory(size + slack + behind, at_end=at_end))
                    ctypes.memset(base, CANARY, size + slack + behind)
                    ctypes.memmove(base + slack, original, size)
                    copies[original] = (base + slack, size, behind)
                setattr(to(name), name, copies[original][0])
            code = self.launch(*moved)
            for name in ("y", "sum", "quantised", "least", "most"):
                if name not in sizes:
                    continue
                original = getattr(given(name), name)
                copy, size, behind = copies[original]
                ctypes.memmove(original, copy, size)
                if ctypes.string_at(copy + size, behind) != bytes([CANARY]) * behind:
                    raise EmulatorError(f"a write behind {name}")
        return code

    def rmsnorm_deploy_error_text(self, code):
        return self.lib.rmsnorm_deploy_cuda_error_text(code)

    @staticmethod
    def _sizes(params, gate=None):
        """Bytes of each tensor of a call; nothing for a call that is to be refused."""
        widths = {data_type: dtype.itemsize for data_type, dtype in ((t, np.dtype(d)) for t, d in DTYPES.items())}
        shape = params.shape[: params.rank] if 1 <= params.rank <= MAX_RANK else [0]
        y_type = (params.version > 1 and params.y_type) or params.x_type
        if min(shape) <= 0 or not {params.x_type, params.scale_type, y_type} <= widths.keys():
            return {}

        def span(steps):
            return sum((n - 1) * step for n, step in zip(shape, steps, strict=False)) + 1

        total = math.prod(shape)
        sizes = dict.fromkeys(("x", "residual", "sum"), total * widths[params.x_type])
        sizes["y"] = total * widths[y_type]
        if gate is not None:
            sizes["gate"] = total * widths.get(gate.type, 0)
        for name, steps in (("scale", params.scale_strides), ("bias", params.bias_strides)):
            sizes[name] = span(steps) * widths[params.scale_type]
        if params.version > 1:
            rows = math.prod(shape[: params.axis_begin])
            if params.quantised_type:
                values = rows if params.quantised_by_row else 1
                width = widths.get(params.quantised_scale_type, 4)
                sizes |= {"quantised": total, "quantised_scale": values * width, "zero_point": values}
            sizes |= dict.fromkeys(("least", "most"), 4 * rows)
            for bit, name in enumerate(ROW_TENSORS):
                if params.strided >> bit & 1 and name in sizes:
                    steps = getattr(params, f"{name}_strides")
                    sizes[name] = span([0 if n == 1 else s for n, s in zip(shape, steps, strict=False)]) * (
                        sizes[name] // total
                    )
        given = given_of(params, gate)
        return {name: size for name, size in sizes.items() if getattr(given(name), name)}
