"""Every norm alone: seeded faults are found, placed and named, and correct models have none."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import rmsnorm_deploy
from rmsnorm_deploy.check.site_check import check_sites
from rmsnorm_deploy.run.inputs import make_inputs
from rmsnorm_deploy.run.runnable import Runnable
from tests.support.seeded import FAULTS, Norm
from tests.support.spellings.graph import F, Graph

pytest.importorskip("onnxruntime", reason="verification runs models in onnxruntime")

SAMPLES = sorted((Path(__file__).parents[2] / "samples" / "models").glob("*.onnx"))


@pytest.fixture(scope="module", params=SAMPLES, ids=lambda p: p.stem)
def sample(request):
    before = Runnable.of(request.param)
    return before, rmsnorm_deploy.fuse(request.param)[0], make_inputs(before.proto)


def test_correct_models_have_no_fault(sample):
    before, fused, feeds = sample
    sites, notes = check_sites(before, Runnable.of(fused), feeds)
    assert len(sites) == sum(n.domain == "rmsnorm_deploy" for n in fused.graph.node) >= 5
    assert [str(s) for s in sites if not s.passed] == []
    assert all(s.error < 3 and s.original_error is not None and not s.fault for s in sites)
    assert notes == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_placed_and_named(sample, fault):
    before, fused, feeds = sample
    norm = Norm(fused)
    seed, word = FAULTS[fault]
    seed(norm)
    sites, _ = check_sites(before, Runnable.of(norm.model), feeds)
    wrong = [s for s in sites if not s.passed]
    swapped = fault == "scales of two norms swapped"
    places = [norm.other.output[0]] * swapped + [norm.y]
    assert [s.output for s in wrong] == places
    assert all(word in s.fault and s.reason for s in wrong), [str(s) for s in wrong]


def test_norms_that_share_a_scale_have_the_names_of_the_report():
    g = Graph()
    weight = g.weight(np.linspace(0.5, 2, 8, dtype=np.float32), F, "layers.0.norm.weight")
    x = g.input("x", F, (2, 8))
    for _ in range(2):
        x = x / g.op("Sqrt", g.reduce("ReduceMean", x * x, (-1,)) + 1e-5) * weight
        x = g.op("Sigmoid", x)
    g.output(x, "y", (2, 8))
    model = g.model()
    fused, report = rmsnorm_deploy.fuse(model)
    sites, _ = check_sites(Runnable.of(model), Runnable.of(fused), make_inputs(model))
    assert [s.name for s in sites] == [n.node for n in report.fused]
    assert len({s.name for s in sites}) == 2


def with_bias():
    """A norm, and a bias behind it that stays a node of its own."""
    width = 8
    rng = np.random.default_rng(1)
    arrays = {"w": 1 + rng.random(width), "b": rng.standard_normal(width) / 10, "e": np.array(1e-5)}
    tensors = [numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()]
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["mean"], axes=[-1], keepdims=1),
        helper.make_node("Add", ["mean", "e"], ["safe"]),
        helper.make_node("Sqrt", ["safe"], ["rms"]),
        helper.make_node("Div", ["x", "rms"], ["n"]),
        helper.make_node("Mul", ["n", "w"], ["scaled"]),
        helper.make_node("Add", ["scaled", "b"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(v, onnx.TensorProto.FLOAT, ["rows", width]) for v in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_a_bias_that_is_lost_behind_a_norm_is_placed_and_named():
    original = with_bias()
    fused, report = rmsnorm_deploy.fuse(original)
    feeds = make_inputs(original)
    sites, notes = check_sites(Runnable.of(original), Runnable.of(fused), feeds)
    assert [s.passed for s in sites] == [True]
    assert report.fused[0].output == "scaled"
    wrong = onnx.ModelProto()
    wrong.CopyFrom(fused)
    del wrong.graph.node[1]
    wrong.graph.node[0].output[0] = "y"
    sites, notes = check_sites(Runnable.of(original), Runnable.of(wrong), feeds)
    assert notes == []
    assert [(s.output, s.passed) for s in sites] == [("y", False)]
    assert sites[0].fault.startswith("bias")
