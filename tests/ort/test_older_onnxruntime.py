"""The same libraries and the same tests in older releases of onnxruntime, each in an environment of its own."""

import os
import subprocess
from pathlib import Path

import pytest

from rmsnorm_deploy.run.session import library_path

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("script", ["test_onnxruntime.py", "test_override.py"])
@pytest.mark.parametrize("version", ["1.20.1", "1.24.4"])
def test_the_library_in(version, script):
    python = ROOT / ".venvs" / f"ort-{version}" / "bin" / "python"
    if not python.exists():
        message = f"no environment with onnxruntime {version}; make it with: make .venvs/ort-{version}/ready"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    script = Path(__file__).with_name(script)
    done = subprocess.run(
        # No configuration and no conftest.py: those belong to the full environment.
        [python, "-m", "pytest", "-q", "--noconftest", "-c", os.devnull, "-p", "no:cacheprovider", script],
        cwd=script.parent,
        env=os.environ | {"RMSNORM_DEPLOY_LIBRARY": str(library_path())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    installed = subprocess.run(
        [python, "-c", "import onnxruntime; print(onnxruntime.__version__)"], capture_output=True, text=True, check=True
    )
    assert installed.stdout.strip() == version
    assert " passed" in done.stdout
