"""The pages about several models and about timing: the lines that they give to copy run as they stand."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from rmsnorm_deploy.check.alone import NORM_ELEMENTS
from rmsnorm_deploy.op import Op

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "how-to"


@pytest.fixture
def folder(tmp_path):
    for name, sample in (("a", "llama_float16"), ("b", "t5_encoder_float32")):
        (tmp_path / "models" / name).mkdir(parents=True)
        shutil.copy(ROOT / "samples" / "models" / f"{sample}.onnx", tmp_path / "models" / name / "model.onnx")
    return tmp_path


def run_lines_of(page, folder):
    """Run every line of the page's shell blocks, as one script."""
    lines = "".join(re.findall(r"^```sh\n(.*?)^```$", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL))
    assert lines
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path}
    command = ["bash", "-e", "-c", lines]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1500:]
    return done.stdout


def test_several_models(folder):
    run_lines_of("several-models.md", folder)
    for made in ("fused", "fused-too", "fused-again"):
        assert sorted(str(p.relative_to(folder / made)) for p in (folder / made).rglob("*.onnx")) == [
            "a/model.onnx",
            "b/model.onnx",
        ]
    assert (folder / "fused-one" / "model.onnx").is_file()
    assert any(n.domain == "rmsnorm_deploy" for n in onnx.load(folder / "piped.onnx").graph.node)
    assert not any(n.domain for n in onnx.load(folder / "plain.onnx").graph.node)


def test_timing(folder):
    pytest.importorskip("onnxruntime")
    printed = run_lines_of("bench.md", folder)
    variants = re.findall(r"^\| `(.*?)` \|", (PAGES / "bench.md").read_text(), re.MULTILINE)
    assert len(variants) == 4
    for variant in variants:
        assert variant in printed
    assert f" {NORM_ELEMENTS:,} elements" in (PAGES / "bench.md").read_text()


def test_every_operator_that_a_form_writes_is_on_the_page_of_the_forms():
    text = (PAGES / "runtimes.md").read_text()
    assert [op.value for op in Op if f"`{op.value}`" not in text] == []
