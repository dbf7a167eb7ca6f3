"""NVIDIA's GPUs, from Turing on, which nvcc 13 can compile for."""

from __future__ import annotations

from typing import Any

from rmsnorm_deploy.tvm.targets.gpu import Gpu


def _architecture_of(device: Any) -> str:
    return f"sm_{str(device.compute_version).replace('.', '')}"


GPU = Gpu(
    kind="cuda",
    name="CUDA",
    threads=1024,
    runtime="TVM loads it where the libraries of an NVIDIA driver (libcuda.so.1) and of CUDA 13 (libcudart.so.13) are.",
    warp=32,
    shuffle_bits=64,
    shuffles_by_xor=True,
    rounds_bfloat16=True,
    architectures=(
        *("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90"),
        *("sm_100", "sm_103", "sm_110", "sm_120", "sm_121"),
    ),
    usual=("sm_80", "sm_90"),
    architecture_attribute="arch",
    several=True,
    architecture_of=_architecture_of,
    kernels_beside=True,
    products_as=(("kind", "cuda"), ("arch", "sm_60")),
)
