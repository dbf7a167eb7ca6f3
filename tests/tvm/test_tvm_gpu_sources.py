"""What TVM writes for each GPU from the schedule: widths of accesses, barriers, exact constants, sizes of blocks."""

import dataclasses
import math
import re
import struct

import pytest

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

from rmsnorm_deploy.op import Op
from rmsnorm_deploy.op.dtypes import float_type
from rmsnorm_deploy.tvm.schedules.gpu.choose import GpuSchedules
from rmsnorm_deploy.tvm.targets.registry import GPUS
from rmsnorm_deploy.tvm.targets.resolve import resolve
from tests.support.contract import BF16, F16, F32, F64
from tests.support.tvm.gpu_runners import built
from tests.support.tvm.norms import norm_of

KINDS = ["cuda", "opencl", "metal", "webgpu"]  # for ROCm, TVM writes machine code, with an installation of ROCm only
BARRIER = r"__syncthreads\(\)|barrier\(CLK_LOCAL|threadgroup_barrier\(|workgroupBarrier\(\)"
SHARED_BYTES = 16384
"""What a block has on every device of every kind."""
SIZES = [64, 100, 128, 896, 4096, 4097, 8192]


def body_of(kind, norm, schedule=None):
    """The kernel's text without what TVM writes in front of every kernel."""
    _, module = built(norm, resolve(kind), schedule)
    source = module.imports[0].inspect_source()
    start = source.index("fn norm_kernel") if kind == "webgpu" else source.rindex("norm_kernel(")
    return source[start:]


def types_of(kind):
    return [t for t in (F32, F16, BF16) if float_type(t).name in GPUS[kind].dtypes]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", [Op.RMS_NORM, Op.ADD_RMS_NORM])
@pytest.mark.parametrize("size", [*SIZES, 100_000, None])
def test_two_barriers_at_most(kind, op, size):
    for dtype in types_of(kind):
        norm = norm_of(size, dtype, op)
        schedule = GpuSchedules(GPUS[kind]).default(norm)
        found = len(re.findall(BARRIER, body_of(kind, norm)))
        if schedule.warp > 1:  # one, and none where a warp has the row to itself
            assert found == (schedule.threads > schedule.warp)
        else:
            assert 1 <= found <= 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_a_row_is_read_once(kind, size):
    for dtype in types_of(kind):
        norm = norm_of(size, dtype)
        schedule = GpuSchedules(GPUS[kind]).default(norm)
        body = body_of(kind, norm)
        assert schedule.vectors > 0
        x = r"\bX_(?:vectors_)?ptr\b"
        accesses = len(re.findall(x, body)) - len(re.findall(x, body[: body.index("{")]))
        lanes = schedule.lanes if kind == "webgpu" else 1  # WGSL's arrays are read value by value
        assert accesses == schedule.vectors * lanes


VECTORS = {
    ("cuda", F32): r"\*\(float4\*\)\(X_ptr",
    ("cuda", F16): r"\*\(uint4\*\)\(X_vectors_ptr",
    ("cuda", BF16): r"\*\(uint4\*\)\(X_vectors_ptr",
    ("opencl", F32): r"vload4\(0, X_ptr",
    ("opencl", F16): r"vload8\(0, X_ptr",
    ("opencl", BF16): r"vload8\(0, X_ptr",
    ("metal", F32): r"\(device float4\*\)\(X_ptr",
    ("metal", F16): r"\(device half4\*\)\(X_ptr",
    ("metal", BF16): r"\(device ushort4\*\)\(X_ptr",
    ("webgpu", F32): r"vec4<f32>\(X_ptr",
    ("webgpu", F16): r"vec4<f16>\(X_ptr",
}


@pytest.mark.parametrize(("kind", "dtype"), VECTORS)
def test_the_widest_accesses(kind, dtype):
    for size in (128, 4096):
        body = body_of(kind, norm_of(size, dtype))
        assert re.search(VECTORS[kind, dtype], body), body
        assert GpuSchedules(GPUS[kind]).default(norm_of(size, dtype)).lanes == min(
            GPUS[kind].vector_lanes, 16 // float_type(dtype).itemsize
        )


@pytest.mark.parametrize(("kind", "shuffle"), [("cuda", "__shfl_xor_sync"), ("metal", "simd_shuffle_down")])
def test_threads_exchange_sums_without_memory_where_they_can(kind, shuffle):
    assert shuffle in body_of(kind, norm_of(4096))
    small = body_of(kind, norm_of(64))
    assert shuffle in small
    assert "partial" not in small


@pytest.mark.parametrize("kind", [*KINDS, "rocm"])
def test_blocks_within_the_limits(kind):
    gpu = GPUS[kind]
    for size in (*SIZES, 1, 9, 33, 1000, 16384, 100_000, None):
        for dtype in types_of(kind):
            for columns in (False, True):
                norm = dataclasses.replace(norm_of(size, dtype), columns=columns)
                for s in GpuSchedules(gpu).candidates(norm):
                    threads = s.threads * s.rows
                    assert threads <= gpu.threads
                    assert threads % 32 == 0  # whole warps: every thread takes part in every exchange
                    assert s.lanes * float_type(dtype).itemsize <= gpu.vector_bytes
                    shared = 4 * s.rows * (s.threads if s.warp == 1 else math.ceil(s.threads / s.warp))
                    assert 2 * shared <= SHARED_BYTES
                    if size:
                        assert size % s.lanes == 0
                        assert s.vectors == 0 or s.vectors * s.threads * s.lanes >= size


@pytest.mark.parametrize("kind", KINDS)
def test_constants_keep_all_their_digits(kind):
    """TVM writes seven, which is too few for a float."""
    epsilon = struct.unpack("f", struct.pack("f", 1.2345678e-5))[0]
    bits = struct.unpack("I", struct.pack("f", epsilon))[0]
    body = body_of(kind, norm_of(128, op=Op.GENERAL_RMS_NORM, epsilon_outside=epsilon, rms_floor=0.5))
    numbers = [float(t) for t in re.findall(r"\d\.\d+e[+-]\d+", body)] + [
        float.fromhex(t) for t in re.findall(r"0x1[.\da-f]*p[+-]\d+", body)
    ]
    assert str(bits) in body or f"{bits:#x}" in body or epsilon in numbers


@pytest.mark.parametrize(
    ("kind", "norm", "said"),
    [
        ("webgpu", norm_of(64, F64, stash_type=F64), "WebGPU has no float64, which is the type of the values of norm"),
        ("metal", norm_of(64, F32, stash_type=F64), "Metal has no float64, which is the type of the statistics of"),
        ("webgpu", norm_of(64, BF16), "WebGPU has no bfloat16"),
        ("webgpu", norm_of(64, F16, scale_dtype=BF16), "scale of norm rms_norm_rows_64_float16"),
    ],
)
def test_types_that_a_gpu_lacks_are_refused_with_the_norms_name(kind, norm, said):
    refusal = GpuSchedules(GPUS[kind]).refusal(norm)
    assert said in refusal.reason
    assert norm.name in refusal.reason
    assert refusal.hint.startswith("Convert the model to float32 or float16")
