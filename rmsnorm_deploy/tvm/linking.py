"""A compiled module as a shared library, for this machine or one of another architecture."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from rmsnorm_deploy.errors import MissingEnvironment
from rmsnorm_deploy.tvm.machines import machine_of, this_machine


def cross_compiler(triple: str) -> str | None:
    """The C++ compiler that links for another architecture; None where ``triple`` names this machine's.

    Raises:
        MissingEnvironment: there is none.
    """
    machine = machine_of(triple)
    if machine == this_machine():
        return None
    system = triple[triple.index("linux") :]
    usual = list(dict.fromkeys((f"{triple}-g++", f"{machine}-{system}-g++")))
    for name in [os.environ["CXX"]] if os.environ.get("CXX") else usual:
        if found := shutil.which(name):
            return found
    raise MissingEnvironment(
        f"there is no C++ compiler to link a library for {triple} with",
        f"Install {usual[-1]} (on Debian: apt-get install g++-{machine.replace('_', '-')}-linux-gnu), or set CXX.",
    )


def export(module: Any, path: Path, triple: str) -> None:
    """Link ``module``, which TVM compiled for ``triple``, into the shared library ``path``.

    Raises:
        MissingEnvironment: there is no C++ compiler, or it is not one for ``triple``.
    """
    compiler = cross_compiler(triple)
    try:
        module.export_library(str(path), **({} if compiler is None else {"cc": compiler}))
    except (RuntimeError, OSError) as error:
        if compiler is not None:
            raise MissingEnvironment(
                f"{compiler} cannot link a library for {triple}", "Set CXX to a C++ compiler that can, or unset it."
            ) from error
        if shutil.which(os.environ.get("CXX", "g++")) is None:
            raise MissingEnvironment(
                "there is no C++ compiler to link the library with", "Install g++, for instance."
            ) from error
        raise
