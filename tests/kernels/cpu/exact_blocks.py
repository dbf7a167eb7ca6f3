"""Runs the contract on blocks of memory that end where the tensor ends; test_sanitizers.py runs this file by itself.

    python -m tests.kernels.cpu.exact_blocks LIBRARY all     every operator, type, layout and instruction set; prints
                                                             how many
    python -m tests.kernels.cpu.exact_blocks LIBRARY short   calls with one tensor an element shorter than the call
                                                             says, each in a process of its own; prints what became
                                                             of them, as JSON

A block from malloc ends in what AddressSanitizer guards, and so does its beginning. It does not look into the masked
loads and stores of AVX-512, so that every call also runs on blocks before and behind a page that cannot be touched.
"""

import ctypes
import dataclasses
import itertools
import json
import mmap
import os
import sys
import tempfile

import numpy as np

from tests.support import gated_cases as gated
from tests.support.contract import (
    BF16,
    COMBINATIONS,
    F16,
    F32,
    F64,
    LAYOUTS,
    Call,
    Params,
    agrees,
    scale_shapes,
    values,
)

ISAS = ("portable", "avx2", "avx512")
PLACES = ("malloc", "unaligned", "before a guard", "behind a guard")
TENSORS = ("x", "residual", "scale", "bias", "y", "sum")
PAGE = mmap.PAGESIZE

libc = ctypes.CDLL(None, use_errno=True)
libc.malloc.restype = libc.mmap.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Blocks:
    """Memory for the tensors of one call, each in a block of its own."""

    def __init__(self, place):
        self.place, self.freed = place, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for free in self.freed:
            free()

    def _address(self, size, item):
        if "guard" not in self.place:
            shift = item if self.place == "unaligned" else 0
            block = libc.malloc(size + shift)
            self.freed.append(lambda: libc.free(block))
            return block + shift
        pages = -(-size // PAGE) * PAGE
        whole = pages + 2 * PAGE
        block = libc.mmap(None, whole, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        self.freed.append(lambda: libc.munmap(block, whole))
        for guard in (block, block + PAGE + pages):
            assert libc.mprotect(guard, PAGE, 0) == 0
        return block + PAGE + (pages - size if self.place == "before a guard" else 0)

    def copy(self, array, short=0):
        """``array`` in a block of its own, which lacks the last ``short`` elements."""
        if array is None or array.size == 0:
            return array
        size = array.nbytes - short * array.itemsize
        address = self._address(size, array.itemsize)
        ctypes.memmove(address, array.ctypes.data, size)
        memory = (ctypes.c_char * array.nbytes).from_address(address)
        return np.frombuffer(memory, array.dtype).reshape(array.shape)


def cases():
    """Calls with every operator, type and layout, and rows of the lengths at which a kernel changes its ways."""
    rng = np.random.default_rng(3)
    layouts = [(shape, axes, s) for shape, axes in LAYOUTS for s in scale_shapes(shape, axes)]
    for op, x_type, scale_type, stash_type, round_type in COMBINATIONS:
        chosen = [layouts[i] for i in rng.choice(len(layouts), 8, replace=False)]
        chosen += [((2, int(size)), (1,), (int(size),)) for size in rng.integers(1, 300, 6)]
        chosen += [((1, int(size), int(n)), (1,), (int(size), 1)) for size, n in rng.integers(1, 80, (4, 2))]
        for shape, axes, scale_shape in chosen:
            x, scale = values(rng, shape, x_type), values(rng, scale_shape, scale_type)
            call = Call(x, scale, x_type, scale_type, round_type, stash_type, axes, epsilon=1e-3)
            if op == "AddRMSNorm":
                call.residual = values(rng, shape, x_type)
            if op == "GeneralRMSNorm":
                call.bias = values(rng, scale_shape, scale_type)
                call.epsilon_outside = 0.125
                if len(axes) == 1:
                    call.partial_size = int(rng.integers(1, shape[axes[0]] + 3))
            yield call
    for size, x_type in itertools.product((4096, 4097, 8192, 8193), (F32, F16, BF16)):
        call = Call(values(rng, (2, size), x_type), values(rng, (size,), x_type), x_type, x_type, x_type)
        yield dataclasses.replace(call, residual=values(rng, (2, size), x_type), bias=values(rng, (size,), x_type))


def run(library, call, place, short=""):
    """One call on blocks; ``short`` names the tensor that lacks its last element."""
    with Blocks(place) as blocks:
        tensors = {name: getattr(call, name, None) for name in TENSORS}
        tensors["y"] = np.zeros_like(call.x)
        tensors["sum"] = None if call.residual is None else np.zeros_like(call.x)
        for name, array in tensors.items():
            tensors[name] = blocks.copy(array, int(name == short))
        y, total = tensors.pop("y"), tensors.pop("sum")
        call = dataclasses.replace(call, **tensors)
        result = call.run(library, y, total)
        if not short:
            agrees(call, *result)


def gated_cases():
    """Norms with a gate, in front and behind, of every type; rows and columns."""
    rng = np.random.default_rng(4)
    types = ((F32, F32), (F16, F16), (F16, F32), (BF16, F32), (F64, F64), (F64, F32))
    for (x_type, gate_type), place, silu in itertools.product(types, range(3), range(2)):
        double = F64 if x_type == F64 else F32
        for shape in [(2, int(size)) for size in rng.integers(1, 300, 4)] + [(1, 4097), (2, 37, 5)]:
            weights = (shape[1], *(1,) * (len(shape) - 2))
            call = Call(values(rng, shape, x_type), values(rng, weights, x_type), x_type, x_type, double, double, (1,))
            yield call, values(rng, shape, gate_type), gate_type, silu, place


def run_gated(library, call, gate, gate_type, silu, place, where, short=""):
    """One call with a gate on blocks, as :func:`run`."""
    with Blocks(where) as blocks:
        tensors = {"x": call.x, "scale": call.scale, "gate": gate, "y": np.zeros_like(call.x)}
        x, scale, gate, y = (blocks.copy(array, int(name == short)) for name, array in tensors.items())
        call = dataclasses.replace(call, x=x, scale=scale)
        code, y = gated.run(library, call, gate, gate_type, silu, place, y)
        assert code == 0
        if not short:
            gated.agrees(call, gate, silu, place, y)


TYPES = {"float32": F32, "float16": F16, "bfloat16": BF16, "float64": F64}
SHORT = [
    *itertools.product(("portable", "avx2"), ["float16"], TENSORS, ["malloc"]),
    *[("portable", "float64", tensor, "malloc") for tensor in TENSORS],
    *[("avx2", "float32", tensor, "unaligned") for tensor in TENSORS],
    *[("avx512", "bfloat16", tensor, "before a guard") for tensor in TENSORS],
    *[("portable", "float64", "gate", "malloc"), ("avx2", "float32", "gate", "unaligned")],
    ("avx512", "bfloat16", "gate", "before a guard"),
]


def run_short(library, isa, type_name, tensor, place):
    """One row of 37 features, with every tensor that the contract has."""
    assert library.rmsnorm_deploy_cpu_set_isa(isa.encode()) == 0
    rng = np.random.default_rng(5)
    x_type = TYPES[type_name]
    weight_type = F64 if x_type == F64 else F32
    x, residual = (values(rng, (1, 37), x_type) for _ in range(2))
    scale, bias = (values(rng, (37,), weight_type) for _ in range(2))
    if tensor == "gate":
        call = Call(x, scale, x_type, weight_type, weight_type, weight_type)
        return run_gated(library, call, residual, x_type, 1, 0, place, tensor)
    call = Call(x, scale, x_type, weight_type, weight_type, weight_type, residual=residual, bias=bias)
    return run(library, call, place, tensor)


def aside(work):
    """``work`` in a copy of this process: its status, and what it wrote to stderr."""
    with tempfile.TemporaryFile() as errors:
        child = os.fork()
        if child == 0:
            os.dup2(errors.fileno(), 2)
            work()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        errors.seek(0)
        return status, errors.read().decode()


def main(path, what):
    """Run what the command line asks for."""
    library = ctypes.CDLL(path)
    library.rmsnorm_deploy_cpu_run.argtypes = [ctypes.POINTER(Params)]
    library.rmsnorm_deploy_error_text.restype = ctypes.c_char_p
    found = [isa for isa in ISAS if library.rmsnorm_deploy_cpu_set_isa(isa.encode()) == 0]
    if what == "short":
        chosen = [case for case in SHORT if case[0] in found]
        json.dump([(*case, *aside(lambda case=case: run_short(library, *case))) for case in chosen], sys.stdout)
        return
    # A shape whose product does not fit is to be refused before anything is multiplied.
    refused = Call(np.ones((2, 4), np.float32), np.float32([1])).params(np.empty((2, 4), np.float32))
    refused.shape[0] = 2**62
    assert library.rmsnorm_deploy_cpu_run(ctypes.byref(refused)) == 3
    count = 0
    for call in cases():
        for isa in found:
            library.rmsnorm_deploy_cpu_set_isa(isa.encode())
            for place in PLACES:
                run(library, call, place)
                count += 1
    for case, isa, place in itertools.product(gated_cases(), found, PLACES):
        library.rmsnorm_deploy_cpu_set_isa(isa.encode())
        run_gated(library, *case, place)
        count += 1
    sys.stdout.write(f"{count} runs with {' '.join(found)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
