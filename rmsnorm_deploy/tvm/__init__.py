"""TVM: fused models compiled for CPUs and GPUs.

    rmsnorm_deploy.tvm.compile("model.onnx", output="compiled")
    f = rmsnorm_deploy.tvm.load("compiled")        # in another process, without the model
    outputs = f({"x": array})

    rmsnorm_deploy.tvm.tune("model.onnx", log="tuning.json")      # then compile(..., tuned="tuning.json")

Needs the extra ``tvm``; nothing else in this package imports it. TVM itself is loaded when one of these names is first
used, so that a help text can name the targets without it; without TVM, that raises :class:`MissingEnvironment`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rmsnorm_deploy.errors import MissingEnvironment, install_hint

if TYPE_CHECKING:
    from rmsnorm_deploy.tvm.artefact.load import CompiledModel, load
    from rmsnorm_deploy.tvm.compiling import Compiled, compile
    from rmsnorm_deploy.tvm.importer.convert import import_onnx
    from rmsnorm_deploy.tvm.tuning.search import Tuning, tune

__all__ = ["Compiled", "CompiledModel", "Tuning", "compile", "import_onnx", "load", "tune"]

_HOMES = {
    "Compiled": "compiling",
    "CompiledModel": "artefact.load",
    "Tuning": "tuning.search",
    "compile": "compiling",
    "import_onnx": "importer.convert",
    "load": "artefact.load",
    "tune": "tuning.search",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    try:
        from tvm import relax  # noqa: F401
    except ImportError as error:
        raise MissingEnvironment("apache-tvm is not installed", install_hint("tvm")) from error
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
