"""Exports whose batch and sequence vary, and every model of a corpus, compiled and run at several sizes."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

from rmsnorm_deploy import tvm
from rmsnorm_deploy.run.inputs import make_inputs

EXPORTS = Path(__file__).parent / "data"
CORPUS = os.environ.get("RMSNORM_DEPLOY_CORPUS")
SHAPES = [(2, 7, 5), (1, 3, 4), (4, 12, 1), (1, 2, 9), (3, 1, 7)]
"""Batch, sequence, and length of what came before."""


def feeds(proto, batch, length, past):
    rng = np.random.default_rng(batch * length)
    cached = any(v.name.startswith("past") for v in proto.graph.input)
    total = length + (past if cached else 0)
    made = {}
    for value in proto.graph.input:
        if value.name == "input_ids":
            made[value.name] = rng.integers(0, 24, (batch, length))
        elif value.name == "attention_mask":
            made[value.name] = np.ones((batch, total), np.int64)
            made[value.name][:, 0] = np.arange(batch) % 2
        elif value.name == "position_ids":
            made[value.name] = np.tile(np.arange(total - length, total), (batch, 1))
        else:
            made[value.name] = rng.standard_normal((batch, 2, past, 4)).astype(np.float32)
    return made


@pytest.mark.parametrize("name", ["llama_past_op18", "qwen3_op23"])
def test_one_compilation_is_right_at_every_batch_and_sequence(name, tmp_path):
    proto = onnx.load(EXPORTS / f"{name}.onnx")
    made = tvm.compile(EXPORTS / f"{name}.onnx", output=tmp_path / "c")
    assert made.norms == (9 if "qwen3" in name else 5)
    f, reference = tvm.load(tmp_path / "c"), ReferenceEvaluator(proto)
    for sizes in SHAPES:
        given = feeds(proto, *sizes)
        got = f(given)
        for value, wanted in zip(proto.graph.output, reference.run(None, given), strict=True):
            assert got[value.name].shape == wanted.shape
            assert np.abs(got[value.name] - wanted).max() <= 1e-5
            assert np.abs(wanted).max() > 0.01


@pytest.mark.skipif(CORPUS is None, reason="RMSNORM_DEPLOY_CORPUS is not set to a folder of models")
@pytest.mark.parametrize(
    "path", sorted((Path(CORPUS) / "full").glob("*.onnx")) if CORPUS else [None], ids=lambda p: p.stem if p else "none"
)
def test_every_model_of_a_corpus_runs_as_in_onnxruntime(path, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    try:
        session = ort.InferenceSession(path)
    except Exception as error:
        pytest.skip(f"onnxruntime cannot run the original: {error}")
    given = make_inputs(onnx.load(path))
    tvm.compile(path, output=tmp_path / "c")
    got = tvm.load(tmp_path / "c")(given)
    bar = 5e-3 if "16" in path.stem.rsplit("_", 1)[-1] else 1e-5
    for value, wanted in zip(session.get_outputs(), session.run(None, given), strict=True):
        assert got[value.name].dtype == wanted.dtype
        # one family of the corpus has weights of which everything is NaN, in onnxruntime too
        np.testing.assert_allclose(got[value.name].astype(float), wanted.astype(float), rtol=0, atol=bar)
