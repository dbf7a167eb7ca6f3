"""The device of a target, and what is missing where there is none."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi

from rmsnorm_deploy.errors import MissingEnvironment
from rmsnorm_deploy.tvm.targets.registry import CPU, GPUS


def device_name(target: str) -> str:
    """TVM's name of a target's device."""
    return "cpu" if target == CPU else target


def device_for(target: str) -> Any:
    """The ``tvm.runtime.Device`` for a target.

    Raises:
        MissingEnvironment: TVM has no runtime for it here, or there is no such device.
    """
    if target == CPU:
        return tvm.cpu()
    if tvm_ffi.get_global_func(f"device_api.{target}", allow_missing=True) is None:
        raise MissingEnvironment(f"TVM has no runtime for target '{target}' here", GPUS[target].runtime)
    device = tvm.runtime.device(target)
    if not device.exist:
        raise MissingEnvironment(
            f"there is no device for target '{target}' here", f"Use another machine, or --target {CPU}."
        )
    return device
