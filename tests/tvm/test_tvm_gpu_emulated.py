"""The GPU schedule where threads exchange sums by shuffles: TVM's CUDA text, emulated."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install 'rmsnorm-deploy[tvm]'")

from rmsnorm_deploy.op import NormParameters, Op
from rmsnorm_deploy.tvm.schedules.gpu.choose import GpuSchedules
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.targets.registry import GPUS
from tests.support.contract import BF16, F16, F32, Call, values
from tests.support.tvm.cuda_runner import Cuda
from tests.support.tvm.gpu_kernels import GpuKernels, within


@pytest.fixture(scope="module")
def cuda():
    return Cuda()


@pytest.fixture(scope="module")
def cuda_without_xor():
    return Cuda(GpuSchedules(dataclasses.replace(GPUS["cuda"], shuffles_by_xor=False)))


@pytest.mark.parametrize("x_type", [F32, F16, BF16])
@pytest.mark.parametrize("size", [64, 100, 896, 4097])
def test_row_lengths(cuda, x_type, size):
    rng = np.random.default_rng(11)
    adds = size in (100, 896)
    for rows in (1, 3, 17):
        call = Call(values(rng, (rows, size), x_type), values(rng, (size,), x_type), x_type, x_type, x_type)
        call.residual = values(rng, (rows, size), x_type) if adds else None
        within(call, *call.run(GpuKernels(cuda)))


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
