"""Writing a report: whole or not at all, the same bytes each time, from models in any form, which stay as they are."""

import copy
import os
import subprocess
import sys

import onnx
import onnx_ir as ir
import pytest

import rmsnorm_deploy
from rmsnorm_deploy.errors import ModelError, UsageError
from rmsnorm_deploy.report import write
from tests.report.conftest import GEMMA, evil_model


@pytest.mark.parametrize("ending", ["html", "md"])
def test_models_in_any_form_give_the_same(ending, tmp_path):
    proto = onnx.load(GEMMA)
    given = copy.deepcopy(proto)
    texts = []
    for i, model in enumerate((GEMMA, str(GEMMA), proto, ir.load(GEMMA))):
        path = rmsnorm_deploy.write_report(tmp_path / f"{i}.{ending}", model)
        texts.append(path.read_text().replace(GEMMA.name, "M").replace(proto.graph.name, "M"))
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]
    # a graph that is called as a model is
    assert texts[0] == texts[2]
    assert proto == given
    assert "would fuse 5 of 5" in texts[0]


def test_other_hash_seeds_give_the_same_bytes(tmp_path):
    onnx.save(evil_model(), tmp_path / "evil.onnx")
    program = (
        "import sys, rmsnorm_deploy\n"
        "for ending in ('html', 'md'):\n"
        "    rmsnorm_deploy.write_report(f'{sys.argv[1]}.{ending}', sys.argv[2], date=sys.argv[3])\n"
    )
    found = set()
    for seed in ("1", "2"):
        out = tmp_path / f"seed{seed}"
        arguments = [sys.executable, "-c", program, str(out), str(tmp_path / "evil.onnx"), "on a day"]
        subprocess.run(arguments, check=True, env=os.environ | {"PYTHONHASHSEED": seed})
        found.add(b"".join(out.with_suffix(e).read_bytes() for e in (".html", ".md")))
    (data,) = found
    assert data.count(b"on a day") == 2


def test_nothing_in_it_comes_from_the_clock(reports):
    assert "<time" not in reports.texts["full.html"]
    assert "date" not in reports.texts["full.md"]


def test_an_existing_file_stays_unless_told(tmp_path):
    path = tmp_path / "out.html"
    path.write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        rmsnorm_deploy.write_report(path, GEMMA)
    assert path.read_text() == "mine"
    rmsnorm_deploy.write_report(path, GEMMA, overwrite=True)
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert [p.name for p in tmp_path.iterdir()] == ["out.html"]


@pytest.mark.parametrize("name", ["out", "out.txt", "out.onnx", "out.html.gz", "missing/out.html"])
def test_names_that_are_no_report_are_refused(name, tmp_path):
    with pytest.raises(UsageError) as error:
        rmsnorm_deploy.write_report(tmp_path / name, GEMMA)
    assert error.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_none_leaves_nothing(tmp_path):
    with pytest.raises(ModelError):
        rmsnorm_deploy.write_report(tmp_path / "out.html", tmp_path / "missing.onnx")
    assert list(tmp_path.iterdir()) == []


def test_what_fails_later_takes_it_back(tmp_path):
    path = tmp_path / "out.md"
    path.write_text("old")

    def fail():
        with write.writing_report(path, GEMMA, overwrite=True):
            assert path.read_text() != "old"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out.md"]


def test_an_unfused_model_is_drawn_from_ours(tmp_path):
    fused, _ = rmsnorm_deploy.fuse(GEMMA)
    plain, report = rmsnorm_deploy.unfuse(fused)
    text = rmsnorm_deploy.write_report(tmp_path / "out.html", fused, report, fused=plain).read_text()
    assert "unfused 5 of 5" in text
    assert "rmsnorm_deploy::AddRMSNorm" in text
