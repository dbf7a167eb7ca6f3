"""A compiled module as a shared library, for this machine or one of another architecture."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from tvm.support import cc

from rmsnorm_deploy.errors import MissingEnvironment
from rmsnorm_deploy.tvm.targets.machines import machine_of, this_machine


def _cross_compiler(triple: str) -> str:
    """The C++ compiler that links for another architecture.

    Raises:
        MissingEnvironment: there is none.
    """
    machine = machine_of(triple)
    system = triple[triple.index("linux") :]
    usual = list(dict.fromkeys((f"{triple}-g++", f"{machine}-{system}-g++")))
    for name in [os.environ["CXX"]] if os.environ.get("CXX") else usual:
        if found := shutil.which(name):
            return found
    raise MissingEnvironment(
        f"there is no C++ compiler to link a library for {triple} with",
        f"Install {usual[-1]} (on Debian: apt-get install g++-{machine.replace('_', '-')}-linux-gnu), or set CXX.",
    )


def compiler(triple: str) -> str:
    """The C++ compiler that links for ``triple``.

    Raises:
        MissingEnvironment: there is none.
    """
    if machine_of(triple) != this_machine():
        return _cross_compiler(triple)
    found = cc.get_cc()
    if found is None or shutil.which(found) is None:
        named = "" if found is None else f": '{found}' is not one"
        raise MissingEnvironment(
            f"there is no C++ compiler to link the library with{named}", "Install g++, for instance, or set CXX."
        )
    return str(found)


def export(module: Any, path: Path, triple: str) -> None:
    """Link ``module``, which TVM compiled for ``triple``, into the shared library ``path``.

    Raises:
        MissingEnvironment: there is no C++ compiler, or it fails: it is not one for ``triple``, or there is no space.
    """
    found = compiler(triple)
    try:
        module.export_library(str(path), cc=found)
    except (RuntimeError, OSError) as error:
        # TVM says "Compilation error:", what the compiler said, and "Command line: ..."
        lines = [line for line in str(error).splitlines()[1:] if line.strip() and not line.startswith("collect2:")]
        said = next((line for line in reversed(lines) if not line.startswith("Command line:")), "it does not say why")
        raise MissingEnvironment(
            f"{found} cannot link a library for {triple}: {said.strip()}",
            "Correct that, or set CXX to a C++ compiler that can.",
        ) from error
