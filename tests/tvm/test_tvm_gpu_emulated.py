"""The GPU schedule where threads exchange sums by shuffles: TVM's CUDA text, emulated."""

import ctypes
import dataclasses
import re

import numpy as np
import pytest

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

from rmsnorm_deploy.op import NormParameters, Op
from rmsnorm_deploy.tvm.schedules.gpu.choose import GpuSchedules
from rmsnorm_deploy.tvm.schedules.gpu.kept import Kept
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.targets.registry import GPUS
from tests.support import contract_cases
from tests.support.contract import BF16, COMBINATIONS, DTYPES, F16, F32, Call, ulp, values
from tests.support.tvm.cuda_runner import Cuda
from tests.support.tvm.gpu_kernels import GpuKernels, within
from tests.support.tvm.norms import norm_of


@pytest.fixture(scope="module")
def cuda():
    return Cuda()


@pytest.fixture(scope="module")
def cuda_without_xor():
    return Cuda(GpuSchedules(dataclasses.replace(GPUS["cuda"], shuffles_by_xor=False)))


@pytest.fixture
def kernels(cuda, monkeypatch):
    monkeypatch.setattr(contract_cases, "agrees", within)  # the bar of the tests that come from there
    return GpuKernels(cuda)


OF_WORDS = [
    "test_an_rms_without_a_reciprocal",
    "test_infinity_behind_the_measured_features_stays_infinity",
    "test_a_nan_with_every_bit_set_is_rounded_to_a_nan",
    "test_squares_beyond_float32_become_infinite",
    "test_rounding_to_sixteen_bits_is_to_nearest_even",
    "test_every_sixteen_bit_value",
    "test_float64_arithmetic_is_rounded_to_float16_once",
]
globals().update({name: getattr(contract_cases, name) for name in OF_WORDS})


@pytest.mark.parametrize("x_type", [F32, F16, BF16])
@pytest.mark.parametrize("size", [64, 100, 896, 4097, 16384])
def test_row_lengths(cuda, x_type, size):
    rng = np.random.default_rng(11)
    adds = size in (100, 896, 16384)
    for rows in (1, 3, 17) if size < 10_000 else (2,):
        call = Call(values(rng, (rows, size), x_type), values(rng, (size,), x_type), x_type, x_type, x_type)
        call.residual = values(rng, (rows, size), x_type) if adds else None
        within(call, *call.run(GpuKernels(cuda)))


@pytest.mark.parametrize(
    ("op", "x_type", "scale_type", "stash_type", "round_type"),
    [c for c in COMBINATIONS if c[3] == F32 and c[1] in (F16, BF16)],
)
def test_two_values_in_a_word(kernels, op, x_type, scale_type, stash_type, round_type):
    rng = np.random.default_rng(7)
    call = Call(
        *(values(rng, (5, 96), x_type), values(rng, (96,), scale_type), x_type, scale_type, round_type, stash_type),
        epsilon=1e-3,
    )
    if op == "AddRMSNorm":
        call.residual = values(rng, call.x.shape, x_type)
    if op == "GeneralRMSNorm":
        call.bias = values(rng, (96,), scale_type)
        call.epsilon_outside, call.rms_floor, call.partial_size = 0.125, 1.1, 17
    within(call, *call.run(kernels))


def test_float32_is_as_exact_as_with_a_division(cuda):
    """In units of each value itself; with divisions, 3.3 are seen here."""
    rng = np.random.default_rng(5)
    for size, rows in ((96, 400), (896, 100)):
        norm, scale = norm_of(size), rng.uniform(0.5, 2, (size,)).astype(np.float32)
        assert not Kept(norm, cuda.schedules.default(norm), cuda.schedules.gpu).divides
        for spread in (1, 1e-5, 1e-15, 1e15):
            x = (rng.standard_normal((rows, size)) * spread).astype(np.float32)
            x[::3] = rng.uniform(0.5, 4, (len(x[::3]), 1)).astype(np.float32) * np.float32(spread)
            call = Call(x, scale)
            y, _ = call.run(GpuKernels(cuda))
            wanted, _ = call.expected()
            assert (np.abs(y.astype(np.float64) - wanted) / ulp(np.abs(wanted), F32)).max() <= 3.3


@pytest.mark.parametrize("x_type", [F32, BF16])
@pytest.mark.parametrize("epsilon", [0.0, 0.25])
def test_an_estimate_of_a_root_of_nothing_or_infinity(cuda, x_type, epsilon):
    x = np.ones((6, 64), DTYPES[x_type])
    x[0, 5], x[1, 7], x[2], x[3] = np.nan, np.inf, 0, 2e19
    x[4] = 1e-20
    call = Call(x, np.ones(64, DTYPES[x_type]), x_type, x_type, x_type, epsilon=epsilon)
    y, _ = call.run(GpuKernels(cuda))
    y = y.astype(np.float64)
    assert np.isnan(y[0]).all()
    assert np.isnan(y[1, 7])
    assert (np.delete(y[1], 7) == 0).all()
    assert np.isnan(y[2]).all() if epsilon == 0.0 else (y[2] == 0).all()
    assert (y[3] == 0).all()  # its squares are infinite in float32
    np.testing.assert_allclose(y[4], 1.0 if epsilon == 0.0 else 2e-20, rtol=0.05)
    np.testing.assert_allclose(y[5], 1 / np.sqrt(1 + epsilon), rtol=0.01)


class Asked(Cuda):
    """Tells how often a thread took the way of whole vectors."""

    def compiled(self, source):
        source, count = re.subn(r"(== \(uint\)0\) \{)", r"\1 ++whole_vectors;", source)
        assert count == 2
        at = source.index('extern "C" __global__')
        counter = 'extern "C" __global__ int whole_vectors; int whole_vectors = 0;\n'
        library, names = super().compiled(source[:at] + counter + source[at:])
        self.taken = ctypes.c_int.in_dll(library, "whole_vectors")
        return library, names


@pytest.fixture(scope="module")
def asked():
    return Asked()


@pytest.mark.parametrize("x_type", [F32, F16, BF16])
@pytest.mark.parametrize("op", [Op.RMS_NORM, Op.ADD_RMS_NORM])
def test_a_size_known_at_run_time_only(asked, x_type, op):
    """By whole vectors where they divide the row and all tensors begin at a multiple of 16 bytes, and else not."""
    rng = np.random.default_rng(19)
    norm = norm_of(None, x_type, op)
    for size, moved in ((37, ""), (100, ""), (104, ""), (4096, ""), (4097, ""), (128, "X"), (128, "W"), (128, "Y")):
        call = Call(values(rng, (3, size), x_type), values(rng, (size,), x_type), x_type, x_type, x_type)
        residual = [values(rng, call.x.shape, x_type)] if norm.adds else []
        outputs = [np.empty_like(call.x) for _ in op.outputs]
        asked.shifts = {moved: call.x.itemsize} if moved else {}
        asked.kernel(norm)
        before = asked.taken.value
        asked.run(norm, [call.x, *residual, call.scale, *outputs])
        lanes = asked.schedules.default(norm).lanes
        assert (asked.taken.value > before) == (size % lanes == 0 and not moved), (size, moved)
        call.residual = residual[0] if residual else None
        within(call, outputs[0], outputs[1] if norm.adds else None)


def test_no_rows_at_all(cuda):
    norm = Norm(NormParameters(Op.RMS_NORM, F32, epsilon=1e-6), "float32", 64)
    x = np.ones((0, 64), np.float32)
    cuda.run(norm, [x, np.ones(64, np.float32), x.copy()])


def test_a_row_that_is_streamed_and_one_that_is_a_column(cuda):
    rng = np.random.default_rng(13)
    call = Call(values(rng, (2, 40_000), F32), values(rng, (40_000,), F32), residual=values(rng, (2, 40_000), F32))
    within(call, *call.run(GpuKernels(cuda)))
    call = Call(values(rng, (2, 41, 33), F32), values(rng, (41, 1), F32), axes=(1,), bias=values(rng, (41, 1), F32))
    call.partial_size = 20
    within(call, *call.run(GpuKernels(cuda)))


@pytest.mark.parametrize("target", ["metal", "rocm"])
@pytest.mark.parametrize("size", [64, 2000])
def test_the_exchange_without_exclusive_or(cuda_without_xor, target, size):
    """Those of Metal and ROCm, in CUDA's text."""
    rng = np.random.default_rng(17)
    norm = Norm(NormParameters(Op.RMS_NORM, F32, epsilon=1e-6), "float32", size)
    assert not GPUS[target].shuffles_by_xor
    schedule = GpuSchedules(GPUS[target]).default(norm)
    assert schedule.warp > 1
    call = Call(values(rng, (3, size), F32), values(rng, (size,), F32))
    within(call, *call.run(GpuKernels(cuda_without_xor, schedule)))
