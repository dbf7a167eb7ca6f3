"""The CPU schedule against float64: the cases of the kernels' contract, run on what TVM compiles."""

import numpy as np
import pytest

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

import tvm
from tvm.target import codegen

from rmsnorm_deploy.op import NormParameters, Op
from rmsnorm_deploy.tvm.schedules.cpu.choose import CpuSchedules
from rmsnorm_deploy.tvm.schedules.cpu.writer import CpuSchedule
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.targets.resolve import resolve
from tests.support import contract_cases
from tests.support.contract import BF16, COMBINATIONS, F16, F32, F64, Call, agrees, ulp, values
from tests.support.tvm.kernels import SHARED, TvmKernels


@pytest.fixture(scope="module")
def kernels():
    return TvmKernels(CpuSchedule())


globals().update({name: getattr(contract_cases, name) for name in SHARED})


@pytest.mark.parametrize(("op", "x_type", "scale_type", "stash_type", "round_type"), COMBINATIONS)
def test_every_combination_of_types(kernels, op, x_type, scale_type, stash_type, round_type):
    rng = np.random.default_rng(7)
    shape = (2, 21, 5) if op == "GeneralRMSNorm" and stash_type == F32 else (5, 67)
    scale = values(rng, (shape[1],) + (1,) * (len(shape) - 2), scale_type)
    x = values(rng, shape, x_type)
    call = Call(x, scale, x_type, scale_type, round_type, stash_type, (1,), epsilon=1e-3)
    if op == "AddRMSNorm":
        call.residual = values(rng, shape, x_type)
    if op == "GeneralRMSNorm":
        call.bias = values(rng, scale.shape, scale_type)
        call.epsilon_outside, call.rms_floor, call.partial_size = 0.125, 1.1, 17
    agrees(call, *call.run(kernels))


@pytest.mark.parametrize("x_type", [F32, F16])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("size", [1, 9, 64, 127, 896, 4097])
def test_row_lengths(kernels, x_type, adds, size):
    rng = np.random.default_rng(11)
    call = Call(values(rng, (3, size), x_type), values(rng, (size,), x_type), x_type, x_type, x_type)
    if adds:
        call.residual = values(rng, (3, size), x_type)
    agrees(call, *call.run(kernels))


@pytest.mark.parametrize(
    "schedule",
    [
        CpuSchedule(lanes=16, batch=4),
        CpuSchedule(lanes=4, accumulators=3, serial_below=0, task_values=100, batch=8, stream_from=0),
        CpuSchedule(accumulators=1, serial_below=0, task_values=1, stream_from=1),
        CpuSchedule(lanes=16, serial_below=0, batch=2, stream_from=1 << 16),
    ],
)
@pytest.mark.parametrize(("size", "x_type"), [(100, F32), (2048, F32), (160, F16), (160, F64), (64, BF16)])
def test_every_choice_of_the_schedule_is_right_serial_parallel_and_streaming(schedule, size, x_type):
    rng = np.random.default_rng(13)
    own = TvmKernels(schedule)
    stash = F64 if x_type == F64 else F32
    for rows in (1, 2, 3, 64):
        x, residual = values(rng, (rows, size), x_type), values(rng, (rows, size), x_type)
        call = Call(x, values(rng, (size,), x_type), x_type, x_type, stash, stash)
        agrees(call, *call.run(own))
        call.residual = residual
        agrees(call, *call.run(own))


@pytest.mark.skipif(
    not any(codegen.llvm_cpu_has_features(f, resolve("llvm")) for f in ("fma", "neon")),
    reason="this CPU rounds a product before it adds to it",
)
def test_only_the_last_sum_of_the_normalised_value_is_rounded(kernels):
    """Many values, as few of them show a rounding more."""
    rng = np.random.default_rng(3)
    for shape in ((20000, 16), (20, 64, 128)):
        scale = values(rng, (shape[1],) + (1,) * (len(shape) - 2), F32)
        call = Call(values(rng, shape, F32), scale, axes=(1,))
        y, _ = call.run(kernels)
        wanted, _ = call.expected()
        largest = np.abs(wanted).max(axis=1, keepdims=True)
        assert (np.abs(y - wanted) / ulp(largest, F32)).max() < 1.6


def test_results_are_stored_past_the_caches_where_no_cache_holds_them():
    norm = Norm(NormParameters(Op.ADD_RMS_NORM, F32, scale_type=F32), "float32", 4096)
    for stream_from, wanted in ((1, True), (0, False)):
        made = CpuSchedules().kernel(norm, CpuSchedule(stream_from=stream_from)).with_attr("global_symbol", "norm")
        text = tvm.compile(tvm.IRModule({"norm": made}), target=resolve("llvm")).mod.inspect_source("ll")
        assert ("!nontemporal" in text) is wanted
        assert ("llvm.prefetch" in text) is wanted


@pytest.mark.parametrize("shape", [(3, 8), (2, 8, 5)])
def test_scales_that_vary_from_row_to_row(kernels, shape):
    rng = np.random.default_rng(17)
    for dims in (shape, (shape[0],) + (1,) * (len(shape) - 1)):
        call = Call(values(rng, shape, F32), values(rng, dims, F32), axes=(1,), bias=values(rng, dims, F32))
        agrees(call, *call.run(kernels))


def test_a_size_known_at_run_time_only():
    rng = np.random.default_rng(19)
    norm = Norm(NormParameters(Op.RMS_NORM, F32, epsilon=1e-6), "float32", None)
    function = TvmKernels(CpuSchedule()).function(norm)
    for size in (1, 37, 4097):
        call = Call(values(rng, (3, size), F32), values(rng, (size,), F32))
        y = tvm.runtime.tensor(np.empty_like(call.x))
        function(tvm.runtime.tensor(call.x), tvm.runtime.tensor(call.scale), y)
        agrees(call, y.numpy(), None)


def test_float64_sums_are_not_made_in_float32(kernels):
    call = Call(np.full((2, 64), 1 + 2.0**-30), np.array(1.0), F64, F64, F64, F64, epsilon=0.0)
    call.residual = np.full((2, 64), 2.0**-40)
    _, total = call.run(kernels)
    np.testing.assert_array_equal(total, call.x + call.residual)
