"""What each kind of GPU has: the one place for numbers that a schedule depends on."""

from __future__ import annotations

import dataclasses
from typing import Any

from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.tvm.schedules.norm import Norm


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a schedule may use.

    Attributes:
        name: what the programming interface is called.
        vector_bytes: the widest access to memory.
        vector_lanes: most values in one access.
        threads: most threads in a block.
        warp: threads that exchange values without memory, of every device of this kind; 1 where there is no such way.
        shared_bytes: shared memory of a block.
        blocks: most blocks of one launch; what is beyond is the runtime's business, or no tensor is that large.
        dtypes: types that it can compute with or store.
    """

    name: str
    vector_bytes: int
    vector_lanes: int
    threads: int
    warp: int
    shared_bytes: int
    blocks: int
    dtypes: tuple[str, ...]


_ALL = ("float32", "float16", "bfloat16", "float64")

LIMITS = {
    # A warp is 32 threads on every NVIDIA GPU; 48 KB of shared memory need no opting in.
    "cuda": Limits("CUDA", 16, 8, 1024, 32, 49152, 2**31 - 1, _ALL),
    # 32 threads exchange values on cards with wavefronts of 32 and of 64. The runtime of TVM's target launches 256.
    "rocm": Limits("ROCm", 16, 8, 256, 32, 65536, 2**31 - 1, _ALL),
    # Shuffles are an extension; half and double are too, and TVM's text asks for them.
    "opencl": Limits("OpenCL", 16, 8, 256, 1, 16384, 2**31 - 1, _ALL),
    # TVM's source has vectors of at most four values. 16 threads is what TVM's target says of a simdgroup; the true
    # 32 of Apple's GPUs hold two such groups.
    "metal": Limits("Metal", 16, 4, 256, 16, 32768, 2**31 - 1, ("float32", "float16", "bfloat16")),
    # WGSL has neither 16-bit integers, in which TVM keeps bfloat16, nor float64. Beyond 65535 blocks TVM's runtime
    # counts on in the third dimension, and its source undoes that.
    "webgpu": Limits("WebGPU", 16, 4, 256, 1, 16384, 65535 * 65535, ("float32", "float16")),
}
"""By the kind of TVM's target."""


def limits_of(target: Any) -> Limits:
    """Those of a ``tvm.target.Target``."""
    return LIMITS[str(target.kind.name)]


def check_types(norm: Norm, limits: Limits) -> None:
    """Refuse a norm with a type that the GPU's language lacks.

    Raises:
        ModelError: naming the norm and the type.
    """
    for what, dtype in (
        ("values", norm.dtype),
        ("statistics", norm.stash),
        ("scale", norm.scale_dtype),
        ("rounding", norm.rounding),
    ):
        if dtype not in limits.dtypes:
            raise ModelError(
                f"{limits.name} has no {dtype}, which is the type of the {what} of norm {norm.name}",
                f"Convert the model to {' or '.join(limits.dtypes[:2])}, or name another target.",
            )
