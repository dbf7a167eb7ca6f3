"""The paper's measure, at tiny sizes: every record is there, and the numbers fit each other."""

import json

import pytest

from benchmarks import paper
from benchmarks.models import language

MODELS = {"GPT-2", paper.SKIP, "ViT", "Whisper encoder", "GRU"}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    target = tmp_path_factory.mktemp("paper") / "paper.json"
    assert paper.main(["--quick", "--json", str(target)]) == 0
    return target


def test_every_norm_and_model_is_measured(measured):
    records = json.loads(measured.read_text())
    norms, models = ([r for r in records if r["what"] == what] for what in ("norm", "model"))
    assert {(r["form"], r["rows"]) for r in norms} == {(form, rows) for form in paper.PARTS for rows in (1, 4)}
    assert {r["form"] for r in models} == MODELS
    for record in records:
        assert record["saved"] < 1
    assert all(record["rounds"] >= 11 for record in norms)
    for record in models:
        for what in ("saved", "control"):
            assert record[f"{what}_spread"][0] <= record[what] <= record[f"{what}_spread"][1]
            # a single row does little but read weights
            assert (record[f"{what}_same_place"] is not None) == (record["rows"] == 1)
        assert 0 < record["ours_share"] < 1
        assert 0 < record["layer_norm_share"] < 1
        assert not set(record["ours_norm_kinds"]) & {"LayerNormalization", "SkipLayerNormalization"}
    (skip, *_) = (r for r in models if r["form"] == paper.SKIP)
    assert "SkipLayerNormalization" in skip["layer_norm_norm_kinds"]
    assert "AddRMSNorm" in skip["ours_norm_kinds"]


def test_the_tables_are_shown_again(measured, capsys):
    assert paper.main(["--summary", str(measured)]) == 0
    shown = capsys.readouterr().out
    assert "| pRMSNorm 25% | 4x64 |" in shown
    assert shown.count("| GPT-2 |") == 2
    assert shown.count(" to ") > 2 * len(MODELS)


def test_one_model_alone(capsys):
    assert paper.main(["--quick", "--models", "GPT-2, 4"]) == 0
    shown = capsys.readouterr().out
    assert "| GPT-2 | 4 |" in shown
    assert not any(other in shown for other in ("| GPT-2 | 1 |", "ViT", "| RMSNorm |"))


def test_the_plot_is_a_picture(measured, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    assert paper.main(["--summary", str(measured), "--plot", str(tmp_path / "paper.png")]) == 0
    assert (tmp_path / "paper.png").read_bytes().startswith(b"\x89PNG")


def test_a_model_that_stays_is_no_measurement(monkeypatch):
    """Nor is one that computes something else."""
    import rmsnorm_deploy

    build = lambda: language.gru("float32", 2, 64)  # noqa: E731
    report = rmsnorm_deploy.convert(build(), dry_run=True)[1]
    sets = {1: {"tokens": paper.np.zeros((1, 2), paper.np.int64)}}
    with monkeypatch.context() as patch:
        less = type("Report", (), {"converted": 1, "found": 2, "summary": report.summary})()
        patch.setattr(paper.rmsnorm_deploy, "convert", lambda model: (model, less))
        with pytest.raises(AssertionError, match="GRU: would convert"):
            paper._model("GRU", build, sets, True)
    monkeypatch.setattr(paper.rmsnorm_deploy, "convert", lambda model: (language.gru("float32", 2, 64), report))
    with pytest.raises(AssertionError, match="computes something else"):
        paper._model("GRU", build, sets, True)
