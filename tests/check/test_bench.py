"""Timing: the right things are run, in turns, and the numbers are whole."""

import dataclasses
import json
import sys
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
from rmsnorm_deploy.check import shares
from rmsnorm_deploy.check.alone import NORM_ELEMENTS, one_norm
from rmsnorm_deploy.check.bench import bench
from rmsnorm_deploy.check.clock import ORT_FORM, WITHOUT
from rmsnorm_deploy.check.timing import Ratio, in_turns, noise_of, one_at_a_time

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
        assert c.low <= c.ratio <= c.high
        assert c.noise >= 0.01
    assert (model.place, norm.place) == ("", rmsnorm_deploy.fuse(path)[1].fused[0].output)
    assert [t.variant for t in model.others] == [WITHOUT, ORT_FORM]
    assert [t.variant for t in norm.others] == [WITHOUT]
    assert len(model.other_ratios) == 2
    before, after = result.shares
    assert before.variant == "original"
    for share in (before, after):
        assert 0 < share.norms < share.all
        assert share.share == pytest.approx(share.norms / share.all)
    assert "nodes to 1" in norm.detail
    assert "kernels" in model.after.variant
    assert json.loads(json.dumps(result.to_dict()))["schema_version"] == 1


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_the_norm_cut_out_is_the_same_before_and_after(path):
    original, (made, report) = Runnable.of(path), rmsnorm_deploy.fuse(path)
    norm = next(f for f in report.fused if f.op == "AddRMSNorm")
    detail, chain, single, feeds = one_norm(original, Runnable.of(made), norm, make_inputs(original.proto))
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
    times = in_turns([lambda: calls.append("a"), lambda: calls.append("b")], 0)
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
    (note,) = (n for n in bench(tmp_path / "f.onnx", seconds=0.02).notes if "both sides" in n)
    assert note.startswith("the norms were fused before")


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


def test_every_norm_has_its_time_within_the_model():
    fused, report = rmsnorm_deploy.fuse(LLAMA)
    result = bench(LLAMA, fused, seconds=0.05)
    assert not result.library, result.library
    assert set(result.kernels) == {f.output for f in report.fused}
    assert sum(result.kernels.values()) == pytest.approx(result.shares[1].norms)
    assert json.loads(json.dumps(result.to_dict()))["kernels"] == result.kernels


def opener(calls, name):
    """What opens a run that says when it was opened, run and closed."""

    class Run:
        def __init__(self):
            calls.append(f"open {name}")

        def __call__(self):
            calls.append(name)

        def __del__(self):
            calls.append(f"close {name}")

    return Run


def test_one_variant_at_a_time_is_in_memory_where_weights_are_large():
    calls, told = [], []
    times = one_at_a_time([opener(calls, "a"), opener(calls, "b")], 0, told.append)
    runs = len(times[0]) // 2
    assert len(times[0]) == len(times[1]) == 2 * runs
    marks = [c for c in calls if " " in c]
    order = ["open a", "close a", "open b", "close b", "open b", "close b", "open a", "close a"]
    assert marks == order
    assert told == [0.25, 0.5, 0.75, 1.0]


def test_large_weights_are_timed_one_variant_at_a_time(monkeypatch):
    monkeypatch.setattr(sys.modules["rmsnorm_deploy.check.bench"], "TOGETHER", 1000)
    module, told, moved = sys.modules["rmsnorm_deploy.check.bench"], [], []
    real = module.moved_out
    monkeypatch.setattr(module, "moved_out", lambda *a: moved.append(a[2]) or real(*a))
    result = bench(SAMPLES[0], seconds=0.01, progress=lambda *step: told.append(step))
    assert result.alternating
    assert any("one variant at a time" in n for n in result.notes)
    model = result.comparisons[0]
    assert model.before.runs == model.after.runs == model.others[0].runs
    assert moved == ["original"]  # its weights are inside, and every variant uses one copy of them
    assert ("timing the model", 100, 100) in told
    assert ("timing one norm", 100, 100) in told


def test_a_norm_is_cut_out_without_reading_the_weights(tmp_path, monkeypatch):
    onnx.save(onnx.load(SAMPLES[2]), tmp_path / "m.onnx", save_as_external_data=True, location="w")

    def read(*_):
        raise AssertionError

    monkeypatch.setattr(Runnable, "loaded", read)
    result = bench(tmp_path / "m.onnx", seconds=0.01)
    assert [c.what for c in result.comparisons] == ["model", "one norm"]


def test_the_share_of_the_norms_counts_what_they_are_in_each_variant(monkeypatch):
    """Chains of unnamed nodes, function bodies and single operators are norms; nothing else is."""
    model = onnx.load(SAMPLES[2])
    for node in model.graph.node:
        node.name = ""
    fused, report = rmsnorm_deploy.fuse(model)
    feeds = make_inputs(model)
    shown = {}
    real = shares._is_norm

    def noted(event, chains):
        found = real(event, chains)
        shown.setdefault(variant, {}).setdefault(found, set()).add(event["args"]["op_name"])
        return found

    monkeypatch.setattr(shares, "_is_norm", noted)
    variants = (("original", model, False), ("bodies", fused, False), ("library", fused, True))
    for variant, one, library in variants:
        named = shares.with_names(Runnable.of(one))
        share = shares.profile_of(variant, named, report.fused, feeds, library=library, threads=1).share
        assert 0 < share.share < 1
    assert not model.graph.node[0].name
    for variant, _, _ in variants:
        assert "MatMul" in shown[variant][False]
        assert "MatMul" not in shown[variant][True]
    assert shown["original"][True] & {"ReduceMean", "SimplifiedLayerNormalization"}
    assert "ReduceMean" not in shown["original"][False]
    assert shown["library"][True] == {"RMSNorm", "AddRMSNorm"}


@pytest.mark.parametrize(
    ("after", "again", "differs"),
    [
        ([50.0] * 40, [100.0] * 40, True),
        ([200.0] * 40, [100.0] * 40, True),
        ([99.5] * 40, [100.0] * 40, False),
        ([97.0] * 40, [95.0] * 40, False),
        ([104.0] * 40, [105.0] * 40, False),
        ([60.0, 160.0] * 20, [100.0] * 40, False),
    ],
    ids=["faster", "slower", "too little", "less than noise", "no slower than noise", "all over the place"],
)
def test_a_difference_is_one_only_beyond_the_noise(after, again, differs):
    before = [100.0] * 40
    noise = noise_of(Ratio.of(before, again))
    assert Ratio.of(before, after).is_beyond(noise) == differs


def test_the_verdict_is_in_words(capsys):
    comparison = bench(SAMPLES[0], seconds=0.01).comparisons[0]
    assert "no difference beyond noise" in dataclasses.replace(comparison, differs=False).verdict()
    assert f"{comparison.ratio:.2f}x" in dataclasses.replace(comparison, differs=True).verdict()


def test_large_weights_stay_inside_where_there_is_no_space(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    module = sys.modules["rmsnorm_deploy.check.bench"]
    monkeypatch.setattr(module, "TOGETHER", 1000)
    monkeypatch.setattr(module, "moved_out", full)
    fused, _ = rmsnorm_deploy.fuse(SAMPLES[0])
    assert bench(SAMPLES[0], fused, seconds=0.01).alternating


def test_of_many_inputs_the_first_are_named():
    proto = onnx.load(SAMPLES[0])
    names = [f"past{i}" for i in range(4)]
    proto.graph.input.extend(onnx.helper.make_tensor_value_info(name, 1, [1]) for name in names)
    proto.graph.output.extend(onnx.helper.make_tensor_value_info(f"{name}_out", 1, [1]) for name in names)
    proto.graph.node.extend(onnx.helper.make_node("Identity", [name], [f"{name}_out"]) for name in names)
    detail = bench(proto, seconds=0.02, threads=1).comparisons[0].detail
    assert detail.endswith("past0 float32[1], past1 float32[1] and 2 more")
