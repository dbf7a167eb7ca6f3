"""Timing: the right things are run, in turns, and the numbers are whole."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import rmsnorm_deploy
from rmsnorm_deploy import MissingEnvironment, UsageError
from rmsnorm_deploy.model.cut import cut, with_outputs
from rmsnorm_deploy.run.inputs import make_inputs
from rmsnorm_deploy.run.runnable import Runnable
from rmsnorm_deploy.run.runner import Runner

pytest.importorskip("onnxruntime", reason="timing runs models in onnxruntime")
from rmsnorm_deploy.check.bench import NORM_ELEMENTS, _in_turns, _one_norm, bench

SAMPLES = sorted((Path(__file__).parents[2] / "samples" / "models").glob("*.onnx"))
LLAMA = next(p for p in SAMPLES if p.stem == "llama_float16")


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_the_model_and_one_norm_are_timed(path):
    result = bench(path, seconds=0.05)
    model, norm = result.comparisons
    assert (model.what, norm.what) == ("model", "one norm")
    for c in (model, norm):
        for t in (c.before, c.after):
            assert 0 < t.p10 <= t.median <= t.p90
        assert c.before.runs == c.after.runs >= 8
        assert c.ratio_p10 <= c.ratio <= c.ratio_p90
        assert c.baseline.startswith("onnxruntime ")
    assert "nodes to 1" in norm.detail
    assert "kernels" in model.after.variant
    assert json.loads(json.dumps(result.to_dict()))["schema_version"] == 1


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_the_norm_cut_out_is_the_same_before_and_after(path):
    original, (made, report) = Runnable.of(path), rmsnorm_deploy.fuse(path)
    norm = next(f for f in report.fused if f.op == "AddRMSNorm")
    detail, chain, single, feeds = _one_norm(original, Runnable.of(made), norm, make_inputs(original.proto))
    assert feeds[norm.x].size >= NORM_ELEMENTS
    assert sum(n.domain == "rmsnorm_deploy" for n in single.proto.graph.node) == 1
    assert not any(n.domain for n in chain.proto.graph.node)
    assert "nodes to 1" in detail
    before, after = Runner(chain)(feeds), Runner(single)(feeds)
    assert len(before) == len(after) == 2  # the norm and the sum
    for a, b in zip(before, after, strict=True):
        assert a.shape == b.shape
        scale = np.abs(a.astype(np.float64)).max()
        assert np.abs(a.astype(np.float64) - b.astype(np.float64)).max() <= 4 * np.finfo(a.dtype).eps * scale


def test_runs_take_turns_in_both_orders():
    calls = []
    times = _in_turns([lambda: calls.append("a"), lambda: calls.append("b")], 0)
    measured = calls[6:]  # three rounds warm up
    assert len(times[0]) == len(times[1]) == 8
    assert measured[:4] == ["a", "b", "b", "a"]
    assert measured.count("a") == measured.count("b")


def test_a_fused_file_can_be_given(tmp_path):
    fused, _ = rmsnorm_deploy.fuse(SAMPLES[0])
    rmsnorm_deploy.save(fused, tmp_path / "f.onnx", source=SAMPLES[0])
    result = bench(SAMPLES[0], tmp_path / "f.onnx", seconds=0.02, threads=1)
    assert result.threads == 1
    assert len(result.comparisons) == 2


def test_a_model_without_norms_is_timed_and_said_to_have_none(tmp_path):
    path = tmp_path / "m.onnx"
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [value("x", 1, ["n", 4])], [value("y", 1, ["n", 4])]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    model.ir_version = 9
    onnx.save(model, path)
    result = bench(path, seconds=0.02, shapes={"x": (3, 4)})
    assert [c.what for c in result.comparisons] == ["model"]
    assert "x float32[3, 4]" in result.comparisons[0].detail
    assert any("no norm to fuse" in n for n in result.notes)
    with pytest.raises(UsageError):
        bench(path, shapes={"x": (3, 5)})


def test_an_original_that_does_not_run_is_the_environments_fault():
    model = onnx.load(SAMPLES[0])
    model.graph.node[-1].domain = "nobody"
    model.opset_import.append(onnx.helper.make_opsetid("nobody", 1))
    with pytest.raises(MissingEnvironment, match="does not run the original"):
        bench(model, seconds=0.02)


def test_cutting_stops_where_something_else_would_have_to_be_fed():
    model = onnx.load(SAMPLES[0])
    output = model.graph.output[0].name
    assert cut(model, [], [(output, 1)]) is None
    whole, count = cut(model, [("x", 7, [1, 8])], [(output, 10)])
    assert count <= len(model.graph.node)
    assert [i.name for i in whole.graph.input] == ["x"]
    probe = with_outputs(model, [model.graph.node[3].output[0]])
    assert len(probe.graph.output) == 1
    assert [o.name for o in model.graph.output] == [output]


def test_every_norm_has_its_time_where_that_is_asked_for():
    fused, report = rmsnorm_deploy.fuse(LLAMA)
    result = bench(LLAMA, fused, seconds=0.05, profile=True)
    assert not result.library, result.library
    assert set(result.kernels) == {f.output for f in report.fused}
    assert all(0 <= t < 1e6 for t in result.kernels.values())
    assert any("of the time of all nodes" in note for note in result.notes)
    assert json.loads(json.dumps(result.to_dict()))["kernels"] == result.kernels
    assert bench(LLAMA, fused, seconds=0.05).kernels == {}
