"""Fused graphs as sessions: what onnxruntime does around our nodes."""

import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import rmsnorm_deploy
from tests.support.graphs import nodes_of
from tests.support.judge import units
from tests.support.run import run
from tests.support.spellings.graph import F, Graph, H


def between_float16_operators():
    """A query norm as in a float16 language model: its neighbours have no float16 kernel on the CPU."""
    g = Graph()
    x, z = g.input("x", H, (2, 4, 16)), g.input("z", H, (2, 4, 16))
    wide = g.cast(x * z, F)
    inverse = g.op("Reciprocal", g.op("Sqrt", g.reduce("ReduceMean", wide**2.0, (-1,)) + 1e-5))
    y = g.cast(wide * inverse, H) * g.weight(np.linspace(0.5, 2, 16), H)
    g.output(g.op("MatMul", y, g.weight(np.eye(16), H)), "y", (2, 4, 16))
    return g.model()


@pytest.mark.parametrize("optimise", [False, True])
def test_a_node_that_onnxruntime_widens_to_float32_still_runs_in_our_kernel(optimise, tmp_path):
    fused, _ = rmsnorm_deploy.fuse(between_float16_operators())
    assert nodes_of(fused) == ["RMSNorm"]
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((2, 4, 16)).astype(np.float16) for n in "xz"}
    plain, ours = (run(fused, feeds, optimise, hook)[0] for hook in (None, rmsnorm_deploy.register))
    assert units(ours, plain.astype(np.float64)) <= 2
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    rmsnorm_deploy.register(options)
    ort.InferenceSession(fused.SerializeToString(), options, providers=["CPUExecutionProvider"])
    kept = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "o.onnx"))
    (node,) = (n for n in kept.graph.node if n.op_type == "RMSNorm")
    types = {v.name: v.type.tensor_type.elem_type for v in kept.graph.value_info}
    assert types.get(node.input[0]) == F, "the widening that this test is about"


def test_what_is_saved_beside_a_session_of_ours_loads_without_the_library(tmp_path):
    """onnxruntime keeps the domain for the rest of the process, and writes it into whatever it saves."""
    model = between_float16_operators()
    rmsnorm_deploy.session(rmsnorm_deploy.fuse(model)[0])
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert ("rmsnorm_deploy", 1000) in {(i.domain, i.version) for i in onnx.load(tmp_path / "o.onnx").opset_import}
    code = (
        "import sys, onnx, onnxruntime; onnx.checker.check_model(sys.argv[1]); "
        "onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider']); print('loads')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "o.onnx")], capture_output=True, text=True, check=False
    )
    assert done.stdout == "loads\n", done.stderr
