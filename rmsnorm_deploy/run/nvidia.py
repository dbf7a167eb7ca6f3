"""What this machine has for NVIDIA GPUs: the driver, its GPUs, the compiler. Needs the standard library only."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import shutil
import sys
from pathlib import Path

DRIVER_VARIABLE = "RMSNORM_DEPLOY_CUDA_DRIVER"
"""Environment variable that names a file to use in place of the installed CUDA driver library; for tests."""


def compiler() -> str | None:
    """The path of nvcc, on the PATH or in CUDA_HOME or CUDA_PATH; None where there is none."""
    homes = [str(Path(os.environ[name]) / "bin") for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    return next((found for place in (None, *homes) if (found := shutil.which("nvcc", path=place))), None)


_DRIVER_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/usr/lib64-nvidia")
"""Where some containers have the driver without telling the system's loader."""


def driver_library() -> ctypes.CDLL:
    """The CUDA driver library, loaded.

    Raises:
        OSError: there is none.
    """
    usual = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    named = os.environ.get(DRIVER_VARIABLE)
    if named:
        return ctypes.CDLL(named)
    try:
        return ctypes.CDLL(usual)
    except OSError:
        for folder in _DRIVER_FOLDERS:
            if (Path(folder) / usual).is_file():
                return ctypes.CDLL(str(Path(folder) / usual))
        raise


@dataclasses.dataclass(frozen=True)
class Driver:
    """The installed NVIDIA driver.

    Attributes:
        cuda: the newest CUDA version that it runs, as in "13.0"; None where no driver is installed.
        devices: the GPUs' names, such as "NVIDIA H100 80GB HBM3".
        problem: why there is no GPU to use, in one sentence; empty where there is.
    """

    cuda: str | None
    devices: tuple[str, ...]
    problem: str


def driver() -> Driver:
    """Ask the driver what it is and which GPUs it sees."""
    try:
        lib = driver_library()
    except OSError:
        return Driver(None, (), "no NVIDIA driver is installed")
    number = ctypes.c_int()
    if lib.cuDriverGetVersion(ctypes.byref(number)):
        return Driver(None, (), "the NVIDIA driver does not answer")
    version = f"{number.value // 1000}.{number.value % 1000 // 10}"
    code = lib.cuInit(0)
    if code or lib.cuDeviceGetCount(ctypes.byref(number)) or number.value == 0:
        return Driver(version, (), f"the NVIDIA driver sees no GPU (code {code})")
    names = []
    for index in range(number.value):
        device, text = ctypes.c_int(), ctypes.create_string_buffer(256)
        if lib.cuDeviceGet(ctypes.byref(device), index) == 0 and lib.cuDeviceGetName(text, 256, device) == 0:
            names.append(text.value.decode(errors="replace"))
    return Driver(version, tuple(names), "")
