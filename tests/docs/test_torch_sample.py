"""The PyTorch sample: the fuser behind torch.onnx.export."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from rmsnorm_deploy.model.load import load_proto

SAMPLE = Path(__file__).parents[2] / "samples" / "torch_export.py"


def test_a_module_is_exported_fused_and_run(tmp_path):
    for package in ("torch", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (pip install 'rmsnorm-deploy[torch,ort]')")
    output = tmp_path / "fused.onnx"
    command = [sys.executable, "-W", "ignore", str(SAMPLE), str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fused 2 of 2" in done.stdout
    assert sum(n.domain == "rmsnorm_deploy" for n in load_proto(output).graph.node) == 2
