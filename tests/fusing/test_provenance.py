"""What a fused model says of itself in its metadata, and what its functions say of the operators."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import rmsnorm_deploy
from rmsnorm_deploy import RmsNormFusionPass, __version__
from rmsnorm_deploy.cli import app
from rmsnorm_deploy.op import Op, function_body
from rmsnorm_deploy.op.definition import ATTRIBUTES, OPERANDS
from rmsnorm_deploy.op.words import meaning
from tests.support.spellings.graph import F, Graph

SAMPLES = Path(__file__).parents[2] / "samples" / "models"
QWEN = SAMPLES / "qwen3_float32.onnx"


def said(model):
    """The metadata of a model, in the order of the file."""
    return [(p.key, p.value) for p in model.metadata_props]


def of(form):
    return [("rmsnorm_deploy.form", form), ("rmsnorm_deploy.fused_by", f"rmsnorm_deploy {__version__}")]


@pytest.mark.parametrize("form", ["plugin", "onnx", "ort", "standard"])
def test_a_fused_model_says_what_wrote_it(form):
    fused, _ = rmsnorm_deploy.fuse(QWEN, form=form)
    assert said(fused) == of(form)


def test_own_metadata_stay_in_front_and_as_they_are():
    model = onnx.load(QWEN)
    for key, value in (("b", "2"), ("a", "1"), ("rmsnorm_deployed", "not ours")):
        model.metadata_props.add(key=key, value=value)
    own = said(model)
    fused, _ = rmsnorm_deploy.fuse(model)
    assert said(fused) == own + of("plugin")
    assert said(model) == own
    plain, _ = rmsnorm_deploy.unfuse(fused)
    assert said(plain) == own


def test_fused_again_it_is_the_same_file():
    fused, _ = rmsnorm_deploy.fuse(QWEN)
    again, _ = rmsnorm_deploy.fuse(fused)
    assert again.SerializeToString(deterministic=True) == fused.SerializeToString(deterministic=True)


def test_a_model_in_which_nothing_is_written_says_nothing():
    g = Graph()
    g.output(g.op("Relu", g.input("x", F, (2, 3))), "y", (2, 3))
    model = g.model()
    fused, _ = rmsnorm_deploy.fuse(model)
    assert fused.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)
    dry, _ = rmsnorm_deploy.fuse(QWEN, dry_run=True)
    assert said(dry) == []


def test_an_earlier_release_is_replaced_only_where_something_is_written():
    fused, _ = rmsnorm_deploy.fuse(QWEN)
    fused.metadata_props[1].value = "rmsnorm_deploy 0.0.9"
    same, _ = rmsnorm_deploy.fuse(fused)
    assert said(same) == said(fused)
    other, _ = rmsnorm_deploy.fuse(fused, form="ort")
    assert said(other) == of("ort")
    del fused.functions[:]  # as some tools do; fusing brings them back
    repaired, report = rmsnorm_deploy.fuse(fused)
    assert report.repaired
    assert said(repaired) == of("plugin")


def test_a_node_of_ours_that_has_to_stay_keeps_what_is_said():
    fused, _ = rmsnorm_deploy.fuse(QWEN)
    node = next(n for n in fused.graph.node if n.domain == "rmsnorm_deploy")
    next(a for a in node.attribute if a.name == "epsilon").f = -1.0
    rest, report = rmsnorm_deploy.unfuse(fused)
    assert report.fused
    assert said(rest) == of("plugin")


def test_passes_and_models_of_onnx_ir_say_the_same():
    for form in ("plugin", "onnx"):
        model = ir.load(QWEN)
        model.metadata_props["k"] = "v"
        wanted = [("k", "v"), *of(form)]
        fused, _ = rmsnorm_deploy.fuse(model, form=form)
        assert list(fused.metadata_props.items()) == wanted
        assert list(model.metadata_props.items()) == [("k", "v")]
        RmsNormFusionPass(form)(model)
        assert list(model.metadata_props.items()) == wanted


def test_onnxruntime_shows_it(tmp_path):
    ort = pytest.importorskip("onnxruntime")
    fused, _ = rmsnorm_deploy.fuse(QWEN)
    session = ort.InferenceSession(fused.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map["rmsnorm_deploy.form"] == "plugin"


@pytest.mark.parametrize("op", list(Op))
def test_each_function_explains_its_operator(op):
    body = function_body(op, 18)
    text = body.doc_string
    for operand in (*op.inputs, *op.outputs):
        assert f"`{operand}`: {OPERANDS[operand][1]}" in text
    for attribute in ATTRIBUTES:
        assert (f"`{attribute.name}`: {attribute.doc}" in text) == (op in attribute.ops and attribute.since == 1)
    assert meaning(op) in text
    assert __version__ not in text, "a body is the same in every release that spells it alike"
    assert max(len(line) for line in text.splitlines()) < 400


def test_the_texts_reach_the_file():
    fused, _ = rmsnorm_deploy.fuse(QWEN)
    assert len(fused.functions) > 1
    for function in fused.functions:
        assert function.doc_string == function_body(Op(function.name), 18).doc_string


@pytest.mark.parametrize("outside", [False, True])
def test_explain_says_what_a_general_norm_is(outside, tmp_path, capsys):
    g = Graph()
    x = g.input("x", F, (2, 3, 8))
    w = g.weight(np.ones(8), F)
    mean = g.reduce("ReduceMean", x**2.0, (-1,), 1)
    y = (x / (g.op("Sqrt", mean) + 1e-6) if outside else x / g.op("Sqrt", mean + 1e-6)) * w
    g.output(y, "y", (2, 3, 8))
    onnx.save(g.model(), tmp_path / "m.onnx")
    assert app.main(["explain", str(tmp_path / "m.onnx")]) == 0
    said = capsys.readouterr().out
    assert "would fuse 1 of 1" in said
    assert (meaning(Op.GENERAL_RMS_NORM) in said) == outside
