"""The page about converting: what it gives to copy runs, and what it shows is what is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.support.streams import TOKENS, D, Streams, layer_norms

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "convert.md"
WRITTEN = ("converted", "plain", "strict", "from_python")


@pytest.fixture
def folder(tmp_path):
    g = Streams()
    onnx.save(g.finish(g.layers(g.embedded(), 1)), tmp_path / "model.onnx")
    g = Streams()
    x = g.layers(g.embedded(), 1)
    g.output(x, "hidden", (2, TOKENS, D))
    onnx.save(g.finish(x), tmp_path / "hidden.onnx")
    return tmp_path


def output_of(command, folder):
    """What a command prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (command, done.stderr[-1500:])
    return done.stdout


def test_what_the_page_gives_to_copy_runs(folder):
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert [language for language, _ in blocks] == ["sh", "python"]
    for language, text in blocks:
        output_of([sys.executable, "-c", text] if language == "python" else ["bash", "-ec", text], folder)
    for name in WRITTEN:
        model = onnx.load(folder / f"{name}.onnx")
        assert layer_norms(model) == 0, name
        assert any(n.domain == "rmsnorm_deploy" for n in model.graph.node) == (name != "plain")


@pytest.mark.parametrize(("mark", "model"), [("proof", "model"), ("left", "hidden")])
def test_the_proof_is_what_is_printed(mark, model, folder):
    text = PAGE.read_text()
    shown = text[text.index(f"<!-- {mark}: begin -->") : text.index(f"<!-- {mark}: end -->")].splitlines()[1:]
    said = output_of(["rmsnorm-deploy", "convert", f"{model}.onnx", "--dry-run"], folder)
    assert [line[4:] for line in shown if line] == said.splitlines()
