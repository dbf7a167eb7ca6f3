"""The GPU schedule against float64, without a GPU: the kernels' contract on what TVM writes for OpenCL and WebGPU."""

import re

import numpy as np
import pytest

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

from rmsnorm_deploy.op import NormParameters, Op
from rmsnorm_deploy.tvm.schedules.gpu.grid import GpuSchedule
from rmsnorm_deploy.tvm.schedules.norm import Norm
from tests.support import contract_cases
from tests.support.contract import BF16, COMBINATIONS, F16, F32, F64, Call, values
from tests.support.tvm.gpu_kernels import GpuKernels, within
from tests.support.tvm.gpu_runners import OpenCL, WebGPU
from tests.support.tvm.kernels import SHARED

SIZES = [64, 100, 128, 896, 4096, 4097, 8192]


@pytest.fixture(scope="module")
def opencl():
    return OpenCL()


@pytest.fixture(scope="module")
def webgpu():
    return WebGPU()


@pytest.fixture(params=["opencl", "webgpu"])
def kernels(request, monkeypatch):
    monkeypatch.setattr(contract_cases, "agrees", within)  # the bar of the tests that come from there
    return GpuKernels(request.getfixturevalue(request.param))


def devices(*types):
    """The devices that have all types: PoCL has no half precision on a CPU, WGSL neither float64 nor bfloat16."""
    return ["opencl"] * (F16 not in types) + ["webgpu"] * (F64 not in types and BF16 not in types)


# Each length with each type on each device, and with and without a residual by turns: it is one more term of each load,
# and test_every_schedule_that_tuning_tries has one too. Neighbours in a row of SIZES, and devices of a type, differ.
@pytest.mark.parametrize(
    ("kernels", "x_type", "size", "adds"),
    [
        (kind, t, size, (i + j + k) % 2 == 1)
        for j, t in enumerate((F32, F16, BF16))
        for k, kind in enumerate(devices(t))
        for i, size in enumerate(SIZES)
    ],
    indirect=["kernels"],
)
def test_row_lengths(kernels, x_type, size, adds):
    rng = np.random.default_rng(11)
    for rows in (1, 3, 257) if size < 1000 else (1, 3):
        call = Call(values(rng, (rows, size), x_type), values(rng, (size,), x_type), x_type, x_type, x_type)
        if adds:
            call.residual = values(rng, (rows, size), x_type)
        within(call, *call.run(kernels))


globals().update({name: getattr(contract_cases, name) for name in SHARED})


@pytest.mark.parametrize(
    ("kernels", "op", "x_type", "scale_type", "stash_type", "round_type"),
    [(kind, *c) for c in COMBINATIONS for kind in devices(*c[1:])],
    indirect=["kernels"],
)
def test_every_combination_of_types(kernels, op, x_type, scale_type, stash_type, round_type):
    rng = np.random.default_rng(7)
    shape = (2, 21, 5) if op == "GeneralRMSNorm" and round_type == x_type else (5, 96)
    scale = values(rng, (shape[1],) + (1,) * (len(shape) - 2), scale_type)
    x = values(rng, shape, x_type)
    call = Call(x, scale, x_type, scale_type, round_type, stash_type, (1,), epsilon=1e-3)
    if op == "AddRMSNorm":
        call.residual = values(rng, shape, x_type)
    if op == "GeneralRMSNorm":
        call.bias = values(rng, scale.shape, scale_type)
        call.epsilon_outside, call.rms_floor, call.partial_size = 0.125, 1.1, 17
    within(call, *call.run(kernels))


@pytest.mark.parametrize("shape", [(3, 8), (3, 1000), (2, 8, 5)])
def test_scales_that_vary_from_row_to_row(kernels, shape):
    rng = np.random.default_rng(17)
    for dims in (shape, (shape[0],) + (1,) * (len(shape) - 1)):
        call = Call(values(rng, shape, F32), values(rng, dims, F32), axes=(1,), bias=values(rng, dims, F32))
        within(call, *call.run(kernels))


@pytest.mark.parametrize("inner", [2, 31, 32, 33, 100])
def test_columns(kernels, inner):
    rng = np.random.default_rng(13)
    for size in (1, 8, 41):
        for adds in (False, True):
            call = Call(values(rng, (2, size, inner), F32), values(rng, (size, 1), F32), axes=(1,))
            if adds:
                call.residual = values(rng, call.x.shape, F32)
            else:
                call.bias, call.partial_size = values(rng, (size, 1), F32), max(1, size // 2)
            within(call, *call.run(kernels))


@pytest.mark.parametrize(
    ("op", "shape", "axis", "size"),
    [
        (Op.RMS_NORM, (2, 3, 100), -1, 100),
        (Op.ADD_RMS_NORM, (2, 1, 3, 128), -1, 128),
        (Op.RMS_NORM, (2, 3, 37), -1, None),
        (Op.RMS_NORM, (3, 2, 9000), -1, 9000),
        (Op.ADD_RMS_NORM, (2, 3, 12, 7, 5), 2, 12),
    ],
)
def test_tensors_of_any_rank(kernels, op, shape, axis, size):
    rng = np.random.default_rng(37)
    outer = axis % len(shape)
    inner = len(shape) - 1 - outer
    norm = Norm(
        NormParameters(op, F32, epsilon=1e-6), "float32", size, bool(inner), outer_rank=outer, inner_rank=max(1, inner)
    )
    scale = values(rng, (shape[axis],), F32)
    call = Call(values(rng, shape, F32), scale.reshape(-1, *(1,) * inner), axes=(outer,))
    residual = [values(rng, shape, F32)] if norm.adds else []
    outputs = [np.empty_like(call.x) for _ in op.outputs]
    kernels.runner.run(norm, [call.x, *residual, scale, *outputs])
    call.residual = residual[0] if residual else None
    within(call, outputs[0], outputs[1] if norm.adds else None)


@pytest.mark.parametrize("columns", [False, True])
def test_no_rows_at_all(kernels, columns):
    norm = Norm(NormParameters(Op.RMS_NORM, F32, epsilon=1e-6), "float32", 40, columns)
    for shape in ((0, 40, 3), (2, 40, 0)) if columns else ((0, 40),):
        x = np.ones(shape, np.float32)
        kernels.runner.run(norm, [x, np.ones(40, np.float32), x.copy()])


@pytest.mark.parametrize("size", [1, 37, 4097])
def test_a_size_known_at_run_time_only(kernels, size):
    rng = np.random.default_rng(19)
    for op, columns in ((Op.RMS_NORM, False), (Op.ADD_RMS_NORM, False), (Op.RMS_NORM, True)):
        norm = Norm(NormParameters(op, F32, epsilon=1e-6), "float32", None, columns)
        shape = (3, size, 5) if columns else (3, size)
        call = Call(values(rng, shape, F32), values(rng, (size,), F32), axes=(1,))
        residual = [values(rng, shape, F32)] if norm.adds else []
        outputs = [np.empty_like(call.x) for _ in op.outputs]
        kernels.runner.run(norm, [call.x, *residual, call.scale, *outputs])
        call.scale = call.scale.reshape(-1, 1) if columns else call.scale
        call.residual = residual[0] if residual else None
        within(call, outputs[0], outputs[1] if norm.adds else None)


@pytest.mark.parametrize("size", [100, 896])
def test_every_schedule_that_tuning_tries(kernels, size):
    rng = np.random.default_rng(23)
    call = Call(values(rng, (5, size), F32), values(rng, (size,), F32), residual=values(rng, (5, size), F32))
    norm = Norm(NormParameters(Op.ADD_RMS_NORM, F32, epsilon=1e-6), "float32", size)
    schedules = kernels.runner.schedules.candidates(norm)
    assert schedules[0] == kernels.runner.schedules.default(norm)
    assert len(schedules) == len(set(schedules)) > 4
    for schedule in schedules:
        within(call, *call.run(GpuKernels(kernels.runner, schedule)))


def test_more_rows_than_a_grid_has_blocks_in_one_dimension(webgpu):
    rng = np.random.default_rng(29)
    norm = Norm(NormParameters(Op.RMS_NORM, F32, epsilon=1e-6), "float32", 4)
    call = Call(values(rng, (70_000 * 3, 4), F32), values(rng, (4,), F32))
    one_row = GpuSchedule(4, 32, 1, 1, 1)
    y = np.full_like(call.x, 7)
    webgpu.run(norm, [call.x, call.scale, y], one_row)
    within(call, y, None)


def test_a_nan_survives_a_device_that_takes_it_for_any_number(kernels, monkeypatch):
    """WGSL leaves it to the device what becomes of a NaN that is compared; here the floor always wins over it."""
    compiled, changed = kernels.runner.compiled, []

    def careless(source):
        source, count = re.subn(r"if \(\(?(\w+\[0i?\]) < (4\.0+e\+00f)\)?\) \{", r"if (!(\1 >= \2)) {", source)
        changed.append(count)
        return compiled(source)

    monkeypatch.setattr(kernels.runner, "compiled", careless)
    monkeypatch.setattr(kernels.runner, "made", {})
    x = np.ones((4, 40), np.float32)
    x[0, 5] = np.nan
    x[1, 7] = np.inf
    call = Call(x, np.float32(1), bias=np.float32(-0.0), epsilon=0.125, rms_floor=4.0)
    y, _ = call.run(kernels)
    assert changed == [1]
    assert np.isnan(y[0]).all()
    assert np.isnan(y[1, 7])
    np.testing.assert_array_equal(y[2:], 0.25)
