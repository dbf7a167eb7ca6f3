"""The samples with PyTorch and with tools that need it, in environments of their own."""

from rmsnorm_deploy.model.load import load_proto
from tests.support.torch_environment import PIPELINES, ROOT, run_with_torch

SAMPLES = ROOT / "samples"


def test_a_module_is_exported_fused_and_run_with_the_library(tmp_path):
    output = tmp_path / "fused.onnx"
    said = run_with_torch([SAMPLES / "torch_export.py", output])
    assert "fused 2 of 2" in said
    assert "function bodies" not in said
    assert sum(n.domain == "rmsnorm_deploy" for n in load_proto(output).graph.node) == 2


def test_the_fuser_is_one_pass_of_many(tmp_path):
    output = tmp_path / "fused.onnx"
    said = run_with_torch([SAMPLES / "pass_list.py", SAMPLES / "models" / "llama_float16.onnx", output])
    assert said.startswith("fused 5 of 5")
    assert "comparisons agree" in said
    assert sum(n.domain == "rmsnorm_deploy" for n in load_proto(output).graph.node) == 5


def test_the_fuser_is_a_pass_of_olive(tmp_path):
    output = tmp_path / "fused.onnx"
    said = run_with_torch(
        [SAMPLES / "olive_pass.py", SAMPLES / "models" / "qwen3_float32.onnx", output], folder=PIPELINES
    )
    assert "fused 9 of 9" in said
    made = load_proto(output)
    assert sum(n.domain == "rmsnorm_deploy" for n in made.graph.node) == 9
    assert any(n.op_type == "MatMulNBits" for n in made.graph.node), "the pass before it has run"


def test_a_fused_decoder_generates_the_same_tokens_behind_optimum():
    said = run_with_torch([SAMPLES / "optimum_session.py"], folder=PIPELINES)
    assert "fused 5 of 5" in said
    assert "the same tokens" in said
