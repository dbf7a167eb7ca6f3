"""Schedules in the place of the library of kernels, so that the cases of the contract run on what TVM compiles."""

import ctypes

import numpy as np
import pytest
import tvm

from benchmarks.gpu.contract import FLOATS
from rmsnorm_deploy.op import NormParameters, Op, attribute_names
from rmsnorm_deploy.op.dtypes import float_type
from rmsnorm_deploy.tvm.schedules.cpu.choose import CpuSchedules
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.targets.resolve import resolve
from tests.support.contract import ALL, DTYPES


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
        attributes = {name: getattr(p, name) for name in FLOATS if getattr(p, name) != FLOATS[name]}
        attributes |= {} if p.partial_size == ALL else {"partial_size": p.partial_size}
        op = next((op for op in Op if _has(op, p, attributes)), None)
        if op is None:
            pytest.skip("no operator has all of that")
        arguments = [array(p.x, dtype, flat)] + ([array(p.residual, dtype, flat)] if p.residual else [])
        scale, full_scale = parameter(p.scale, p.scale_strides[: p.rank])
        arguments.append(scale)
        full_bias = False
        if "bias" in op.inputs:
            bias, full_bias = np.full((size,), -0.0, DTYPES[p.scale_type]), False
            if p.bias:
                bias, full_bias = parameter(p.bias, p.bias_strides[: p.rank])
            arguments.append(bias)
        parameters = NormParameters(op, p.x_type, stash_type=p.stash_type, scale_type=p.round_type, **attributes)
        norm = Norm(parameters, float_type(p.scale_type).name, size, columns, full_scale, full_bias)
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


def _has(op, call, attributes):
    """Whether an operator has the inputs and attributes of a call."""
    if ("residual" in op.inputs) != bool(call.residual) or (call.bias and "bias" not in op.inputs):
        return False
    return attributes.keys() <= set(attribute_names(op))


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
