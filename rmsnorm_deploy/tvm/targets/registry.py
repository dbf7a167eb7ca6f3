"""The targets that there are: the CPU, and every file in ``gpus``. Needs no TVM, so that help texts can name them."""

from __future__ import annotations

import importlib
import pkgutil

from rmsnorm_deploy.tvm.targets import gpus
from rmsnorm_deploy.tvm.targets.gpu import Gpu

CPU = "llvm"
"""TVM's name of the target that is a CPU."""


def _found() -> dict[str, Gpu]:
    names = sorted(module.name for module in pkgutil.iter_modules(gpus.__path__))
    rows: list[Gpu] = [importlib.import_module(f"{gpus.__name__}.{name}").GPU for name in names]
    return {gpu.kind: gpu for gpu in rows}


GPUS = _found()
"""By TVM's name of the target."""
TARGETS = (CPU, *GPUS)
"""Targets for which there are schedules."""
FLEET_TARGETS = (CPU, *(kind for kind, gpu in GPUS.items() if gpu.fleet))
"""Targets that the devices of TVM's RPC tracker can measure."""
TARGETS_IN_WORDS = f"{CPU} (the CPU), {', '.join(TARGETS[1:-1])} or {TARGETS[-1]}"
_USUAL = [f"{','.join(gpu.usual)} for {kind}" for kind, gpu in GPUS.items() if gpu.usual]
ARCHITECTURES_IN_WORDS = f"By default {' and '.join(_USUAL)}"
