"""The forms 'onnx' and 'ort': what they write, what they refuse, and that nothing gets worse."""

import pickle
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

import rmsnorm_deploy
from rmsnorm_deploy import Form
from rmsnorm_deploy.errors import UsageError
from rmsnorm_deploy.fusing import forms
from rmsnorm_deploy.fusing.form import OutputForm, Unsuited
from rmsnorm_deploy.op.reference import rms_norm
from tests.support.graphs import chain, nodes_of, same_results
from tests.support.judge import rows, units
from tests.support.run import run
from tests.support.spellings.graph import B, D, F, Graph, H, V
from tests.support.spellings.norms import Spelling, build

LAYOUTS = ("float32", "llama16", "gemma16", "plain16", "llamabf16", "gemmabf16", "float64")
NUMPY = {F: np.float32, H: np.float16, B: ml_dtypes.bfloat16, D: np.float64}


def all_ops(model):
    return [f"{n.domain}::{n.op_type}" if n.domain else n.op_type for n in model.graph.node]


@pytest.mark.parametrize("scale", ["right", "none", "into_x", "scalar"])
@pytest.mark.parametrize("form", ["onnx", "ort"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_type_and_order_in_each_form(layout, form, scale):
    if scale == "into_x" and layout not in ("float32", "float64"):
        pytest.skip("an early scale in 16 bits is another order")
    s = Spelling(layout=layout, shape=(2, 5, 32), scale=scale, epsilon=1e-3)
    built = build(s)
    fused, report = rmsnorm_deploy.fuse(built.model, form=form)
    assert len(report.fused) == 1, report.missed
    op = {"onnx": "RMSNormalization", "ort": "SimplifiedLayerNormalization"}[form]
    assert all_ops(fused).count(op) == 1
    assert not fused.functions
    if form == "onnx":
        onnx.checker.check_model(fused, full_check=True)
    if (form, layout) == ("onnx", "llamabf16") and scale != "none":
        return  # valid, but onnxruntime's CPU provider has no kernel for RMSNormalization in bfloat16
    x = rows(s.shape, NUMPY[s.io_type])
    # SimplifiedLayerNormalization rounds once, at the end, whatever the original does
    order = F if form == "ort" and s.io_type in (H, B) else built.meaning["scale_type"]
    truth = rms_norm(
        x, built.scale, exact=True, **{**built.meaning, "scale_type": order, "epsilon": report.fused[0].epsilon}
    )[0]
    for optimise in (False, True):
        got = run(fused, {"x": x}, optimise)[0]
        # onnxruntime's RMSNormalization in float16 rounds once where the standard says twice
        assert units(got, truth) <= (6 if s.io_type in (F, D) else 3)
    says_fewer = layout == "plain16" or (form == "ort" and layout.startswith("llama") and scale != "none")
    assert report.fused[0].rounding == ("fewer" if says_fewer else "same")


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("opset", [15, 18, 23])
def test_a_product_that_avoids_bfloat16_kernels_avoids_them_in_the_form_onnx(opset, residual):
    g = Graph(opset=opset)
    x, w = g.input("x", B, (2, 5, 32)), g.weight(np.linspace(-1, 2, 32), B)
    entered = g.cast(g.cast(x, F) + g.cast(g.input("r", B, (2, 5, 32)), F), B) if residual else x
    wide = g.cast(entered, F)
    rounded = g.cast(wide / g.op("Sqrt", g.reduce("ReduceMean", wide * wide, (-1,)) + 1e-3), B)
    g.output(g.cast(g.cast(rounded, F) * g.cast(w, F), B), "y", (2, 5, 32))
    model = g.model()
    fused, report = rmsnorm_deploy.fuse(model, form="onnx")
    assert len(report.fused) == 1, report.missed
    assert all_ops(fused).count("RMSNormalization") == 1
    onnx.checker.check_model(fused, full_check=True)
    feeds = {n: rows((2, 5, 32), ml_dtypes.bfloat16, s) for s, n in enumerate("xr"[: 1 + residual])}
    same_results(model, fused, feeds, slack=1)
    again, report = rmsnorm_deploy.fuse(fused)
    assert len(report.fused) == 1, report.missed
    same_results(model, again, feeds, slack=1)


def test_a_float32_residual_becomes_the_skip_op_and_keeps_its_sum():
    model = build(Spelling(residual=True)).model
    fused, _ = rmsnorm_deploy.fuse(model, form="ort")
    assert all_ops(fused)[0] == "com.microsoft::SkipSimplifiedLayerNormalization"
    assert {o.domain: o.version for o in fused.opset_import}["com.microsoft"] == 1
    same_results(model, fused, {n: rows((2, 3, 8), np.float32, s) for s, n in enumerate("xr")})


@pytest.mark.parametrize("change", [{"layout": "gemma16"}, {"shape": (2, 2, 3, 8)}, {"scale": "scalar"}])
def test_a_residual_without_a_kernel_stays_an_add(change):
    fused, _ = rmsnorm_deploy.fuse(build(Spelling(residual=True, **change)).model, form="ort")
    assert "Add" in all_ops(fused)
    assert "SimplifiedLayerNormalization" in all_ops(fused)


def test_a_residual_in_the_form_onnx_stays_an_add():
    model = build(Spelling(residual=True)).model
    fused, _ = rmsnorm_deploy.fuse(model, form="onnx")
    assert all_ops(fused)[:2] == ["Add", "RMSNormalization"]
    same_results(model, fused, {n: rows((2, 3, 8), np.float32, s) for s, n in enumerate("xr")})


@pytest.mark.parametrize("form", ["onnx", "ort"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"partial": 3}, "a part of the features"),
        ({"outside": 1e-3}, "epsilon outside the root"),
        ({"clamp": "max", "floor": 0.1, "inside": "none"}, "least RMS"),
        ({"axes": (1,), "shape": (2, 4, 3, 5)}, "trailing dimensions"),
    ],
)
def test_what_a_form_cannot_express_stays_with_the_reason(form, change, reason):
    model = build(Spelling(**change)).model
    fused, report = rmsnorm_deploy.fuse(model, form=form)
    assert fused == model
    assert reason in report.missed[0].reason
    assert "plugin" in report.missed[0].hint


def builders_file(layout, opset):
    """As GenAI's model builder writes: onnxruntime's own norms, in ai.onnx and beside operators of com.microsoft."""
    kind = {"float32": F, "float16": H}[layout]
    g = Graph(opset)
    x = g.input("x", kind, ("b", 3, 64))
    w, skipped = (g.weight(np.linspace(*ends, 64), kind) for ends in ((0.5, 2), (2, 0.5)))
    attributes = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
    h = g.op("SimplifiedLayerNormalization", x, w, dtype=kind, **attributes)
    q = g.op("MatMul", h, g.weight(np.eye(64)[::-1], kind))
    y = g.op("SimplifiedLayerNormalization", q, skipped, dtype=kind, **attributes)
    g.output(y, "y", ("b", 3, 64))
    return g.model()


@pytest.mark.parametrize("layout", ["float32", "float16"])
@pytest.mark.parametrize("opset", [13, 17, 18, 21, 22])
def test_the_operator_to_be_replaced_does_not_stop_the_converter(opset, layout):
    model = builders_file(layout, opset)
    assert all_ops(model).count("SimplifiedLayerNormalization") == 2
    fused, report = rmsnorm_deploy.fuse(model, form="onnx")
    assert len(report.fused) == 2
    assert set(all_ops(fused)) == {"RMSNormalization", "MatMul"} | ({"Cast"} if layout == "float16" else set())
    assert {o.domain: o.version for o in fused.opset_import} == {"": 23}
    feed = rows((2, 3, 64), NUMPY[F if layout == "float32" else H], 0)
    same_results(model, fused, {"x": feed})


def test_an_operator_that_nobody_knows_comes_through_the_converter_unchanged():
    model = builders_file("float32", 18)
    model.graph.node.append(helper.make_node("Unheard", ["y"], ["z"], name="last", some=3))
    model.graph.output.append(helper.make_tensor_value_info("z", F, None))
    branch = helper.make_graph(
        [helper.make_node("Unheard", ["y"], ["t"])], "branch", [], [helper.make_empty_tensor_value_info("t")]
    )
    model.graph.initializer.append(helper.make_tensor("yes", onnx.TensorProto.BOOL, [], [True]))
    model.graph.node.append(helper.make_node("If", ["yes"], ["u"], then_branch=branch, else_branch=branch))
    fused, report = rmsnorm_deploy.fuse(model, form="onnx")
    assert len(report.fused) == 2
    assert {o.domain: o.version for o in fused.opset_import} == {"": 23}
    (last,) = (n for n in fused.graph.node if n.name == "last")
    assert (last.domain, last.op_type, [a.i for a in last.attribute]) == ("", "Unheard", [3])
    (chosen,) = (n for n in fused.graph.node if n.op_type == "If")
    assert [(a.g.node[0].domain, a.g.node[0].op_type) for a in chosen.attribute] == [("", "Unheard")] * 2


def test_a_model_that_cannot_be_converted_says_why():
    inner = Graph()
    function = helper.make_function(
        "local", "Same", ["v"], ["w"], [helper.make_node("Identity", ["v"], ["w"])], [helper.make_opsetid("", 18)]
    )
    x = inner.input("x", F, (2, 3, 8))
    y = inner.op("Same", chain(inner, x, inner.weight(np.ones(8), F))["y"], domain="local")
    inner.output(y, "y", (2, 3, 8))
    model = inner.model([function], [helper.make_opsetid("local", 1)])
    fused, report = rmsnorm_deploy.fuse(model, form="onnx")
    assert fused == model
    assert "needs ai.onnx opset 23" in report.missed[0].reason
    assert "local functions" in report.missed[0].reason


@pytest.mark.parametrize("opset", [17, 18, 21, 23])
def test_a_function_of_an_older_opset_than_the_model_gets_no_operator_that_it_lacks(opset):
    inner = Graph(opset=opset)
    inner.constant_nodes = True
    y = chain(inner, V(inner, "fx", F), V(inner, "fw", F))["y"]
    function = helper.make_function(
        "local", "Norm", ["fx", "fw"], [y.name], inner.nodes, [helper.make_opsetid("", opset)]
    )
    g = Graph(opset=23)
    x, w = g.input("x", F, (2, 3, 8)), g.weight(np.ones(8), F)
    for _ in range(2):
        x = g.op("Norm", x, w, domain="local")
    g.output(x, "y", (2, 3, 8))
    model = g.model([function], [helper.make_opsetid("local", 1)])
    for form in Form:
        fused, report = rmsnorm_deploy.fuse(model, form=form)
        written = form is not Form("onnx") or opset >= 23
        assert len(report.fused) == written, form
        if not written:
            assert fused == model
            assert "needs ai.onnx opset 23, and the function" in report.missed[0].reason
        if opset >= 18:  # onnxruntime reads an older function by the model's opset
            assert run(fused, {"x": rows((2, 3, 8), np.float32)}, True)[0].shape == (2, 3, 8)


def test_fused_forms_can_be_fused_again_into_ours():
    model = build(Spelling(residual=True)).model
    feeds = {n: rows((2, 3, 8), np.float32, s) for s, n in enumerate("xr")}
    for form in ("onnx", "ort"):
        there, _ = rmsnorm_deploy.fuse(model, form=form)
        back, report = rmsnorm_deploy.fuse(there)
        assert nodes_of(back) == ["AddRMSNorm"], report.missed
        same_results(model, back, feeds)


def test_norms_behind_operators_of_onnxruntime_are_found():
    """Inference goes on behind operators that onnx does not know."""
    g = Graph()
    x, r = g.input("x", F, (2, 3, 8)), g.input("r", F, (2, 3, 8))
    w = g.weight(np.linspace(1, 2, 8), F)
    value = x
    for i in range(3):
        names = [g.name("y"), "", "", g.name("sum")]
        inputs = [value.name, r.name, w.name]
        op = "SkipSimplifiedLayerNormalization"
        g.nodes.append(helper.make_node(op, inputs, names, domain="com.microsoft", name=f"s{i}", epsilon=1e-3))
        value = g.op("QuickGelu", V(g, names[0], F), domain="com.microsoft", alpha=1.0)
        value = value + V(g, names[3], F)
    g.output(chain(g, value, w)["y"], "y", (2, 3, 8))
    model = g.model(extra_opsets=[helper.make_opsetid("com.microsoft", 1)])
    fused, _ = rmsnorm_deploy.fuse(model)
    assert nodes_of(fused) == ["AddRMSNorm"] * 4
    same_results(model, fused, {n: rows((2, 3, 8), np.float32, s) for s, n in enumerate("xr")})


def test_a_norm_in_a_function_brings_its_import_along():
    """A float32 residual norm in a local function becomes an operator of onnxruntime's own domain there."""
    inner = Graph()
    inner.constant_nodes = True
    x, r = V(inner, "fx", F), V(inner, "fr", F)
    y = chain(inner, x + r, V(inner, "fw", F))["y"]
    imports = [helper.make_opsetid("", 18)]
    function = helper.make_function("local", "Norm", ["fx", "fr", "fw"], [y.name], inner.nodes, imports)
    g = Graph()
    names = [g.input(n, F, (2, 3, 8)).name for n in "xr"] + [g.weight(np.ones(8), F).name]
    g.nodes.append(helper.make_node("Norm", names, ["y"], domain="local"))
    g.output(V(g, "y", F), "out", (2, 3, 8))
    model = g.model([function], [helper.make_opsetid("local", 1)])
    fused, report = rmsnorm_deploy.fuse(model, form="ort")
    assert [f.scope for f in report.fused] == ["local::Norm"]
    (body,) = fused.functions
    domains = {n.domain for n in body.node}
    assert domains <= {o.domain for o in body.opset_import}
    same_results(model, fused, {n: rows((2, 3, 8), np.float32, s) for s, n in enumerate("xr")})


@pytest.mark.parametrize("form", ["onnx", "ort"])
@pytest.mark.parametrize("width", [1, 8])
def test_a_note_names_an_operator_only_where_it_is_written(form, width):
    g = Graph(23)
    g.output(chain(g, g.input("x", F, (2, 3, 8)), g.weight(np.linspace(0.5, 0.75, width), F))["y"], "y", (2, 3, 8))
    model = g.model()
    (norm,) = rmsnorm_deploy.fuse(model)[1].fused
    assert (norm.op == "GeneralRMSNorm", len(norm.notes)) == (width == 1, int(width == 1))
    (norm,) = rmsnorm_deploy.fuse(model, form=form)[1].fused
    assert not norm.notes


def test_a_form_is_an_enum_whose_members_are_the_files():
    names = {p.stem for p in Path(forms.__file__).parent.glob("*.py")} - {"__init__"}
    assert {f.value for f in Form} == set(forms.NAMES) == names >= {"plugin", "onnx", "ort"}
    assert Form("plugin") is Form.PLUGIN is next(iter(Form))
    assert (Form.ORT.value, Form.ONNX == "onnx") == ("ort", True)
    assert pickle.loads(pickle.dumps(Form.ORT)) is Form.ORT
    with pytest.raises(ValueError, match="trt"):
        Form("trt")


@pytest.mark.parametrize("form", list(Form))
def test_each_form_says_what_it_is(form):
    assert OutputForm in type(forms.writer_of(form)).__mro__
    assert sys.modules[f"{forms.__name__}.{form.value}"].__doc__.endswith(".")


def test_a_refusal_needs_a_reason():
    with pytest.raises(ValueError, match="reason"):
        Unsuited("")


def test_an_unknown_form_is_a_usage_error():
    with pytest.raises(UsageError, match="plugin, onnx, ort"):
        rmsnorm_deploy.fuse(build(Spelling()).model, form="trt")
