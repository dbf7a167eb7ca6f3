"""The GPU schedule in the place of the library of kernels, run by a runner; and how far float32 may be off there."""

import dataclasses

import numpy as np
import pytest

from tests.support.contract import BF16, F16, F32, agrees, ulp
from tests.support.tvm.kernels import TvmKernels

UNITS = 3.5
"""ULP that float32 may be off. OpenCL and WebGPU let a division alone be off by 2.5; all of it was seen off by 2.8."""


class GpuKernels(TvmKernels):
    """The contract, answered by a runner."""

    def __init__(self, runner, schedule=None):
        super().__init__(schedule)
        self.runner = runner

    def function(self, norm):
        needs(self, norm)

        def call(*tensors):
            arrays = [np.array(t.numpy(), order="C") for t in tensors]
            self.runner.run(norm, arrays, self.schedule)
            for tensor, array in zip(tensors, arrays, strict=True):
                tensor.copyfrom(array)

        return call


def needs(kernels, norm):
    """Skip where the device or its language, not the schedule, lacks a type."""
    types = {norm.dtype, norm.scale_dtype, norm.stash, norm.rounding}
    if kernels.runner.kind == "opencl" and "float16" in types:
        pytest.skip("PoCL has no half precision on a CPU: float16 runs on WebGPU")
    if kernels.runner.kind == "webgpu" and types & {"float64", "bfloat16"}:
        pytest.skip("WGSL has neither float64 nor bfloat16: they run on OpenCL")
    if kernels.runner.kind == "webgpu" and "float16" in types and not kernels.runner.features:
        pytest.skip("this lavapipe lacks shader-f16: the one of Mesa 22.3 has it")


def within(call, y, total, units=UNITS):
    """Within ``units`` ULP of the row's largest value in float32, rounded once in 16 bits; sums bit for bit."""
    if call.x_type in (F16, BF16):
        agrees(call, y, total)
        return
    wanted, wanted_sum = call.expected()
    if total is not None:
        np.testing.assert_array_equal(total, wanted_sum)
    largest = np.abs(wanted).max(axis=tuple(call.axes), keepdims=True)
    if call.bias is not None:
        unbiased, _ = dataclasses.replace(call, bias=None).expected()
        largest = np.maximum(largest, np.abs(unbiased).max(axis=tuple(call.axes), keepdims=True))
    assert (np.abs(y.astype(np.float64) - wanted) / ulp(largest, F32)).max(initial=0) <= units
