"""The source distribution builds away from its repository, and without a compiler becomes the pure wheel."""

import os
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venvs" / "wheels" / "bin" / "python"
DIST = ROOT / "dist"


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The unpacked distribution."""
    found = sorted(DIST.glob("*.tar.gz"))
    if not found or not PYTHON.exists():
        pytest.skip("dist/ has no source distribution, or .venvs/wheels nothing to build it with: make wheels")
    folder = tmp_path_factory.mktemp("sources")
    with tarfile.open(found[-1]) as file:
        file.extractall(folder)
    (unpacked,) = folder.iterdir()
    return unpacked


def build(sources, folder, **variables):
    """What building a wheel gives where no compiler can be found: the build's own programs are all that there is."""
    programs = folder / "programs"
    programs.mkdir(parents=True)
    for name in ("cmake", "ninja"):
        (programs / name).symlink_to(PYTHON.parent / name)
    shutil.rmtree(sources / "build", ignore_errors=True)
    environment = {k: v for k, v in os.environ.items() if k not in ("CC", "CXX", "CUDACXX", "PYTHONPATH")}
    command = [PYTHON, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, sources]
    return subprocess.run(
        command,
        env=environment | {"PATH": str(programs)} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_it_holds_what_a_build_and_the_tests_need(sources):
    for path in (
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "Makefile",
        "ops/CMakeLists.txt",
        "ops/ort/ours/exports.map",
    ):
        assert (sources / path).is_file(), path
    for folder in ("ops", "rmsnorm_deploy", "tests", "samples/models"):
        here = {
            p.relative_to(ROOT) for p in (ROOT / folder).rglob("*.*") if p.is_file() and "__pycache__" not in p.parts
        }
        there = {p.relative_to(sources) for p in (sources / folder).rglob("*") if p.is_file()}
        missing = {
            p for p in here - there if p.suffix in (".py", ".cpp", ".h", ".cu", ".cuh", ".map", ".cmake", ".onnx")
        }
        assert missing == set()
    assert not (sources / ".ci").exists()


def test_without_a_compiler_it_becomes_the_wheel_without_a_library(sources, tmp_path):
    done = build(sources, tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as file:
        assert not [n for n in file.namelist() if "/lib/" in n]
    assert done.stdout.count("WITHOUT ITS KERNELS") == 1


def test_whoever_needs_the_kernels_gets_an_error_instead(sources, tmp_path):
    done = build(sources, tmp_path, RMSNORM_DEPLOY_NEEDS_KERNELS="1")
    assert done.returncode != 0
    assert not list(tmp_path.glob("*.whl"))
    assert "WITHOUT ITS KERNELS" not in done.stdout
