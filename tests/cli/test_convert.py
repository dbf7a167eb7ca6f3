"""The command ``convert``."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import rmsnorm_deploy
from rmsnorm_deploy.converting.centring import centred
from tests.support.streams import TOKENS, D, Streams, layer_norms


@pytest.fixture
def model(tmp_path):
    g = Streams()
    onnx.save(g.finish(g.layers(g.embedded())), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def refused(tmp_path):
    g = Streams()
    x = g.layers(g.embedded())
    g.output(x, "hidden", (2, TOKENS, D))
    onnx.save(g.finish(x), tmp_path / "r.onnx")
    return tmp_path / "r.onnx"


def test_a_model_is_converted_verified_and_written(run, model, tmp_path):
    status, out, err = run("convert", model, "-o", tmp_path / "out.onnx")
    assert (status, out.splitlines()[-1]) == (0, "converted 3 of 3 LayerNorms; fused 3 of 3")
    assert "verified: " in err
    assert layer_norms(onnx.load(tmp_path / "out.onnx")) == 0


def test_a_model_goes_to_stdout(model):
    command = [sys.executable, "-m", "rmsnorm_deploy", "convert", model, "-o", "-"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert layer_norms(onnx.load_from_string(done.stdout)) == 0
    assert done.stderr.splitlines()[0] == b"converted 3 of 3 LayerNorms; fused 3 of 3"


def test_a_result_that_is_less_exact_is_refused(run, model, tmp_path, monkeypatch):
    """Though it is within what a fused model may be off."""
    import rmsnorm_deploy.converting.contents as contents

    def coarse(array, axis, scales=()):
        mantissa, exponent = np.frexp(centred(array, axis, scales))
        return np.ldexp(np.round(mantissa * 2**17) / 2**17, exponent).astype(array.dtype)

    monkeypatch.setattr(contents, "centred", coarse)
    status, _, err = run("convert", model, "-o", tmp_path / "out.onnx")
    assert status == 1
    assert "less exact than its original" in err
    assert not (tmp_path / "out.onnx").exists()
    assert run("convert", model, "-o", tmp_path / "out.onnx", "--no-verify")[0] == 0
    rmsnorm_deploy.verify(model, tmp_path / "out.onnx").require()


def test_a_model_in_float16_is_verified(run, tmp_path):
    g = Streams(dtype=TensorProto.FLOAT16)
    onnx.save(g.finish(g.layers(g.embedded())), tmp_path / "half.onnx")
    status, _, err = run("convert", tmp_path / "half.onnx", "-o", tmp_path / "out.onnx", "--require", "all")
    assert status == 0, err
    assert "verified: " in err


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.FLOAT])
def test_an_error_larger_than_the_original_s_is_told(run, tmp_path, dtype):
    """New weights are rounded to float16 once more, where onnxruntime computes the original in float32."""
    g = Streams(dtype=dtype)
    onnx.save(g.finish(g.layers(g.embedded(), 6)), tmp_path / "m.onnx")
    status, out, err = run("convert", tmp_path / "m.onnx", "-o", tmp_path / "out.onnx", "--json")
    assert status == 0, err
    checks = json.loads(out)["verification"]["checks"]
    worst, own, stated = (max(c[key] for c in checks) for key in ("error", "as_run_error", "original_error"))
    said = [line for line in err.splitlines() if line.startswith("warning: less exact: ")]
    if dtype == TensorProto.FLOAT:
        assert worst <= max(1.5 * own, 1)
        assert not said
        return
    assert own < 1 < worst < stated
    (line,) = said
    assert line.startswith(f"warning: less exact: {worst:.3g} ULP (")
    assert line.endswith(f"the original with {own:.3g}; with the roundings that it states it has {stated:.3g}")


def test_options(run, model, tmp_path):
    plain = tmp_path / "plain.onnx"
    assert run("convert", model, "-o", plain, "--no-fuse", "--no-verify", "--require", "all")[0] == 0
    assert {n.domain for n in onnx.load(plain).graph.node} == {""}
    assert run("convert", model, "-o", plain)[0] == 2
    assert run("convert", model, "-o", plain, "--force", "--form", "onnx")[0] == 0
    assert "RMSNormalization" in {n.op_type for n in onnx.load(plain).graph.node}
    assert run("convert", model)[0] == 2
    assert run("convert", model, "-o", tmp_path / "x.onnx", "--require", "many")[0] == 2


def test_a_dry_run_shows_the_proof(run, model):
    status, out, _ = run("convert", model, "--dry-run")
    assert status == 0
    assert "edited   table: its mean over dimension -1; read by node_gather_" in out
    assert "bias     of node_layernormalization_" in out
    assert out.splitlines()[-1] == "would convert 3 of 3 LayerNorms"


def test_what_stays_is_said_and_can_be_required(run, refused, tmp_path):
    status, out, _ = run("convert", refused, "-o", tmp_path / "out.onnx")
    assert status == 0
    assert "left     " in out
    assert "'hidden' is an output of the graph" in out
    status, _, err = run("convert", refused, "-o", tmp_path / "no.onnx", "--require", "all")
    assert status == 1
    assert "--require asks for all LayerNorms, and converted 0 of 3 LayerNorms" in err
    assert not (tmp_path / "no.onnx").exists()


def test_json(run, model, refused, tmp_path):
    status, out, _ = run("convert", model, "-o", tmp_path / "out.onnx", "--json")
    value = json.loads(out)
    assert (status, value["converted"], value["found"], value["verification"]["passed"]) == (0, 3, 3, True)
    edits = {edit["name"]: edit for edit in value["streams"][0]["edits"]}
    read_by = edits["table"].pop("read_by")
    assert edits["table"] == {"name": "table", "axis": -1, "scales": [], "copied": False}
    assert len(read_by) == 1
    value = json.loads(run("convert", refused, "--dry-run", "--json")[1])
    assert value["streams"][0]["node"] == "hidden"
    assert value["streams"][0]["converted"] is False
