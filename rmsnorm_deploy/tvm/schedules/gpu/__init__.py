"""Schedules for GPUs."""

from rmsnorm_deploy.tvm.schedules.gpu.choose import (
    BLOCK,
    CHAIN,
    GROUP,
    KEPT_BYTES,
    MIDDLE,
    VALUES,
    GpuSchedule,
    candidates,
    default,
    kernel,
    source,
    trimmed,
)

__all__ = [
    "BLOCK",
    "CHAIN",
    "GROUP",
    "KEPT_BYTES",
    "MIDDLE",
    "VALUES",
    "GpuSchedule",
    "candidates",
    "default",
    "kernel",
    "source",
    "trimmed",
]
