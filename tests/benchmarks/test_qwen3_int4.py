"""The decoder with 4-bit weights that is timed whole: every norm in it is fused, and it computes the same."""

import onnx

import rmsnorm_deploy
from benchmarks.models.qwen3_int4 import qwen3_int4


def test_every_norm_of_the_decoder_is_fused_and_verified(tmp_path):
    path = tmp_path / "decoder.onnx"
    # products that round to 8 bits would turn the last digit of a norm into a step of their grid
    onnx.save(qwen3_int4(layers=1, vocabulary=64, accuracy_level=0), path)
    fused, report = rmsnorm_deploy.fuse(path)
    assert report.summary() == "fused 5 of 5"
    assert {f.op for f in report.fused} == {"RMSNorm", "AddRMSNorm"}
    rmsnorm_deploy.save(fused, tmp_path / "fused.onnx")
    result = rmsnorm_deploy.verify(path, tmp_path / "fused.onnx")
    assert result.passed, result.summary()
