"""The PyTorch sample: the fuser behind torch.onnx.export, in an environment of its own."""

import os
import subprocess
from pathlib import Path

import pytest

from rmsnorm_deploy.model.load import load_proto
from rmsnorm_deploy.run.session import library_path

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venvs" / "torch" / "bin" / "python"


def test_a_module_is_exported_fused_and_run_with_the_library(tmp_path):
    if not (PYTHON.parents[1] / "ready").exists():
        message = "no environment with PyTorch; make it with: make .venvs/torch/ready"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    output = tmp_path / "fused.onnx"
    done = subprocess.run(
        [PYTHON, "-W", "ignore", ROOT / "samples" / "torch_export.py", output],
        env=os.environ | {"PYTHONPATH": str(ROOT), "RMSNORM_DEPLOY_LIBRARY": str(library_path())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fused 2 of 2" in done.stdout
    assert "function bodies" not in done.stdout
    assert sum(n.domain == "rmsnorm_deploy" for n in load_proto(output).graph.node) == 2
