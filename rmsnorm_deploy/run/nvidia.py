"""What this machine has for NVIDIA GPUs: the driver, its GPUs, the compiler. Needs the standard library only."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

_MAJOR, _MINOR = 75, 76
"""The driver's numbers for the two parts of a device's compute capability."""
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
        capabilities: their compute capabilities, such as (9, 0); (0, 0) where the driver does not say.
        problem: why there is no GPU to use, in one sentence; empty where there is.
    """

    cuda: str | None
    devices: tuple[str, ...]
    problem: str
    capabilities: tuple[tuple[int, int], ...] = ()


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
    names, capabilities = [], []
    for index in range(number.value):
        device, text = ctypes.c_int(), ctypes.create_string_buffer(256)
        if lib.cuDeviceGet(ctypes.byref(device), index) == 0 and lib.cuDeviceGetName(text, 256, device) == 0:
            names.append(text.value.decode(errors="replace"))
            capabilities.append((_attribute(lib, device, _MAJOR), _attribute(lib, device, _MINOR)))
    return Driver(version, tuple(names), "", tuple(capabilities))


def _attribute(lib: ctypes.CDLL, device: ctypes.c_int, which: int) -> int:
    value = ctypes.c_int()
    return 0 if lib.cuDeviceGetAttribute(ctypes.byref(value), which, device) else value.value


def cannot_run(architectures: Sequence[str], toolkit: tuple[int, int] | None, found: Driver, index: int | None) -> str:
    """Why machine code does not run on this machine's GPUs, as the rest of a sentence; empty where it does.

    Args:
        architectures: that there is code for, as CMake names them: "80-real" is machine code, for the capabilities from
            8.0 that begin with 8; "100" also PTX, for all from 10.0.
        toolkit: the CUDA version that made it; None where that is unknown.
        found: what the driver says.
        index: of the GPU; None for all of them.
    """
    if found.cuda is not None and toolkit is not None and int(found.cuda.split(".")[0]) < toolkit[0]:
        made = f"{toolkit[0]}.{toolkit[1]}"
        return f"was built with CUDA {made}, and this machine's NVIDIA driver runs CUDA {found.cuda} at most"
    for i, (name, capability) in enumerate(zip(found.devices, found.capabilities, strict=False)):
        if index in (None, i) and capability > (0, 0) and not any(_runs(a, capability) for a in architectures):
            return (
                f"has kernels for {', '.join(architectures)}, and GPU {i}, {name}, has compute capability "
                f"{capability[0]}.{capability[1]}"
            )
    return ""


def _runs(architecture: str, capability: tuple[int, int]) -> bool:
    number, _, kind = architecture.partition("-")
    digits = number.rstrip("af")
    if not digits.isdigit():
        return False
    made = divmod(int(digits), 10)
    if number.endswith("a"):  # for this very one
        return made == capability
    machine_code = kind != "virtual" and made[0] == capability[0] and made <= capability
    return machine_code or (kind != "real" and not number.endswith("f") and made <= capability)
