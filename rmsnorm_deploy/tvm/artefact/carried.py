"""The BLAS library of a compiled folder: carried beside ``model.so`` or only named, and kept to one thread."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rmsnorm_deploy.errors import MissingEnvironment
from rmsnorm_deploy.tvm.artefact.description import part
from rmsnorm_deploy.tvm.targets.blas import Blas

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


def linked(blas: Blas) -> list[str]:
    """What the linker needs to know: where the library is, and where the loader will look for it."""
    folder = blas.path.absolute().parent
    return [str(blas.path.absolute()), f"-Wl,-rpath,{'$ORIGIN' if blas.carried else folder}"]


def save(blas: Blas, folder: Path) -> dict[str, Any]:
    """Copy the library and its licence into ``folder`` if it is carried; what :func:`name_of` and the checks need.

    Raises:
        MissingEnvironment: there is no space.
    """
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
