"""What the page of pipelines says of tools that are installed here, tried on one of its two models."""

import re
from pathlib import Path

import pytest

from benchmarks import pipelines

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
    import onnx

    def spoil(source, target):
        model = onnx.load(source)
        if any(n.op_type == "RMSNorm" for n in model.graph.node):
            weight = max(model.graph.initializer, key=lambda t: len(t.raw_data))
            weight.raw_data = bytes(len(weight.raw_data))
        onnx.save(model, target)

    outcome = pipelines.tried(pipelines.Step("spoil", spoil), MODEL, "fuse, step")
    assert outcome.problem == "wrong"
    assert pipelines.cell([outcome]) == "wrong"
