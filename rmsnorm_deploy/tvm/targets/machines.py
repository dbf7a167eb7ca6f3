"""Which architecture a library's machine code is for; needs nothing of TVM's compiler."""

from __future__ import annotations

import platform

MACHINES = ("x86_64", "aarch64")
"""Architectures that a model can be compiled for on a machine of another one."""
_OTHER_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}


def machine_of(triple: str) -> str:
    """The architecture that a triple such as ``aarch64-linux-gnu`` begins with, in one of its spellings."""
    name = triple.partition("-")[0].lower()
    return _OTHER_NAMES.get(name, name)


def this_machine() -> str:
    """The architecture of this one."""
    return machine_of(platform.machine())
