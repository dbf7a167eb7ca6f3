"""A compiled module as a shared library, for this machine or one of another architecture."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rmsnorm_deploy.errors import MissingEnvironment
from rmsnorm_deploy.run import toolchain
from rmsnorm_deploy.tvm.artefact import carried
from rmsnorm_deploy.tvm.targets.blas import Blas
from rmsnorm_deploy.tvm.targets.cublas import Cublas
from rmsnorm_deploy.tvm.targets.machines import machine_of, this_machine


def compiler(triple: str) -> list[str]:
    """The command of the C++ compiler that links for ``triple``; see :mod:`rmsnorm_deploy.run.toolchain`.

    Raises:
        MissingEnvironment: it is not found.
    """
    machine = machine_of(triple)
    if machine == this_machine():
        return toolchain.linker()
    system = triple[triple.index("linux") :]
    usual = list(dict.fromkeys((f"{triple}-g++", f"{machine}-{system}-g++")))
    try:
        return toolchain.compiler(usual)
    except MissingEnvironment:
        if os.environ.get("CXX"):
            raise
        raise MissingEnvironment(
            f"there is no C++ compiler to link a library for {triple} with",
            f"Install {usual[-1]} (on Debian: apt-get install g++-{machine.replace('_', '-')}-linux-gnu), or set CXX.",
        ) from None


def export(
    module: Any, path: Path, triple: str, blas: Blas | Cublas | None = None, functions: Sequence[str] = ()
) -> None:
    """Link ``module``, which TVM compiled for ``triple``, into the shared library ``path``, with the library it calls.

    ``functions`` are what kernels call for cuBLAS.

    Raises:
        MissingEnvironment: there is no C++ compiler, or it fails: it is not one for ``triple``, or there is no space.
    """
    command = compiler(triple)
    # TVM's own function takes the name of a program only, and no arguments in front
    shared = ["-shared", "-fPIC", *(["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else [])]

    def link(output: str, objects: list[str], options: Sequence[str] = ()) -> None:
        with tempfile.TemporaryDirectory() as folder:
            further = list(options)
            if blas is not None:
                linked = carried.linked(blas, functions)
                source = Path(folder) / "library.cpp"
                source.write_text(linked.source, encoding="utf-8")
                further = [str(source), *further, *linked.options]
            done = subprocess.run(
                [*command, *shared, "-o", output, *objects, *further],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(done.stdout)

    try:
        module.export_library(str(path), fcompile=link)
    except (RuntimeError, OSError) as error:
        lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("collect2:")]
        raise MissingEnvironment(
            f"{command[0]} cannot link a library for {triple}: {(lines or ['it does not say why'])[-1].strip()}",
            "Correct that, or set CXX to a C++ compiler that can.",
        ) from error
