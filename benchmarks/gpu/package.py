"""Single files of the package by their path: importing the package needs onnx, and this machine may have NumPy only."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2] / "rmsnorm_deploy"


def package_file(name: str) -> Any:
    """The module in a file such as ``run/nvidia.py``, which must import nothing but NumPy and the standard library."""
    module_name = f"rmsnorm_deploy_file_{Path(name).stem}"
    spec = importlib.util.spec_from_file_location(module_name, PACKAGE / name)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
