"""Pythons with older releases of onnxruntime, each in an environment of its own."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("1.20.1", "1.24.4")


def python_with(version):
    """The Python of the environment with that onnxruntime; skips where there is none, but fails in CI."""
    python = ROOT / ".venvs" / f"ort-{version}" / "bin" / "python"
    if not python.exists():
        message = f"no environment with onnxruntime {version}; make it with: make .venvs/ort-{version}/ready"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    installed = subprocess.run(
        [python, "-c", "import onnxruntime; print(onnxruntime.__version__)"], capture_output=True, text=True, check=True
    )
    assert installed.stdout.strip() == version
    return python
