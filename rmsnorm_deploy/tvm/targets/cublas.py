"""CuBLAS, which computes products of matrices on NVIDIA's GPUs, and where a compiled model looks for it."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
from pathlib import Path

from rmsnorm_deploy.errors import MissingEnvironment, UsageError
from rmsnorm_deploy.run.binary import offered
from rmsnorm_deploy.tvm.targets.blas import NONE

CUBLAS = "cublas"
TARGET = "cuda"
"""The one target whose products it computes."""
CALLED = (
    *("cublasCreate_v2", "cublasSetStream_v2", "cublasSetWorkspace_v2", "cublasSetMathMode"),
    "cublasGemmStridedBatchedEx_64",
)
_PLACES = (("libcublas.so.13", "nvidia.cu13"), ("libcublas.so.12", "nvidia.cublas"))
"""What the releases of CUDA call it, and where their packages have it."""


@dataclasses.dataclass(frozen=True)
class Cublas:
    """How a compiled model comes to cuBLAS.

    Attributes:
        names: of libraries, of which the first is taken that the system finds when the model runs: a path, or what the
            releases of CUDA call it.
    """

    names: tuple[str, ...] = tuple(name for name, _ in _PLACES)

    @property
    def name(self) -> str:
        """What it is called in ``model.json``."""
        return CUBLAS if len(self.names) > 1 else Path(self.names[0]).name

    def __str__(self) -> str:
        return self.name


def find(choice: str) -> Cublas | None:
    """What ``choice`` names: ``cublas``, or the path of a library; None for ``none``.

    Nothing has to be installed where a model is compiled for ``cublas``.

    Raises:
        UsageError: it is a path of something else.
    """
    if choice == NONE:
        return None
    if choice == CUBLAS:
        return Cublas()
    path = Path(choice)
    if not path.is_file():
        raise UsageError(f"there is no library {path}", f"Name a file, or '{CUBLAS}', or '{NONE}'.")
    try:
        found = offered(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "Check its permissions.") from error
    if found is None or not all(name.encode() in found[1] for name in CALLED):
        raise UsageError(f"{path} is not a cuBLAS of CUDA 12 or newer", f"Name one, or '{CUBLAS}'.")
    return Cublas((str(path.absolute()),))


def open_installed() -> None:
    """Open cuBLAS for this process where the system finds it, or else where pip has put it.

    A compiled model that looks for it by its name gets that one.

    Raises:
        MissingEnvironment: there is none.
    """
    packages = []
    for name, package in _PLACES:
        folder = _folder(package)
        packages += [] if folder is None else [str(folder / "lib" / name)]
    for path in (*(name for name, _ in _PLACES), *packages):
        try:
            ctypes.CDLL(path)
        except OSError:
            continue
        return
    raise MissingEnvironment(
        f"the model's products are computed by cuBLAS, and there is none: {' or '.join(n for n, _ in _PLACES)}",
        "Install it (pip install nvidia-cublas, or nvidia-cublas-cu12 for CUDA 12), or compile with --blas none.",
    )


def _folder(package: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # of a package around it
        return None
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    return Path(places[0]) if places else None
