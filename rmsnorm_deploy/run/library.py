"""Where the native library is, and what a library file says about itself."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from rmsnorm_deploy.errors import MissingEnvironment
from rmsnorm_deploy.run.binary import unloadable


class WithoutKernels(MissingEnvironment):
    """The package was installed without its native part, as on a machine that no wheel was built for."""


LIBRARY_VARIABLE = "RMSNORM_DEPLOY_LIBRARY"
"""Environment variable that names a library file to use in place of the installed one."""


def _library_name(*, override: bool = False) -> str:
    # CMake calls a loadable module .so on macOS too.
    stem = "rmsnorm_deploy_override" if override else "rmsnorm_deploy"
    return f"{stem}.dll" if sys.platform == "win32" else f"lib{stem}.so"


def _candidates() -> Iterator[Path]:
    # An editable install has the modules in the source tree and the library in site-packages: then __path__ has both.
    package = importlib.import_module("rmsnorm_deploy")
    for folder in package.__path__:
        yield Path(folder) / "lib" / _library_name()
    for folder in sys.path:
        yield Path(folder) / "rmsnorm_deploy" / "lib" / _library_name()


_HINT = f"reinstall rmsnorm-deploy; where {LIBRARY_VARIABLE} is set, unset it or name a built {_library_name()}"


def library_path(*, override: bool = False) -> Path:
    """The native library with the custom operators, as an absolute path.

    It is the file named by the environment variable RMSNORM_DEPLOY_LIBRARY, else the one installed with the package.

    Args:
        override: the library that replaces onnxruntime's own operators instead, which lies beside that one.

    Raises:
        MissingEnvironment: there is no such file: the variable names none, or the package was installed without its
            native part, which is a :class:`WithoutKernels`.
    """
    if override:
        path = library_path().with_name(_library_name(override=True))
        if path.is_file():
            return path
        raise MissingEnvironment(
            f"there is no {path.name} beside {library_path()}",
            f"reinstall rmsnorm-deploy; where {LIBRARY_VARIABLE} names a library, put both files into its folder",
        )
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise MissingEnvironment(
                f"{LIBRARY_VARIABLE} names '{named}', which is not a file",
                "unset it to use the installed library, or name a built one",
            )
        return path.resolve()
    for path in _candidates():
        if path.is_file():
            return path.resolve()
    raise WithoutKernels(
        f"the native library {_library_name()} is not installed",
        "for its kernels, reinstall rmsnorm-deploy from the file of the wheel for this machine or, with g++ or clang++ "
        f"at hand, from its repository (pip install --force-reinstall .); or set {LIBRARY_VARIABLE} to a built library",
    )


def opened(library: Path, *, override: bool = False) -> ctypes.CDLL:
    """A library file of this project, loaded.

    Args:
        library: its path.
        override: whether it has to be the one that replaces onnxruntime's own operators.

    Raises:
        MissingEnvironment: the file is cut off, is for another machine, or is no such library.
    """
    loaded = _loaded(library)
    # the two take the same calls, and only the one with our own operators exports the kernels
    if not hasattr(loaded, "RegisterCustomOps") or hasattr(loaded, "rmsnorm_deploy_cpu_isa_at") == override:
        raise MissingEnvironment(f"{library} is another library than {_library_name(override=override)}", _HINT)
    return loaded


def _loaded(library: Path) -> ctypes.CDLL:
    if problem := unloadable(library):
        raise MissingEnvironment(f"the library {library} {problem}", _HINT)
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise MissingEnvironment(f"the library {library} cannot be loaded: {error}", _HINT) from error


def instruction_sets(library: Path) -> tuple[str, ...]:
    """The instruction sets that a library file has kernels for and this machine can run, best first.

    Empty for a file that is not such a library.
    """
    try:
        at = opened(library).rmsnorm_deploy_cpu_isa_at
    except MissingEnvironment:
        return ()
    at.restype = ctypes.c_char_p
    found, usable, index = [], ctypes.c_int(), 0
    while name := at(index, ctypes.byref(usable)):
        if usable.value:
            found.append(name.decode())
        index += 1
    return tuple(found)


def cuda_architectures(library: Path) -> tuple[str, ...]:
    """The GPU architectures that a library file has kernels for, such as ``("80-real", "90-real", "100")``.

    Those that end in ``-real`` have machine code only, the others also PTX, which newer GPUs run. Empty for a library
    that was built without CUDA, and for a file that has no such kernels. One that has nothing else is asked, too.
    """
    try:
        function = _loaded(library).rmsnorm_deploy_cuda_architectures
    except (MissingEnvironment, AttributeError):
        return ()
    function.restype = ctypes.c_char_p
    return tuple((function() or b"").decode().split())


def cuda_version(library: Path) -> tuple[int, int] | None:
    """The CUDA version that a library file was built with, such as ``(13, 0)``; None where it does not say one."""
    try:
        number = int(_loaded(library).rmsnorm_deploy_cuda_version())
    except (MissingEnvironment, AttributeError):
        return None
    return (number // 1000, number % 1000 // 10) if number else None
