"""Releases that are too old are said in a line, those that nobody has tried are said by doctor, and used."""

import importlib.metadata
import re
from pathlib import Path

import pytest

import rmsnorm_deploy
from benchmarks import matrix
from rmsnorm_deploy import cli, installed
from rmsnorm_deploy.check import doctor
from rmsnorm_deploy.errors import MissingEnvironment

SAMPLE = Path(__file__).parents[2] / "samples" / "models" / "t5_encoder_float32.onnx"


@pytest.fixture
def releases(monkeypatch):
    """Other releases than are there, by package."""
    real = importlib.metadata.version

    def set_to(**others):
        given = {name.replace("_", "-"): release for name, release in others.items()}
        monkeypatch.setattr(importlib.metadata, "version", lambda name: given.get(name) or real(name))
        installed.require_versions.cache_clear()

    yield set_to
    monkeypatch.undo()
    installed.require_versions.cache_clear()


def test_what_is_installed_here_is_new_enough():
    assert not installed.too_old()
    installed.require_versions()


def test_the_bounds_are_those_of_the_project():
    assert installed.bounds() == matrix.oldest()
    assert installed.bounds().keys() == installed.TRIED.keys()


def test_what_was_tried_is_no_older_than_what_is_needed():
    for package, bound in installed.bounds().items():
        assert tuple(map(int, installed.TRIED[package].split("."))) >= tuple(map(int, bound.split(".")[:2]))


@pytest.mark.parametrize(
    ("package", "release"), [("onnx", "1.17.0"), ("onnx_ir", "0.2.1"), ("typer", "0.12.5"), ("onnxruntime", "1.19.2")]
)
def test_a_release_that_is_too_old_is_said_in_a_line(releases, capsys, tmp_path, package, release):
    releases(**{package: release})
    assert cli.main(["fuse", str(SAMPLE), "-o", str(tmp_path / "f.onnx")]) == 4
    said = capsys.readouterr().err.splitlines()
    name = package.replace("_", "-")
    bound = installed.bounds()[name]
    assert said == [
        f"error: {name} {release} is too old: {bound} or newer is needed",
        f"hint: Install newer ones: pip install '{name}>={bound}'",
    ]
    assert not list(tmp_path.iterdir())
    with pytest.raises(MissingEnvironment, match=f"{name} {re.escape(release)} is too old"):
        rmsnorm_deploy.explain(SAMPLE)
    assert cli.main(["doctor"]) == 0
    assert f"{name} {release} is too old" in capsys.readouterr().err


@pytest.mark.parametrize("release", ["99.0.0", "1.99", "2.0.0rc1", "1.24.0.dev20270101+cpu"])
def test_a_release_that_nobody_has_tried_is_said_and_used(releases, release):
    releases(onnx=release)
    assert any(f"onnx {release} is newer than" in advice for advice in doctor.examine()["advice"])
    assert rmsnorm_deploy.explain(SAMPLE).fused


def test_cells_of_the_matrix():
    cells = matrix.cells(["3.10", "3.11"], matrix.oldest())
    names = [cell.name for cell in cells]
    assert names[:2] == ["Python 3.11", "Python 3.10"]
    assert f"Python 3.11, onnxruntime {matrix.ONNXRUNTIMES[0]}" in names
    assert all(any(f"{name} " in n for n in names) for name in matrix.DEPENDENCIES)
    assert len(cells[-1].pins) == len(matrix.DEPENDENCIES) + 1


def test_a_cell_with_other_bytes_is_a_fault():
    first = {"same bytes": {"hashes": {"a": "1"}, "fault": ""}, "sessions": {"hashes": {}, "fault": ""}}
    other = {"same bytes": {"hashes": {"a": "2"}, "fault": ""}, "sessions": {"hashes": {}, "fault": "it broke"}}
    assert not any(matrix.judged(first, first).values())
    assert matrix.judged(other, first) == {
        "same bytes": "other bytes than in the first cell: a",
        "sessions": "it broke",
    }
