"""onnxruntime, imported when it is first needed."""

from __future__ import annotations

from typing import Any

from rmsnorm_deploy.errors import MissingEnvironment, install_hint


def onnxruntime() -> Any:
    """The onnxruntime module.

    Raises:
        MissingEnvironment: it is not installed, or its installation is broken.
    """
    try:
        import onnxruntime as ort
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "onnxruntime"
        what = "onnxruntime is not installed" if missing else f"onnxruntime cannot be imported: {error}"
        raise MissingEnvironment(what, install_hint("ort")) from error
    return ort
