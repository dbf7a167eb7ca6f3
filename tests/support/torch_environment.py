"""The environments with PyTorch, which are not the tests' own: who needs one runs a program there, or is skipped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmsnorm_deploy.run.library import library_path

ROOT = Path(__file__).parents[2]
PLAIN = ROOT / ".venvs" / "torch"
PIPELINES = ROOT / ".venvs" / "pipelines-torch"


def _environment(folder, target):
    """What runs programs there: a Python of its own, or the tests' own with a folder of packages."""
    if not (folder / "ready").exists():
        message = f"no environment with PyTorch; make it with: make {target}"
        if os.environ.get("CI") == "true" and folder == PLAIN:
            pytest.fail(message)
        pytest.skip(message)
    own = folder / "bin" / "python"
    return (own, [ROOT]) if folder == PLAIN else (Path(sys.executable), [folder, ROOT])


def run_with_torch(command, cwd=ROOT, folder=PLAIN):
    """Run Python with arguments in an environment that has PyTorch, and return what it printed."""
    python, paths = _environment(folder, f"{folder.relative_to(ROOT)}/ready")
    library = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "RMSNORM_DEPLOY_LIBRARY": str(library_path())}
    done = subprocess.run(
        [python, "-W", "ignore", *map(str, command)],
        cwd=cwd,
        env=os.environ | library,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
