"""``--report``: beside the output or alone, whatever comes of the command; never half-written, never over a file."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import rmsnorm_deploy
from rmsnorm_deploy.report import write
from tests.support.seeded import Norm

GEMMA = Path(__file__).parents[2] / "samples" / "models" / "gemma_float16.onnx"


@pytest.fixture
def fused(tmp_path):
    path = tmp_path / "given.onnx"
    rmsnorm_deploy.save(rmsnorm_deploy.fuse(GEMMA)[0], path)
    return path


@pytest.mark.parametrize("ending", ["html", "md"])
def test_fuse_writes_it_beside_the_output(ending, run, tmp_path):
    out, report = tmp_path / "my fused.onnx", tmp_path / f"r.{ending}"
    status, _, err = run("fuse", GEMMA, "-o", out, "--verify", "--report", report)
    assert status == 0
    assert f"wrote the report {report}" in err
    text = report.read_text()
    assert "PASSED" in text
    assert "my fused.onnx" in text
    assert "--verify --report" in text
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([out.name, report.name])
    status, _, err = run("fuse", GEMMA, "-o", out, "--report", report)
    assert status == 2
    assert run("fuse", GEMMA, "-o", out, "--report", report, "--force")[0] == 0
    assert "PASSED" not in report.read_text()


def test_nothing_but_json_is_on_stdout(run, tmp_path):
    status, out, _ = run("fuse", GEMMA, "--dry-run", "--report", tmp_path / "r.html", "--json")
    assert status == 0
    assert json.loads(out)["dry_run"]
    assert "would fuse 5 of 5" in (tmp_path / "r.html").read_text()


def test_a_result_that_is_refused_has_a_report(run, tmp_path, monkeypatch):
    import rmsnorm_deploy.fusing.fuse as fusing

    honest = fusing.fuse

    def spoilt(model, **options):
        proto, report = honest(model, **options)
        norm = Norm(proto)
        norm.set("epsilon", norm.attributes["epsilon"] * 10)
        return norm.model, report

    with monkeypatch.context() as patch:
        patch.setattr(fusing, "fuse", spoilt)
        status, _, err = run("fuse", GEMMA, "-o", tmp_path / "f.onnx", "--verify", "--report", tmp_path / "r.html")
    assert status == 1
    assert "wrote the report" in err
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]
    text = (tmp_path / "r.html").read_text()
    assert "FAILED" in text
    assert "probably epsilon" in text


def test_verify_writes_it_whatever_it_finds(run, fused, tmp_path):
    assert run("verify", GEMMA, fused, "--report", tmp_path / "good.html")[0] == 0
    assert "PASSED" in (tmp_path / "good.html").read_text()
    norm = Norm(onnx.load(fused))
    norm.set("epsilon", norm.attributes["epsilon"] * 10)
    onnx.save(norm.model, tmp_path / "bad.onnx")
    assert run("verify", GEMMA, tmp_path / "bad.onnx", "--report", tmp_path / "bad.md")[0] == 1
    assert "**FAILED**" in (tmp_path / "bad.md").read_text()


def test_bench_and_explain_write_it(run, tmp_path):
    assert run("bench", GEMMA, "--seconds", "0.05", "--report", tmp_path / "b.html")[0] == 0
    text = (tmp_path / "b.html").read_text()
    assert text.count('<svg class="chart"') == 2
    assert "times as fast" in text or "no difference beyond noise" in text
    assert "share of the operators" in text
    assert "fused, form ort" in text
    assert " \u2192 " in text, "the norm that was timed has its time in the list"
    assert run("explain", GEMMA, "--report", tmp_path / "e.html")[0] == 0
    assert "would fuse 5 of 5" in (tmp_path / "e.html").read_text()
    status, _, err = run("explain", GEMMA, "--report", tmp_path / "e.html")
    assert status == 2
    assert "--force" in err
    assert run("explain", GEMMA, "--report", tmp_path / "e.html", "--force")[0] == 0


def test_in_a_folder_it_is_called_as_the_model_is(run, tmp_path):
    assert run("explain", GEMMA, "--report", tmp_path)[0] == 0
    assert [p.name for p in tmp_path.iterdir()] == [f"{GEMMA.stem}.html"]


@pytest.mark.parametrize(
    ("name", "said"),
    [("r.txt", ".html"), ("missing/r.html", "mkdir"), ("same.html", "two names")],
)
def test_a_report_that_cannot_be_is_refused_before_any_work(name, said, run, tmp_path):
    status, _, err = run("fuse", GEMMA, "-o", tmp_path / "same.html", "--report", tmp_path / name)
    assert status == 2
    assert said in err
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_fails_leaves_no_output(run, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "write_new", full)
    status, _, err = run("fuse", GEMMA, "-o", tmp_path / "f.onnx", "--report", tmp_path / "r.html")
    assert status == 2
    assert "No space left" in err
    assert list(tmp_path.iterdir()) == []


def test_it_is_about_one_model(run, tmp_path):
    models = tmp_path / "models"
    models.mkdir()
    (models / "m.onnx").write_bytes(GEMMA.read_bytes())
    for given in ([GEMMA, models / "m.onnx"], [models]):
        status, _, err = run("fuse", *given, "-o", tmp_path / "out", "--report", tmp_path / "r.html")
        assert status == 2
        assert "about one model" in err
        assert [p.name for p in tmp_path.iterdir()] == ["models"]


def test_one_model_into_a_folder_has_one_beside_it(run, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    assert run("fuse", GEMMA, "-o", f"{folder}/", "--report", folder)[0] == 0
    assert sorted(p.name for p in folder.iterdir()) == [f"{GEMMA.stem}.html", GEMMA.name]
    assert GEMMA.name in (folder / f"{GEMMA.stem}.html").read_text()


def test_a_model_that_goes_to_stdout_has_one(tmp_path):
    command = [sys.executable, "-m", "rmsnorm_deploy", "fuse", "-", "-o", "-", "--report", tmp_path / "r.html"]
    done = subprocess.run(command, input=GEMMA.read_bytes(), capture_output=True, check=True)
    assert any(n.domain == "rmsnorm_deploy" for n in onnx.load_from_string(done.stdout).graph.node)
    assert b"wrote the report" in done.stderr
    assert "fused 5 of 5" in (tmp_path / "r.html").read_text()


def layer_norms():
    """A model with a LayerNorm that can be converted, and one that cannot: its input is the model's."""
    width = 8
    rng = np.random.default_rng(0)
    arrays = {
        "e": rng.standard_normal((16, width)),
        "w1": 1 + rng.random(width),
        "w2": 1 + rng.random(width),
    }
    nodes = [
        onnx.helper.make_node("Gather", ["e", "ids"], ["h"], "embed"),
        onnx.helper.make_node("LayerNormalization", ["h", "w1"], ["a"], "first", epsilon=1e-5),
        onnx.helper.make_node("Neg", ["a"], ["y"], "behind"),
        onnx.helper.make_node("LayerNormalization", ["z", "w2"], ["b"], "second", epsilon=1e-5),
    ]
    values = {"z": [2, width], "y": [2, width], "b": [2, width]}
    of = {k: onnx.helper.make_tensor_value_info(k, onnx.TensorProto.FLOAT, v) for k, v in values.items()}
    ids = onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [2])
    tensors = [onnx.numpy_helper.from_array(v.astype(np.float32), k) for k, v in arrays.items()]
    graph = onnx.helper.make_graph(nodes, "g", [ids, of["z"]], [of["y"], of["b"]], tensors)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("ending", ["html", "md"])
@pytest.mark.parametrize("more", [[], ["--no-fuse"], ["--dry-run"]], ids=" ".join)
def test_convert_says_what_became_of_each_layer_norm(more, ending, run, tmp_path):
    onnx.save(layer_norms(), tmp_path / "m.onnx")
    report = tmp_path / f"r.{ending}"
    output = [] if more == ["--dry-run"] else ["-o", tmp_path / "out.onnx"]
    status, _, err = run("convert", tmp_path / "m.onnx", *output, *more, "--report", report)
    assert status == 0, err
    assert f"wrote the report {report}" in err
    text = report.read_text()
    assert ("would convert" if output == [] else "converted") + " 1 of 2 LayerNorms" in text
    assert "1 constant without a mean: e" in text
    assert "second" in text
    assert ("PASSED" in text) == (output != [])


@pytest.mark.parametrize("ending", ["html", "md"])
def test_unfuse_writes_it(ending, run, fused, tmp_path):
    report = tmp_path / f"r.{ending}"
    status, _, err = run("unfuse", fused, "-o", tmp_path / "plain.onnx", "--verify", "--report", report)
    assert status == 0, err
    text = report.read_text()
    assert "PASSED" in text
    assert "plain.onnx" in text
    assert run("unfuse", tmp_path, "-o", tmp_path / "new/", "--report", tmp_path / "x.html")[0] == 2
    assert not (tmp_path / "x.html").exists()
