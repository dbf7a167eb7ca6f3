"""Norms in local functions whose epsilon, axes or keepdims are attributes that the calls give."""

import itertools
import pickle
import subprocess

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

import rmsnorm_deploy
from rmsnorm_deploy.op import DOMAIN
from tests.support.older import VERSIONS, python_with
from tests.support.run import run

N = helper.make_node
F = TensorProto.FLOAT
SHAPE = (2, 3, 16)
OPSET = 18
X = (np.random.default_rng(0).standard_normal(SHAPE) * 1e-2).astype(np.float32)
W = np.linspace(0.5, 2, 16, dtype=np.float32)


def reference(op, inputs, outputs, kind, **names):
    """A node with attributes that are attributes of the function: ``value_float="eps"``."""
    node = N(op, inputs, outputs)
    for name, attribute in names.items():
        node.attribute.append(AttributeProto(name=name, ref_attr_name=attribute, type=kind))
    return node


def epsilon(name="eps"):
    return reference("Constant", [], ["e"], AttributeProto.FLOAT, value_float=name)


AXES = N("Constant", [], ["ax"], value_ints=[-1])
SQUARE = N("Mul", ["x", "x"], ["q"])
MEAN = N("ReduceMean", ["q", "ax"], ["m"], keepdims=1)
INSIDE = [N("Add", ["m", "e"], ["a"]), N("Sqrt", ["a"], ["s"])]
OUTSIDE = [N("Sqrt", ["m"], ["r"]), N("Add", ["r", "e"], ["s"])]
CLAMPED = [N("Sqrt", ["m"], ["r"]), N("Max", ["r", "e"], ["s"])]
END = [N("Div", ["x", "s"], ["d"]), N("Mul", ["d", "w"], ["y"])]
BODY = [epsilon(), SQUARE, AXES, MEAN, *INSIDE, *END]


def function(name, nodes, attributes=("eps",), defaults=(), inputs=("x", "w"), domains=("",)):
    imports = [helper.make_opsetid(d, OPSET if d == "" else 1) for d in domains]
    return helper.make_function("this", name, list(inputs), ["y"], nodes, imports, list(attributes), list(defaults))


def model_of(calls, functions, weights=None):
    graph = helper.make_graph(
        calls,
        "g",
        [helper.make_tensor_value_info("x", F, ("b", 3, 16))],
        [helper.make_tensor_value_info("y", F, ("b", 3, 16))],
        [numpy_helper.from_array(W, "w")],
    )
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid("this", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8)


def call(x="x", y="y", name="norm", **attributes):
    return N(name, [x, "w"], [y], domain="this", **attributes)


def our_nodes(model):
    return [n for f in model.functions if f.domain != DOMAIN for n in f.node if n.domain == DOMAIN]


def judged(model, count=1, form="plugin"):
    """The fused model, which computes what the model did, with the library and without it."""
    onnx.checker.check_model(model)
    fused, report = rmsnorm_deploy.fuse(model, form=form)
    assert len(report.fused) == count, report.missed
    assert len(report.near_misses) == 0, report.missed
    truth = run(model, {"x": X}, False)[0]
    for hook in (None, rmsnorm_deploy.register):
        for optimise in (False, True):
            np.testing.assert_allclose(run(fused, {"x": X}, optimise, hook)[0], truth, rtol=1e-5, atol=1e-7)
    return fused, report


def given(node, name="epsilon"):
    (attribute,) = (a for a in node.attribute if a.name == name)
    return attribute.ref_attr_name or attribute.f


def test_one_call():
    fused, _ = judged(model_of([call(eps=1e-3)], [function("norm", BODY)]))
    assert [given(n) for n in our_nodes(fused)] == [pytest.approx(1e-3)]


def test_calls_that_give_one_value():
    fused, _ = judged(model_of([call(y="t", eps=1e-3), call("t", eps=1e-3)], [function("norm", BODY)]))
    assert [given(n) for n in our_nodes(fused)] == [pytest.approx(1e-3)]


def test_a_default():
    defaults = [helper.make_attribute("eps", 1e-3)]
    fused, _ = judged(model_of([call()], [function("norm", BODY, (), defaults)]))
    assert [given(n) for n in our_nodes(fused)] == [pytest.approx(1e-3)]


PLACES = {"inside": (INSIDE, "epsilon"), "outside": (OUTSIDE, "epsilon_outside"), "clamped": (CLAMPED, "rms_floor")}


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("place", PLACES)
def test_each_call_has_its_own_epsilon(place, count):
    nodes, attribute = PLACES[place]
    body = [epsilon(), SQUARE, AXES, MEAN, *nodes, *END]
    names = ["x", *(f"t{i}" for i in range(1, count)), "y"]
    calls = [call(a, b, eps=10.0 ** -(i + 1)) for i, (a, b) in enumerate(itertools.pairwise(names))]
    fused, report = judged(model_of(calls, [function("norm", body)]), count)
    values = [pytest.approx(10.0 ** -(i + 1)) for i in range(count)]
    assert [given(n, attribute) for n in our_nodes(fused)] == values
    assert [norm.attributes[attribute] for norm in report.fused] == values
    assert [n.op_type for n in fused.graph.node] == ["norm", *(f"norm_{i}" for i in range(2, count + 1))]


def test_a_default_beside_another_value():
    defaults = [helper.make_attribute("eps", 1e-3)]
    fused, _ = judged(model_of([call(y="t"), call("t", eps=0.25)], [function("norm", BODY, (), defaults)]), 2)
    assert [given(n) for n in our_nodes(fused)] == [pytest.approx(1e-3), 0.25]


def test_a_function_hands_its_attribute_on():
    outer = [reference("norm", ["x", "w"], ["y"], AttributeProto.FLOAT, eps="variance_epsilon")]
    outer[0].domain = "this"
    functions = [function("norm", BODY), function("layer", outer, ("variance_epsilon",), domains=("", "this"))]
    for second, wanted in ((1e-3, pytest.approx(1e-3)), (0.25, "eps")):  # with two it stays an attribute
        calls = [
            call(y="t", name="layer", variance_epsilon=1e-3),
            call("t", name="layer", variance_epsilon=second),
        ]
        fused, _ = judged(model_of(calls, functions))
        assert [given(n) for n in our_nodes(fused)] == [wanted]


def test_the_axes_and_what_is_kept():
    ints, integer = AttributeProto.INTS, AttributeProto.INT
    body = [
        epsilon(),
        SQUARE,
        reference("Constant", [], ["ax"], ints, value_ints="axes"),
        reference("ReduceMean", ["q", "ax"], ["m"], integer, keepdims="keep"),
        *INSIDE,
        *END,
    ]
    made = function("norm", body, ("eps", "axes", "keep"))
    judged(model_of([call(eps=1e-3, axes=[-1], keep=1), call("x", "z", eps=1e-3, axes=[-1], keep=1)], [made]))
    model = model_of([call(y="t", eps=1e-3, axes=[-1], keep=1), call("t", eps=1e-3, axes=[1], keep=1)], [made])
    fused, report = rmsnorm_deploy.fuse(model)
    assert not report.fused
    assert "each call" in report.near_misses[0].reason
    assert "inline" in report.near_misses[0].hint
    assert fused == model


def test_keepdims_that_nobody_knows_is_not_the_default():
    made = function(
        "norm",
        [
            epsilon(),
            SQUARE,
            AXES,
            reference("ReduceMean", ["q", "ax"], ["m"], AttributeProto.INT, keepdims="keep"),
            *INSIDE,
            *END,
        ],
        ("eps", "keep"),
    )
    square = model_of([call(y="t", eps=1e-3, keep=1), call("t", eps=1e-3, keep=0)], [made])
    report = rmsnorm_deploy.fuse(square, dry_run=True)[1]
    assert not report.fused
    assert len(report.near_misses) == 1


@pytest.mark.parametrize("second", [1e-3, 0.25])
def test_an_epsilon_that_is_divided_is_no_attribute_of_ours(second):
    """The sum plus epsilon: ours is an eighth of it, which no reference can say."""
    body = [epsilon(), SQUARE, AXES, N("ReduceSum", ["q", "ax"], ["m"]), *INSIDE, *END]
    model = model_of([call(y="t", eps=1e-3), call("t", eps=second)], [function("norm", body)])
    report = rmsnorm_deploy.fuse(model, dry_run=True)[1]
    assert (len(report.fused), len(report.near_misses)) == ((1, 0) if second == 1e-3 else (0, 1))


def test_two_attributes_are_told_apart():
    body = [epsilon("second"), SQUARE, AXES, MEAN, *INSIDE, *END]
    made = function("norm", body, ("first", "second"))
    calls = [call(y="t", first=1e-3, second=1e-2), call("t", first=1e-3, second=0.25)]
    fused, _ = judged(model_of(calls, [made]), 2)
    assert [given(n) for n in our_nodes(fused)] == [pytest.approx(1e-2), 0.25]


def test_a_norm_by_contract_in_a_function():
    body = [reference("SimplifiedLayerNormalization", ["x", "w"], ["y"], AttributeProto.FLOAT, epsilon="eps")]
    body[0].attribute.append(helper.make_attribute("axis", -1))
    model = model_of([call(y="t", eps=1e-3), call("t", eps=0.25)], [function("norm", body)])
    fused, report = rmsnorm_deploy.fuse(model)
    assert [given(n) for n in our_nodes(fused)] == [pytest.approx(1e-3), 0.25], report.missed


def test_a_form_that_writes_no_attributes_leaves_it_alone(monkeypatch):
    from rmsnorm_deploy.fusing.forms import plugin

    monkeypatch.setattr(plugin._Plugin, "carries_references", False)
    model = model_of([call(y="t", eps=1e-3), call("t", eps=0.25)], [function("norm", BODY)])
    report = rmsnorm_deploy.fuse(model, dry_run=True)[1]
    assert not report.fused
    assert "each call" in report.near_misses[0].reason


@pytest.mark.parametrize("form", ["ort"])
def test_the_form_of_onnxruntime_carries_it(form):
    judged(model_of([call(y="t", eps=1e-3), call("t", eps=0.25)], [function("norm", BODY)]), 2, form=form)


def test_a_function_that_nobody_calls_and_one_that_calls_itself_end():
    model = model_of([N("Identity", ["x"], ["y"])], [function("norm", BODY)])
    assert not rmsnorm_deploy.fuse(model, dry_run=True)[1].fused
    itself = [reference("norm", ["x", "w"], ["y"], AttributeProto.FLOAT, eps="eps"), *BODY[:-1]]
    itself[0].domain = "this"
    model = model_of([call(eps=1e-3)], [function("norm", itself, domains=("", "this"))])
    rmsnorm_deploy.fuse(model, dry_run=True)


RUNS = """
import pickle, sys, onnxruntime as ort
model, x, library = pickle.load(open(sys.argv[1], "rb"))
found = []
for path in (None, library):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if path: options.register_custom_ops_library(path)
    found.append(ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0])
pickle.dump(found, open(sys.argv[1], "wb"))
"""


def handed_on():
    """An epsilon that two levels of functions hand on, so that it stays an attribute."""
    outer = [reference("norm", ["x", "w"], ["y"], AttributeProto.FLOAT, eps="variance_epsilon")]
    outer[0].domain = "this"
    functions = [function("norm", BODY), function("layer", outer, ("variance_epsilon",), domains=("", "this"))]
    calls = [call(y="t", name="layer", variance_epsilon=1e-3), call("t", name="layer", variance_epsilon=0.25)]
    return model_of(calls, functions)


@pytest.mark.parametrize("version", VERSIONS)
def test_older_releases_run_what_is_another_norm_at_each_call(version, tmp_path):
    model = handed_on()
    fused, _ = rmsnorm_deploy.fuse(model)
    path = tmp_path / "data"
    path.write_bytes(pickle.dumps((fused.SerializeToString(), X, str(rmsnorm_deploy.library_path()))))
    subprocess.run([python_with(version), "-c", RUNS, path], check=True, capture_output=True)
    truth = run(model, {"x": X}, False)[0]
    for found in pickle.loads(path.read_bytes()):
        np.testing.assert_allclose(found, truth, rtol=1e-5, atol=1e-7)


def test_inlined_and_evaluated_it_is_the_same():
    from onnx.inliner import inline_local_functions

    model = handed_on()
    fused, _ = rmsnorm_deploy.fuse(model)
    truth = run(model, {"x": X}, False)[0]
    np.testing.assert_allclose(run(inline_local_functions(fused), {"x": X}, False)[0], truth, rtol=1e-5)


def test_calls_in_subgraphs_and_other_functions_call_their_copy():
    branches = {}
    for name, eps in (("then", 1e-3), ("else", 0.25)):
        node = call("x", f"{name}_y", eps=eps)
        output = helper.make_tensor_value_info(f"{name}_y", F, ("b", 3, 16))
        branches[f"{name}_branch"] = helper.make_graph([node], name, [], [output])
    inner = call("x", "y", eps=0.5)
    model = model_of(
        [N("If", ["c"], ["t"], **branches), call("t", name="layer")],
        [function("norm", BODY), function("layer", [inner], (), domains=("", "this"))],
    )
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, ()))
    fused, report = rmsnorm_deploy.fuse(model)
    assert len(report.fused) == 3, report.missed
    onnx.checker.check_model(fused)
    for c in (False, True):
        feeds = {"x": X, "c": np.array(c)}
        np.testing.assert_allclose(run(fused, feeds, True)[0], run(model, feeds, False)[0], rtol=1e-5, atol=1e-7)


def test_an_ir_model_and_a_dry_run_say_the_same(tmp_path):
    import onnx_ir as ir

    model = model_of([call(y="t", eps=1e-3), call("t", eps=0.25)], [function("norm", BODY)])
    before = model.SerializeToString()
    planned = rmsnorm_deploy.explain(model)
    assert model.SerializeToString() == before
    given_ir = ir.from_proto(model)
    fused, report = rmsnorm_deploy.fuse(given_ir)
    assert len(given_ir.functions) == 1
    assert [n.epsilon for n in report.fused] == [n.epsilon for n in planned.fused]
    truth = run(model, {"x": X}, False)[0]
    np.testing.assert_allclose(run(ir.to_proto(fused), {"x": X}, True)[0], truth, rtol=1e-5, atol=1e-7)
    onnx.save(model, tmp_path / "m.onnx")
    from_path, _ = rmsnorm_deploy.fuse(tmp_path / "m.onnx")
    np.testing.assert_allclose(run(from_path, {"x": X}, True)[0], truth, rtol=1e-5, atol=1e-7)


def test_a_name_that_is_taken_is_not_given_to_a_copy():
    model = model_of(
        [call(y="t", eps=1e-3), call("t", "u", eps=0.25), call("u", name="norm_2", eps=0.5)],
        [function("norm", BODY), function("norm_2", [*BODY[:-1], N("Sub", ["d", "w"], ["y"])])],
    )
    fused, _ = judged(model, 3)
    assert [n.op_type for n in fused.graph.node] == ["norm", "norm_3", "norm_2"]
