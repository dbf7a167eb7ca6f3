"""The demonstration, from the library and from the command line; and the session sample."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rmsnorm_deploy import MissingEnvironment
from rmsnorm_deploy.cli import app as cli

pytest.importorskip("onnxruntime", reason="the demonstration runs models in onnxruntime")
from rmsnorm_deploy.check import demo

ROOT = Path(__file__).parents[2]
NORMS = {"gemma_float16": 5, "llama_float16": 5, "qwen3_float32": 9, "t5_encoder_float32": 5}


def test_every_norm_is_fused_and_every_model_verified(capsys):
    assert cli.main(["demo", "--seconds", "0.05", "--json"]) == 0
    out, _ = capsys.readouterr()
    value = json.loads(out)
    assert value["schema_version"] == 1
    assert {m["name"]: len(m["report"]["fused"]) for m in value["models"]} == NORMS
    for model in value["models"]:
        assert model["verification"]["passed"]
        assert [c["what"] for c in model["timing"]["comparisons"]] == ["model", "one norm"]
    assert value["agreement"]["library"] == ""
    assert value["agreement"]["ulps"] < 20


def test_the_table_has_a_row_for_each_model(capsys):
    assert cli.main(["demo", "--seconds", "0.02"]) == 0
    out, err = capsys.readouterr()
    rows = [line.split() for line in out.splitlines()]
    for name, norms in NORMS.items():
        row = next(r for r in rows if r and r[0] == name)
        assert row[1:3] == [str(norms), str(norms)]
        assert "yes" in row
    assert "both agree" in out
    assert "took" in err


def test_a_disagreement_is_a_failure(capsys, monkeypatch):
    monkeypatch.setattr(demo, "agreement", lambda path: demo.Agreement(path.stem, 0.5, 500.0, ""))
    assert cli.main(["demo", "--seconds", "0.02"]) == 1
    assert "they DIFFER" in capsys.readouterr().out


def test_without_the_library_the_demonstration_still_runs(capsys, monkeypatch):
    monkeypatch.setenv("RMSNORM_DEPLOY_LIBRARY", "/nowhere.so")
    assert cli.main(["demo", "--seconds", "0.02"]) == 0
    assert "ran by their function bodies" in capsys.readouterr().out


def test_without_the_models_it_says_where_to_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "__file__", str(tmp_path / "site" / "rmsnorm_deploy" / "check" / "demo.py"))
    with pytest.raises(MissingEnvironment, match="not where the package was installed"):
        demo.model_folder()
    assert cli.main(["demo"]) == 4
    assert "make demo" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake")
def test_an_installed_package_has_the_models(tmp_path, monkeypatch):
    site, build = tmp_path / "site", tmp_path / "build"
    off = ["-DRMSNORM_DEPLOY_CUDA=OFF"]
    subprocess.run(["cmake", "-S", ROOT / "ops", "-B", build, *off], check=True, capture_output=True)
    install = ["cmake", "--install", build, "--prefix", site, "--component", "demo_models"]
    subprocess.run(install, check=True, capture_output=True)
    monkeypatch.setattr(demo, "__file__", str(site / "rmsnorm_deploy" / "check" / "demo.py"))
    assert {path.stem for path in demo.model_folder().glob("*.onnx")} == NORMS.keys()


def test_the_models_of_a_checkout_are_found_from_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert demo.model_folder() == ROOT / "samples" / "models"


def test_the_models_are_small():
    assert sum(p.stat().st_size for p in demo.model_folder().iterdir()) < 3_000_000


def test_the_session_sample_runs():
    command = [sys.executable, str(ROOT / "samples" / "session.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "fused 5 of 5" in done.stdout
    assert "[1, 8, 64]" in done.stdout
