"""The execution providers of onnxruntime that the library has kernels for, and what each needs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Protocol

from rmsnorm_deploy.run import library, nvidia


class Provider(Protocol):
    """An execution provider that the library has kernels for. A refusal is its reason, in words."""

    @property
    def name(self) -> str:
        """Onnxruntime's name of it."""

    def lacks_kernels(self, path: Path, device: int | None = None) -> str:
        """Why a library file has no kernels for it: "was built without CUDA"; "" where it has.

        Args:
            path: of the library.
            device: the number of the device; None for all that the machine has.
        """

    def cannot_run(self) -> str:
        """Why it cannot run on this machine, in a sentence; "" where it can."""


@dataclasses.dataclass(frozen=True)
class Cpu:
    """The CPU: every library has kernels for it."""

    name: str = "CPUExecutionProvider"

    def lacks_kernels(self, path: Path, device: int | None = None) -> str:  # noqa: ARG002  (it always has them)
        """See :class:`Provider`."""
        return ""

    def cannot_run(self) -> str:
        """See :class:`Provider`."""
        return ""


@dataclasses.dataclass(frozen=True)
class Cuda:
    """An NVIDIA GPU."""

    name: str

    def lacks_kernels(self, path: Path, device: int | None = None) -> str:
        """See :class:`Provider`."""
        architectures = library.cuda_architectures(path)
        if not architectures:
            return "was built without CUDA"
        return nvidia.cannot_run(architectures, library.cuda_version(path), nvidia.driver(), device)

    def cannot_run(self) -> str:
        """See :class:`Provider`."""
        return nvidia.driver().problem


CPU = Cpu()
CUDA = Cuda("CUDAExecutionProvider")
CUDA_PLUGIN = Cuda("CudaPluginExecutionProvider")
"""The name that CUDA's plug-in form has in some releases."""

SERVED: dict[str, Provider] = {p.name: p for p in (CPU, CUDA, CUDA_PLUGIN)}
"""Providers with kernels, by name. On any other, fused norms run by their function bodies."""
GPU = tuple(p for p in SERVED.values() if p is not CPU)
"""Those whose tensors are not in the host's memory: a CPU kernel would draw the norms' data to the host and back."""
IDLE = frozenset({"AzureExecutionProvider"})
"""Providers that run no operators of a model."""
