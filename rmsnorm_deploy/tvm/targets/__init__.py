"""What models are compiled for: processors, their limits and their devices."""

from rmsnorm_deploy.tvm.targets.target import (
    CUDA_ARCHITECTURES,
    CUDA_DEFAULT,
    ROCM_ARCHITECTURES,
    ROCM_DEFAULT,
    TARGETS,
    architectures,
    cpu_of,
    explain,
    is_gpu,
    resolve,
    this_cpu,
    triple_of,
)

__all__ = [
    "CUDA_ARCHITECTURES",
    "CUDA_DEFAULT",
    "ROCM_ARCHITECTURES",
    "ROCM_DEFAULT",
    "TARGETS",
    "architectures",
    "cpu_of",
    "explain",
    "is_gpu",
    "resolve",
    "this_cpu",
    "triple_of",
]
