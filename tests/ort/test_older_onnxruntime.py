"""The same libraries and the same tests in older releases of onnxruntime, each in an environment of its own."""

import os
import subprocess
from pathlib import Path

import pytest

from rmsnorm_deploy.run.library import library_path
from tests.support.older import VERSIONS, python_with


@pytest.mark.parametrize("script", ["test_onnxruntime.py", "test_override.py"])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_library_in(version, script):
    script = Path(__file__).with_name(script)
    done = subprocess.run(
        # No configuration and no conftest.py: those belong to the full environment.
        [
            python_with(version),
            "-m",
            "pytest",
            "-q",
            "--noconftest",
            "-c",
            os.devnull,
            "-p",
            "no:cacheprovider",
            script,
        ],
        cwd=script.parent,
        env=os.environ | {"RMSNORM_DEPLOY_LIBRARY": str(library_path())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
