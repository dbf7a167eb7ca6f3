"""The device of a target, and what is missing where there is none."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi

from rmsnorm_deploy.errors import MissingEnvironment

_RUNTIMES = {
    "cuda": "TVM loads it where the libraries of an NVIDIA driver (libcuda.so.1) and of CUDA 13 (libcudart.so.13) are.",
    "rocm": "Build TVM with USE_ROCM: the wheel has no runtime for ROCm.",
    "opencl": "Build TVM with USE_OPENCL: the wheel has no runtime for OpenCL.",
    "metal": "Run the model on macOS, with a TVM that was built with USE_METAL.",
    "webgpu": "Run the model in a browser, with TVM's runtime for JavaScript.",
}


def device_for(target: str) -> Any:
    """The ``tvm.runtime.Device`` for a target.

    Raises:
        MissingEnvironment: TVM has no runtime for it here, or there is no such device.
    """
    if target == "llvm":
        return tvm.cpu()
    if tvm_ffi.get_global_func(f"device_api.{target}", allow_missing=True) is None:
        raise MissingEnvironment(f"TVM has no runtime for target '{target}' here", _RUNTIMES[target])
    device = tvm.runtime.device(target)
    if not device.exist:
        raise MissingEnvironment(
            f"there is no device for target '{target}' here", "Use another machine, or --target llvm."
        )
    return device
