"""The CPU schedule against float64: the cases of the kernels' contract, run on what TVM compiles."""

import ctypes

import numpy as np
import pytest

# the folder that this file is in would pass for an empty package "tvm"
pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install 'rmsnorm-deploy[tvm]'")

import test_contract
import tvm
from test_contract import ALL, BF16, COMBINATIONS, DTYPES, F16, F32, F64, Call, agrees, values
from tvm.target import codegen

from rmsnorm_deploy.op import NormParameters, Op
from rmsnorm_deploy.tvm.schedules.cpu.choose import CpuSchedules
from rmsnorm_deploy.tvm.schedules.cpu.writer import CpuSchedule
from rmsnorm_deploy.tvm.schedules.norm import DTYPES as NAMES
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.targets.resolve import resolve


class TvmKernels:
    """The kernels' C contract, answered by compiled schedules, so that the contract's own tests can run on them."""

    def __init__(self, schedule):
        self.schedule = schedule
        self.made = {}

    def rmsnorm_deploy_error_text(self, code):
        return str(code)

    def rmsnorm_deploy_cpu_run(self, reference):
        p = reference._obj
        shape = tuple(p.shape[: p.rank])
        end = p.axis_begin + p.axis_count
        size = int(np.prod(shape[p.axis_begin : end]))
        columns = int(np.prod(shape[end:])) != 1
        flat = (int(np.prod(shape[: p.axis_begin])), size, int(np.prod(shape[end:])))[: 3 if columns else 2]

        def array(pointer, dtype, dims, strides=None):
            count = (
                int(np.prod(dims))
                if strides is None
                else 1 + sum(s * (d - 1) for s, d in zip(strides, dims, strict=True))
            )
            memory = (ctypes.c_char * (max(count, 0) * np.dtype(dtype).itemsize)).from_address(pointer)
            found = np.frombuffer(memory, dtype)
            if strides is None:
                return found.reshape(dims)
            return np.lib.stride_tricks.as_strided(found, dims, [s * found.itemsize for s in strides])

        def parameter(pointer, strides):
            full = array(pointer, DTYPES[p.scale_type], shape, strides)
            outside = [s for i, s in enumerate(strides) if not p.axis_begin <= i < end]
            if any(outside):
                return full.reshape(flat), True
            return full[(0,) * p.axis_begin].reshape(size, -1)[:, 0], False

        dtype = DTYPES[p.x_type]
        general = bool(p.bias) or p.partial_size != ALL or p.epsilon_outside or p.rms_floor
        if general and p.residual:
            pytest.skip("no operator has both a residual and a bias")
        op = Op.GENERAL_RMS_NORM if general else Op.ADD_RMS_NORM if p.residual else Op.RMS_NORM
        arguments = [array(p.x, dtype, flat)] + ([array(p.residual, dtype, flat)] if p.residual else [])
        scale, full_scale = parameter(p.scale, p.scale_strides[: p.rank])
        arguments.append(scale)
        full_bias = False
        if general:
            bias, full_bias = np.full((size,), -0.0, DTYPES[p.scale_type]), False
            if p.bias:
                bias, full_bias = parameter(p.bias, p.bias_strides[: p.rank])
            arguments.append(bias)
        parameters = NormParameters(
            op,
            p.x_type,
            (-1,),
            p.epsilon,
            p.stash_type,
            p.round_type,
            p.epsilon_outside,
            p.rms_floor,
            None if p.partial_size == ALL else p.partial_size,
        )
        norm = Norm(parameters, NAMES[p.scale_type], size, columns, full_scale, full_bias)
        outputs = [tvm.runtime.tensor(np.zeros(flat, dtype)) for _ in op.outputs]
        self.function(norm)(*(tvm.runtime.tensor(np.ascontiguousarray(a)) for a in arguments), *outputs)
        for pointer, result in zip((p.y, p.sum), outputs, strict=False):
            if pointer:
                array(pointer, dtype, flat)[...] = result.numpy()
        return 0

    def function(self, norm):
        if norm not in self.made:
            kernel = CpuSchedules().kernel(norm, self.schedule).with_attr("global_symbol", "norm")
            self.made[norm] = tvm.compile(tvm.IRModule({"norm": kernel}), target=resolve("llvm"))
        return self.made[norm]["norm"]


@pytest.fixture(scope="module")
def kernels():
    return TvmKernels(CpuSchedule())


SHARED = [
    "test_a_long_row_stays_exact",
    "test_long_columns_stay_exact",
    "test_small_and_large_values",
    "test_an_rms_without_a_reciprocal",
    "test_nan_infinity_and_zero",
    "test_infinity_behind_the_measured_features_stays_infinity",
    "test_a_nan_with_every_bit_set_is_rounded_to_a_nan",
    "test_squares_beyond_float32_become_infinite",
    "test_every_sixteen_bit_value",
    "test_rounding_to_sixteen_bits_is_to_nearest_even",
    "test_the_two_rounding_orders_differ",
    "test_float64_arithmetic_is_rounded_to_float16_once",
    "test_the_same_bytes_every_time_and_beside_any_rows",
]
globals().update({name: getattr(test_contract, name) for name in SHARED})


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
        assert (np.abs(y - wanted) / test_contract.ulp(largest, F32)).max() < 1.6


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
