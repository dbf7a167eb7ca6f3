"""The kernels' C contract on a GPU, as ctypes sees it: the headers in ops/include. Needs no package."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

MAX_RANK = 16
ALL = 2**63 - 1
FLOAT32, FLOAT16, BFLOAT16 = 1, 10, 16
INT8 = 3
SIGMOID, SILU = 0, 1
"""Activations of a gate."""
TYPES = {"float32": FLOAT32, "float16": FLOAT16, "bfloat16": BFLOAT16}
BYTES = {FLOAT32: 4, FLOAT16: 2, BFLOAT16: 2}
VERSION = 2
FIRST_FLOATS = {"epsilon": 0.0, "epsilon_outside": 0.0, "rms_floor": 0.0}
LAST_FLOATS: dict[str, float] = {}
FLOATS = FIRST_FLOATS | LAST_FLOATS
"""The attributes that are floats, in the header's order, each with its neutral value; the last ones end the struct."""
ROW_TENSORS = ("x", "residual", "y", "sum", "quantised")
"""The tensors that can have strides, in the order of the bits of ``strided``."""


class Params(ctypes.Structure):
    """``rms_norm_params``, for the tests too: `tests/kernels/cpu/test_layout.py` compares it with the header."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("x_type", ctypes.c_int32),
        ("scale_type", ctypes.c_int32),
        ("round_type", ctypes.c_int32),
        ("stash_type", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("axis_begin", ctypes.c_int32),
        ("axis_count", ctypes.c_int32),
        ("x", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("sum", ctypes.c_void_p),
        ("shape", ctypes.c_int64 * MAX_RANK),
        ("scale_strides", ctypes.c_int64 * MAX_RANK),
        ("bias_strides", ctypes.c_int64 * MAX_RANK),
        ("partial_size", ctypes.c_int64),
        *((name, ctypes.c_float) for name in FIRST_FLOATS),
        ("y_type", ctypes.c_int32),
        ("quantised_type", ctypes.c_int32),
        ("quantised_scale_type", ctypes.c_int32),
        ("quotient_type", ctypes.c_int32),
        ("quantised_by_row", ctypes.c_int32),
        ("strided", ctypes.c_int32),
        ("quantised", ctypes.c_void_p),
        ("quantised_scale", ctypes.c_void_p),
        ("zero_point", ctypes.c_void_p),
        ("least", ctypes.c_void_p),
        ("most", ctypes.c_void_p),
        *((f"{name}_strides", ctypes.c_int64 * MAX_RANK) for name in ROW_TENSORS),
        *((name, ctypes.c_float) for name in LAST_FLOATS),
    )


class Gate(ctypes.Structure):
    """``rms_norm_gate``."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("type", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("place", ctypes.c_int32),
        ("gate", ctypes.c_void_p),
    )


GATE_VERSION = 1


def params(data_type: int, shape: Sequence[int], axis: int, epsilon: float) -> Params:
    """A call that normalises one dimension, with a scale (and bias) for each of its places; pointers are to be set."""
    p = Params(version=VERSION, stash_type=FLOAT32, **FLOATS)
    p.x_type = p.scale_type = p.round_type = data_type
    p.rank, p.axis_begin, p.axis_count = len(shape), axis, 1
    p.shape[: len(shape)] = shape
    p.scale_strides[axis] = p.bias_strides[axis] = 1
    p.partial_size, p.epsilon = ALL, epsilon
    return p


class Kernels:
    """The library's functions for a GPU."""

    def __init__(self, path: str | Path) -> None:
        self.lib = ctypes.CDLL(str(path))
        self.lib.rmsnorm_deploy_cuda_run.argtypes = [ctypes.POINTER(Params), ctypes.c_void_p]
        self.lib.rmsnorm_deploy_cuda_run_gated.argtypes = [
            ctypes.POINTER(Params),
            ctypes.POINTER(Gate),
            ctypes.c_void_p,
        ]
        self.lib.rmsnorm_deploy_cuda_error_text.restype = ctypes.c_char_p
        self.lib.rmsnorm_deploy_cuda_architectures.restype = ctypes.c_char_p

    @property
    def architectures(self) -> str:
        return self.lib.rmsnorm_deploy_cuda_architectures().decode()

    def code(self, p: Params, stream: int | None = None, gate: Gate | None = None) -> int:
        if gate is not None:
            return self.lib.rmsnorm_deploy_cuda_run_gated(ctypes.byref(p), ctypes.byref(gate), stream)
        return self.lib.rmsnorm_deploy_cuda_run(ctypes.byref(p), stream)

    def text(self, code: int) -> str:
        return self.lib.rmsnorm_deploy_cuda_error_text(code).decode()

    def launch(self, p: Params, stream: int | None = None, gate: Gate | None = None) -> None:
        if code := self.code(p, stream, gate):
            raise RuntimeError(f"the launch failed with {code}: {self.text(code)}")
