"""What the page of pipelines says of tools that are installed here, tried on one of its two models."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import rmsnorm_deploy
from benchmarks import genai, pipelines
from rmsnorm_deploy.run.inputs import make_inputs
from tests.support.run import run

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "pipelines.md"
MODEL = "t5_encoder_float32"
NORMS = 5


def rows():
    """The cells of the page's table, by the step's label."""
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" |")]
        if len(cells) == 1 + len(pipelines.ORDERS) and cells[0] != "step" and not cells[0].startswith("-"):
            found[cells[0]] = cells[1:]
    return found


def test_the_page_has_every_step_and_no_other():
    assert set(rows()) == {step.label for step in pipelines.STEPS}


@pytest.mark.parametrize("step", [s for s in pipelines.STEPS if not s.needs], ids=lambda s: s.name)
def test_each_order_does_what_the_page_says(step):
    pytest.importorskip("sympy", reason="onnxruntime's shape inference needs it")
    for order, cell in zip(pipelines.ORDERS, rows()[step.label], strict=True):
        outcome = pipelines.tried(step, MODEL, order)
        if outcome is None:
            assert not cell, order
            continue
        assert not outcome.problem, (order, outcome.reason)
        kernels, norms = map(int, re.match(r"(\d+) of (\d+)", cell).groups())
        assert outcome.norms == NORMS
        assert outcome.kernels == (NORMS if kernels == norms else kernels), order
        assert outcome.alone == ("library only" not in cell), order


def test_a_step_that_spoils_the_model_is_called_wrong(tmp_path):
    def spoil(source, target):
        model = onnx.load(source)
        if any(n.op_type == "RMSNorm" for n in model.graph.node):
            weight = max(model.graph.initializer, key=lambda t: len(t.raw_data))
            weight.raw_data = bytes(len(weight.raw_data))
        onnx.save(model, target)

    outcome = pipelines.tried(pipelines.Step("spoil", spoil), MODEL, "fuse, step")
    assert outcome.problem == "wrong"
    assert pipelines.cell([outcome]) == "wrong"


def blocks():
    """Language and text of the code on the page, in its order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_what_the_page_gives_to_copy_runs(tmp_path):
    """In one folder, from top to bottom; what onnxruntime-genai reads is tried by ``make pipelines``."""
    pytest.importorskip("sympy", reason="onnxruntime's transformers tools need it")
    shutil.copy(pipelines.SAMPLES / f"{MODEL}.onnx", tmp_path / "model.onnx")
    (tmp_path / "folder").mkdir()
    shutil.copy(tmp_path / "model.onnx", tmp_path / "folder")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    found = [(language, text) for language, text in blocks() if language != "json"]
    for language, text in found:
        command = [sys.executable, "-c", text] if language == "python" else ["bash", "-ec", text]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (text, done.stderr[-1500:])
    assert len(found) > 8
    for name in ("int8", "int4", "qdq", "qdq_products_fused", "float16_fused", "opset21_fused", "fused/model"):
        assert len(rmsnorm_deploy.explain(tmp_path / f"{name}.onnx").fused) == 0  # all of them are
        norms = [n for n in onnx.load(tmp_path / f"{name}.onnx").graph.node if n.domain == "rmsnorm_deploy"]
        assert len(norms) == NORMS, name
    assert list((tmp_path / "ort").glob("*.ort"))


def test_a_folder_of_genai_is_made_as_it_wants_it():
    """GenAI itself is no dependency: here only the decoder is run, by onnxruntime."""
    for contrib in (False, True):
        model = genai.decoder(contrib=contrib)
        fused, report = rmsnorm_deploy.fuse(model)
        assert len(report.fused) == genai.NORMS
        feeds = make_inputs(model)
        results = [run(m, feeds, False) for m in (model, fused)]
        for expected, got in zip(*results, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    library = rmsnorm_deploy.library_path()
    decoder = genai.configuration(library)["model"]["decoder"]
    assert decoder["session_options"]["custom_ops_library"] == str(library)
    names = {v.name for v in model.graph.input}
    assert {pattern % 1 for pattern in decoder["inputs"].values() if "%d" in pattern} <= names
