"""PyTorch: modules exported with every norm as one operator, and the operators for use in modules.

    rmsnorm_deploy.torch.export(module, (x,), "fused.onnx")
    torch.onnx.export(module, (x,), dynamo=True, custom_translation_table=rmsnorm_deploy.torch.translations())
    y = rmsnorm_deploy.torch.rms_norm(x, scale, epsilon=1e-6)     # a function for each operator but those that quantise

Needs the extra ``torch``; nothing else in this package imports it. PyTorch itself is loaded, and the operators are
registered with it, when one of these names is first used; without PyTorch, that raises :class:`MissingEnvironment`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rmsnorm_deploy.errors import MissingEnvironment, install_hint
from rmsnorm_deploy.torch.naming import OPERATORS

if TYPE_CHECKING:
    from rmsnorm_deploy.torch.exporting import export
    from rmsnorm_deploy.torch.translating import translations

__all__ = ["export", "translations"]

_HOMES = {"export": "exporting", "translations": "translating"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name not in OPERATORS:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    try:
        import onnxscript  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingEnvironment(f"{error.name} is not installed", install_hint("torch")) from error
    if name in OPERATORS:
        return importlib.import_module(f"{__name__}.operators").function_of(OPERATORS[name])
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
