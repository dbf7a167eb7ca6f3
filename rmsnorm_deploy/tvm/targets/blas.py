"""The BLAS library that computes products of matrices, and how a compiled model comes to it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
from pathlib import Path

from rmsnorm_deploy.errors import UsageError
from rmsnorm_deploy.run.binary import offered
from rmsnorm_deploy.tvm.targets.machines import machine_of

OPENBLAS, NONE = "openblas", "none"
PACKAGE = "scipy-openblas32"
_MODULE = "scipy_openblas32"
_CALLED = ("sgemm", "sgemv", "dgemm", "dgemv")
_PREFIXES = ("", "scipy_")
_ELF_MACHINES = {62: "x86_64", 183: "aarch64"}


@dataclasses.dataclass(frozen=True)
class Blas:
    """A library with CBLAS's interface and 32-bit integers.

    Attributes:
        path: the file.
        prefix: before the names of its functions.
        carried: whether it goes into the compiled folder; else the system has to find it by its name.
        licence: a file that goes with it.
        version: of the package that it is from.
    """

    path: Path
    prefix: str
    carried: bool
    licence: Path | None = None
    version: str = ""

    def __str__(self) -> str:
        return f"{self.path.name} {self.version}".strip()


def find(choice: str, triple: str) -> tuple[Blas | None, str]:
    """The library for ``triple``, and why there is none.

    Args:
        choice: ``openblas``, that of the package scipy-openblas32; ``none``; or the path of another library.
        triple: LLVM's, of the machine that the model is compiled for.

    Raises:
        UsageError: ``choice`` is a path of something else.
    """
    if choice == NONE:
        return None, "--blas none"
    machine = machine_of(triple)
    if choice != OPENBLAS:
        return _other(Path(choice), machine), ""
    path = _installed()
    if path is None:
        return None, f"{PACKAGE} is not installed: pip install {PACKAGE}"
    prefix, found = _read(path)
    if prefix is None or found != machine:
        return None, f"the {PACKAGE} that is installed is not for {machine}: name a library of that machine"
    files = importlib.metadata.files(PACKAGE) or []
    licences = [Path(str(f.locate())) for f in files if f.name.upper().startswith("LICENSE")]
    licence = next((f for f in licences if f.is_file()), None)
    return Blas(path, prefix, True, licence, importlib.metadata.version(PACKAGE)), ""


def _other(path: Path, machine: str) -> Blas:
    if not path.is_file():
        raise UsageError(f"there is no BLAS library {path}", f"Name a file, or '{OPENBLAS}', or '{NONE}'.")
    prefix, found = _read(path)
    if prefix is None:
        raise UsageError(f"{path} is not a library with {', '.join('cblas_' + name for name in _CALLED)}", "Name one.")
    if found != machine:
        raise UsageError(f"{path} is for {found}, and the model is compiled for {machine}", "Name another one.")
    return Blas(path, prefix, False)


def _installed() -> Path | None:
    spec = importlib.util.find_spec(_MODULE)
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted((Path(spec.origin).parent / "lib").glob("lib*openblas*.so"))), None)


def _read(path: Path) -> tuple[str | None, str]:
    """The prefix of a library's functions, None where one is missing, and the machine that it is for."""
    try:
        found = offered(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "Check its permissions.") from error
    if found is None:
        return None, ""
    machine, names = found
    for prefix in _PREFIXES:
        if all(f"{prefix}cblas_{name}".encode() in names for name in _CALLED):
            return prefix, _ELF_MACHINES.get(machine, f"machine {machine}")
    return None, ""
