"""The library that computes a compiled folder's products: carried beside ``model.so`` or only named.

What is linked into ``model.so`` for it is C++: it keeps a BLAS library to one thread, and finds cuBLAS at run time.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rmsnorm_deploy.errors import MissingEnvironment
from rmsnorm_deploy.tvm.artefact.description import part
from rmsnorm_deploy.tvm.targets.blas import Blas
from rmsnorm_deploy.tvm.targets.cublas import CUBLAS, Cublas, open_installed

LICENCE = "{}.LICENSE.txt"

ONE_THREAD = """
extern "C" {
void scipy_openblas_set_num_threads(int) __attribute__((weak));
void openblas_set_num_threads(int) __attribute__((weak));
void MKL_Set_Num_Threads(int) __attribute__((weak));
void bli_thread_set_num_threads(long) __attribute__((weak));
}
__attribute__((constructor)) static void one_thread() {
  if (scipy_openblas_set_num_threads) scipy_openblas_set_num_threads(1);
  if (openblas_set_num_threads) openblas_set_num_threads(1);
  if (MKL_Set_Num_Threads) MKL_Set_Num_Threads(1);
  if (bli_thread_set_num_threads) bli_thread_set_num_threads(1);
}
"""
"""TVM's threads divide a product among them; the library's own would fight with them for the cores."""


@dataclasses.dataclass(frozen=True)
class Linked:
    """What the linker gets for a library.

    Attributes:
        source: C++ that becomes a part of ``model.so``.
        options: where the library is, and where the loader will look for it.
    """

    source: str
    options: tuple[str, ...]


def linked(blas: Blas | Cublas, functions: Sequence[str]) -> Linked:
    """What the linker needs to know. CuBLAS need not be there: ``model.so`` looks for it at its first product.

    Args:
        blas: the library.
        functions: that kernels call for cuBLAS.
    """
    if isinstance(blas, Cublas):
        names = ", ".join(map(json.dumps, blas.names))
        each = " ".join(f"one({function})" for function in functions)
        source = importlib.resources.files(__package__).joinpath("cublas.cpp").read_text(encoding="utf-8")
        return Linked(f"#define CUBLAS {names}\n#define FUNCTIONS(one) {each}\n{source}", ("-std=c++17", "-O1", "-ldl"))
    folder = blas.path.absolute().parent
    options = str(blas.path.absolute()), f"-Wl,-rpath,{'$ORIGIN' if blas.carried else folder}"
    return Linked(ONE_THREAD, options)


def save(blas: Blas | Cublas, folder: Path) -> dict[str, Any]:
    """Copy the library and its licence into ``folder`` if it is carried; what :func:`name_of` and the checks need.

    Raises:
        MissingEnvironment: there is no space.
    """
    if isinstance(blas, Cublas):
        return {"name": blas.name, "version": "", "file": None}
    said: dict[str, Any] = {"name": blas.path.name, "version": blas.version, "file": None}
    if not blas.carried:
        return said
    copy = folder / blas.path.name
    try:
        shutil.copyfile(blas.path, copy)
        if blas.licence is not None:
            shutil.copyfile(blas.licence, folder / LICENCE.format(blas.path.name))
    except OSError as error:
        raise MissingEnvironment(f"{copy.name} cannot be written: {error.strerror}", "Free some space.") from error
    return said | {"file": part(copy)}


def name_of(description: Mapping[str, Any]) -> str | None:
    """The name of the library in a folder with this description; None where none is in it."""
    said = description["blas"]
    return None if said is None or said["file"] is None else str(said["name"])


def open_beforehand(description: Mapping[str, Any]) -> None:
    """Open cuBLAS where a folder with this description looks for it by its usual names, so that it finds pip's.

    Raises:
        MissingEnvironment: there is none.
    """
    said = description["blas"]
    if said is not None and said["name"] == CUBLAS:
        open_installed()
