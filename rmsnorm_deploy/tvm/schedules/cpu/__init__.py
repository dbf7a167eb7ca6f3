"""Schedules for CPUs."""

from rmsnorm_deploy.tvm.schedules.cpu.choose import (
    BATCH_BYTES,
    MOST_BATCH,
    candidates,
    default,
    kernel,
    source,
    trimmed,
)

__all__ = [
    "BATCH_BYTES",
    "MOST_BATCH",
    "candidates",
    "default",
    "kernel",
    "source",
    "trimmed",
]
