"""Which family of schedules a target has."""

from __future__ import annotations

from typing import Any

from rmsnorm_deploy.tvm.schedules.cpu.choose import CpuSchedules
from rmsnorm_deploy.tvm.schedules.gpu.choose import GpuSchedules
from rmsnorm_deploy.tvm.schedules.protocol import Schedules
from rmsnorm_deploy.tvm.targets.registry import GPUS


def schedules_for(target: Any) -> Schedules[Any]:
    """The schedules for ``target``, a ``tvm.target.Target``."""
    gpu = GPUS.get(str(target.kind.name))
    return CpuSchedules.of(target) if gpu is None else GpuSchedules(gpu)
