"""Norms in the bodies of If, Loop and Scan, alone: each is compared, and a fault is placed in its body."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_deploy
from rmsnorm_deploy.check.inner import bodies
from rmsnorm_deploy.check.site_check import check_sites
from rmsnorm_deploy.model.graphs import nodes_of
from rmsnorm_deploy.run.inputs import make_inputs
from rmsnorm_deploy.run.runnable import Runnable

pytest.importorskip("onnxruntime", reason="verification runs models in onnxruntime")

WIDTH = 8


def node(op, inputs, outputs, name="", **attributes):
    return helper.make_node(op, inputs, outputs, name, **attributes)


def rms(x, y, prefix, scale="w", wide=TensorProto.FLOAT):
    """An RMSNorm of ``x`` in the nodes of an exporter."""
    p = prefix
    return [
        node("Cast", [x], [f"{p}c"], to=TensorProto.FLOAT),
        node("Mul", [f"{p}c", f"{p}c"], [f"{p}sq"]),
        node("ReduceMean", [f"{p}sq", "axes"], [f"{p}mean"], keepdims=1),
        node("Add", [f"{p}mean", "eps"], [f"{p}eps"]),
        node("Sqrt", [f"{p}eps"], [f"{p}rms"]),
        node("Div", [f"{p}c", f"{p}rms"], [f"{p}n"]),
        node("Cast", [f"{p}n"], [f"{p}t"], to=wide),
        node("Mul", [scale, f"{p}t"], [y]),
    ]


def value(name, kind=TensorProto.FLOAT, shape=("s", WIDTH)):
    return helper.make_tensor_value_info(name, kind, shape)


def body(name, nodes, inputs, outputs, initializers=()):
    return helper.make_graph(nodes, name, inputs, outputs, list(initializers))


def model(nodes, outputs, kind=TensorProto.FLOAT, extra=()):
    rng = np.random.default_rng(3)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    weights = {
        "w": (1 + rng.random(WIDTH)).astype(dtype),
        "v": (1 + rng.random(WIDTH)).astype(dtype),
        "axes": np.array([-1], np.int64),
        "eps": np.array(1e-5, np.float32),
        "trips": np.array(3, np.int64),
        "yes": np.array(True),
    }
    tensors = [numpy_helper.from_array(v, k) for k, v in weights.items()]
    graph = helper.make_graph(nodes, "g", [value("x", kind), *extra], outputs, tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(made, full_check=True)
    return made


def branches(kind):
    """Two branches with values of the same names, of which one adds a residual."""
    then = body("then", rms("x", "out", "a", wide=kind), [], [value("out", kind)])
    added = [
        node("Add", ["x", "x2"], ["sum"]),
        *rms("sum", "n", "a", "v", wide=kind),
        node("Add", ["sum", "n"], ["out"]),
    ]
    orelse = body("else", added, [], [value("out", kind)])
    flag = value("flag", TensorProto.BOOL, [])
    nodes = [node("Neg", ["x"], ["x2"]), node("If", ["flag"], ["y"], "choice", then_branch=then, else_branch=orelse)]
    return model(nodes, [value("y", kind)], kind, [flag])


def loop(kind):
    """A norm of the state, whose scale is made outside of the body from weights."""
    nodes = [node("Identity", ["c"], ["c2"]), node("Add", ["h", "x"], ["sum"]), *rms("sum", "h2", "b", "w1", wide=kind)]
    inputs = [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []), value("h", kind)]
    inner = body("body", nodes, inputs, [value("c2", TensorProto.BOOL, []), value("h2", kind)])
    outer = [node("Add", ["w", "v"], ["w1"]), node("Loop", ["trips", "yes", "x"], ["y"], "", body=inner)]
    return model(outer, [value("y", kind)], kind)


def scan(kind):
    """A norm of each row, within an If in the Scan."""
    then = body("then", rms("row", "out", "d", wide=kind), [], [value("out", kind, [WIDTH])])
    orelse = body("else", [node("Identity", ["row"], ["out"])], [], [value("out", kind, [WIDTH])])
    choice = node("If", ["yes"], ["o"], "inner", then_branch=then, else_branch=orelse)
    inner = body("body", [choice], [value("row", kind, [WIDTH])], [value("o", kind, [WIDTH])])
    return model([node("Scan", ["x"], ["y"], "rows", num_scan_inputs=1, body=inner)], [value("y", kind)], kind)


CASES = {
    "If": (branches, ["choice.else_branch", "choice.then_branch"]),
    "Loop": (loop, ["y.body"]),
    "Scan, If": (scan, ["rows.body/inner.then_branch"]),
}
KINDS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    return CASES[request.param]


@pytest.mark.parametrize("kind", KINDS)
def test_norms_of_bodies_are_compared(case, kind):
    make, scopes = case
    original = make(KINDS[kind])
    fused, report = rmsnorm_deploy.fuse(original)
    before = Runnable.of(original)
    sites, notes = check_sites(before, Runnable.of(fused), make_inputs(original))
    assert notes == []
    assert sorted(s.scope for s in sites) == scopes == sorted(n.scope for n in report.fused)
    assert [str(s) for s in sites if not s.passed] == []
    assert all(s.inputs == "made" and s.original_error is not None for s in sites)
    assert str(sites[0]).startswith(f"norm {sites[0].scope}/")


def spoilt(fused, number, name, change):
    copy = onnx.ModelProto()
    copy.CopyFrom(fused)
    ours = [n for n in nodes_of(copy.graph) if n.domain == "rmsnorm_deploy"]
    attribute = next(a for a in ours[number].attribute if a.name == name)
    attribute.CopyFrom(helper.make_attribute(name, change(helper.get_attribute_value(attribute))))
    return copy


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("attribute", "change", "word"),
    [
        ("epsilon", lambda e: 2 * e, "epsilon"),
        ("epsilon", lambda _: 0.0, "epsilon"),
        ("scale_type", lambda t: TensorProto.FLOAT16 if t == TensorProto.FLOAT else TensorProto.FLOAT, "rounding"),
    ],
    ids=["epsilon twice", "epsilon 0", "rounding order"],
)
def test_a_fault_in_a_body_is_placed_and_named(case, kind, attribute, change, word):
    make, scopes = case
    original = make(KINDS[kind])
    fused, _ = rmsnorm_deploy.fuse(original)
    for number in range(len(scopes)):
        wrong = spoilt(fused, number, attribute, change)
        sites, _ = check_sites(Runnable.of(original), Runnable.of(wrong), make_inputs(original))
        failed = [s for s in sites if not s.passed]
        ours = [n for n in nodes_of(wrong.graph) if n.domain == "rmsnorm_deploy"]
        assert [s.output for s in failed] == [ours[number].output[0]], [str(s) for s in sites]
        assert word in failed[0].fault
        assert failed[0].scope in scopes


def test_a_body_reads_what_depends_on_no_input_as_weights():
    original = loop(TensorProto.FLOAT)
    fused, report = rmsnorm_deploy.fuse(original)
    (found,) = bodies(original, fused, fused, report.fused)
    assert {v.name for v in found.original.graph.input} == {"i", "c", "h", "x"}
    assert {"w", "v", "axes", "eps"} <= {t.name for t in found.original.graph.initializer}
    assert found.norms[0].scope == ""


def test_a_fault_in_a_branch_that_is_not_taken_fails_the_verification():
    original = branches(TensorProto.FLOAT)
    fused, _ = rmsnorm_deploy.fuse(original)
    for number in range(2):
        result = rmsnorm_deploy.verify(original, spoilt(fused, number, "epsilon", lambda e: 2 * e))
        assert not result.passed
        assert "probably epsilon" in result.summary()
