"""The CUDA kernels on the emulator: every kernel, every launch configuration, and what the CPU kernels do not have."""

import dataclasses
import itertools
import re
import subprocess

import numpy as np
import pytest

from benchmarks.gpu.contract import SILU
from tests.support import contract as C
from tests.support.contract import BF16, F16, F32, F64, cases
from tests.support.cuda import cases as cuda_cases
from tests.support.cuda import emulator as em
from tests.support.cuda.cases import CHUNK, PAIRS, call_of
from tests.support.cuda.gated_cases import right
from tests.support.cuda.output_cases import compare, outputs_of
from tests.support.outputs import Outputs

globals().update(cases(cuda_cases))


def test_a_long_row_does_not_lower_the_limit_of_longer_ones(kernels):
    """The limit of shared memory belongs to the kernel: another thread may be about to launch with more."""
    rng = np.random.default_rng(7)
    for size in (50_000, 26_000, 50_000):
        call = call_of(rng, 3, size, F16)
        C.agrees(call, *call.run(kernels))


def test_every_kernel_has_run(kernels):
    """Every kernel in the library, by the smallest calls that choose it."""
    rng = np.random.default_rng(11)
    kernels.device(multiprocessors=1)
    for (x_type, scale_type), residual, chunks, bias in itertools.product(
        PAIRS, (False, True), (1, 65, 513), (False, True)
    ):
        for round_type in {F32, x_type}:
            size = chunks * CHUNK[x_type]
            call = call_of(rng, 2, size, x_type, scale_type, round_type, residual=residual)
            call.bias = C.values(rng, (size,), scale_type) if bias else None
            call.run(kernels)
    for x_type, (size, inner) in itertools.product((F32, F16, BF16), ((3, 1), (3, 8), (513, 8))):
        C.Call(C.values(rng, (1, size, inner), x_type), np.float32(1), x_type, axes=(1,)).run(kernels)
    for x_type in (F32, F16, BF16, F64):
        C.Call(C.values(rng, (1, 4), x_type), np.float32(1), x_type, stash_type=F64).run(kernels)
    for x_type, size in itertools.product((F32, F16, BF16), (64, 3)):
        compare(kernels, outputs_of(rng, call_of(rng, 2, size, x_type)))
    for x_type in (F32, F16, BF16, F64):
        call = C.Call(C.values(rng, (2, 5), x_type)[:, :4], np.float32(1), x_type, stash_type=F64)
        Outputs(call).run(kernels, y=np.empty((2, 4), call.x.dtype), strided=["x"])
    for x_type, size in itertools.product((F32, F16, BF16), (64, 3)):
        right(kernels, call_of(rng, 2, size, x_type), C.values(rng, (2, size), F32), F32, SILU, 0)
    for x_type in (F32, F16, BF16, F64):
        call = C.Call(C.values(rng, (2, 4), x_type), np.float32(1), x_type, stash_type=F64)
        right(kernels, call, C.values(rng, (2, 4), F32), F32, SILU, 0)
    symbols = subprocess.run(["nm", "-C", str(kernels.path)], capture_output=True, text=True, check=True).stdout
    there = set(re.findall(r"void rmsnorm_deploy::cuda::(\w+_kernel<[^>]*>)\(", symbols))
    assert len(there) == 72
    assert kernels.kernels == there


def test_wrong_params_are_refused_as_on_the_cpu(kernels, emulated):
    for change, code in C.WRONG:
        y = np.full((2, 4), 5, np.float32)
        params = C.Call(np.ones((2, 4), np.float32), np.float32([1])).params(y)
        for name, value in change.items():
            setattr(params, name, value)
        assert emulated.launch(params) == code
        assert (y == 5).all()
    assert emulated.lib.rmsnorm_deploy_cuda_run(None, None) == C.BAD_POINTER


def test_the_emulator_notices_what_it_has_to(kernels):
    """An address that is not a multiple of 16 for the kernels of chunks never reaches them; here it is forced."""
    rng = np.random.default_rng(13)
    call = call_of(rng, 2, 64, F32)
    params = call.params(np.empty_like(call.x))
    with kernels.memory(call.x.nbytes) as x, kernels.memory(call.x.nbytes - 16) as y:
        params.x, params.y = x, y
        with pytest.raises(em.EmulatorError, match="out of bounds"):
            kernels.launch(params)
    assert dataclasses.replace(call).run(kernels)[0].shape == (2, 64)  # and goes on


@pytest.fixture
def machine(kernels):
    """Sets how many devices there are, where all memory lies, and whether the stream is being captured."""
    yield kernels.lib.emulator_machine
    kernels.lib.emulator_machine(1, 0, 0)


def test_a_norm_runs_on_the_device_that_its_input_lies_on(kernels, machine):
    """A plug-in provider sets the device for its own kernels only, on each thread."""
    call = call_of(np.random.default_rng(17), 2, 64, F32)
    kernels.device()
    first = kernels.lib.emulator_current()
    machine(2, first + 1, 0)
    C.agrees(call, *call.run(kernels))
    assert kernels.lib.emulator_current() == first + 1


def test_the_only_device_is_left_alone_and_so_is_one_that_captures(kernels, machine):
    call = call_of(np.random.default_rng(17), 2, 64, F32)
    kernels.device()
    first = kernels.lib.emulator_current()
    for devices, capturing in ((1, 0), (2, 1)):
        machine(devices, first + 1, capturing)
        C.agrees(call, *call.run(kernels))
        assert kernels.lib.emulator_current() == first


def test_a_device_is_asked_once_what_it_has(objects, tmp_path):
    """In a library of its own, whose devices have small numbers: only so many are remembered."""
    units, host = objects
    kernels = em.Emulator([*units.values(), *host], tmp_path / "emulated.so")
    call = call_of(np.random.default_rng(17), 2, 64, F32)
    call.run(kernels)
    asked = kernels.lib.emulator_asked()
    call.run(kernels)
    assert asked > 0
    assert kernels.lib.emulator_asked() == asked
