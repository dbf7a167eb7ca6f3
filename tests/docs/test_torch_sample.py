"""The PyTorch sample: the fuser behind torch.onnx.export, in an environment of its own."""

from rmsnorm_deploy.model.load import load_proto
from tests.support.torch_environment import ROOT, run_with_torch


def test_a_module_is_exported_fused_and_run_with_the_library(tmp_path):
    output = tmp_path / "fused.onnx"
    said = run_with_torch([ROOT / "samples" / "torch_export.py", output])
    assert "fused 2 of 2" in said
    assert "function bodies" not in said
    assert sum(n.domain == "rmsnorm_deploy" for n in load_proto(output).graph.node) == 2
