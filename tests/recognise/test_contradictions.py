"""Files whose parts contradict each other: an answer for each candidate, never an error of Python's own."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rmsnorm_deploy import explain, fuse
from rmsnorm_deploy.recognise import engine

node = helper.make_node
VALUE = ("x", TensorProto.FLOAT, ["b", 5, 8]), ("y", TensorProto.FLOAT, ["b", 5, 8])


def norm(x, y, eps="eps", extra=()):
    t = [f"{y}_{i}" for i in range(5)]
    return [
        node("Mul", [x, x], [t[0]]),
        node("ReduceMean", [t[0]], [t[1]], axes=[-1], keepdims=1),
        node("Add", [t[1], eps], [t[2]]),
        node("Sqrt", [t[2]], [t[3]]),
        *extra,
        node("Div", [x, t[3]], [t[4]]),
        node("Mul", [t[4], "w"], [y]),
    ]


def model(nodes, opset=17, **tensors):
    """Beside the nodes given a norm from x to ``whole``, which has to be fused whatever the others are."""
    graph = helper.make_graph(
        [*nodes, *norm("x", "whole")],
        "g",
        [helper.make_tensor_value_info(*VALUE[0])],
        [helper.make_tensor_value_info(*VALUE[1]), helper.make_tensor_value_info("whole", *VALUE[1][1:])],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in tensors.items()],
    )
    known = {"w": np.ones(8, np.float32), "eps": np.float32(1e-5)}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in known.items())
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def malformed(raw):
    """An epsilon whose data are not those of a scalar."""
    made = model(norm("x", "y", "odd"), odd=np.float32(1e-5))
    next(t for t in made.graph.initializer if t.name == "odd").raw_data = raw
    return made


def empty_slice():
    constants = {"zero": np.array([0]), "axis": np.array([-1]), "least": np.float32(1)}
    nodes = [
        node("Slice", ["x", "zero", "zero", "axis"], ["part"]),
        node("Mul", ["part", "part"], ["square"]),
        node("ReduceSum", ["square", "axis"], ["sum"]),
        node("Max", ["sum", "least"], ["clamped"]),
        node("Sqrt", ["clamped"], ["root"]),
        node("Div", ["x", "root"], ["y"]),
    ]
    return model(nodes, **constants)


def typed_attribute():
    made = model(norm("x", "y"))
    axes = next(a for n in made.graph.node for a in n.attribute if a.name == "axes")
    axes.Clear()
    axes.name, axes.type, axes.s = "axes", onnx.AttributeProto.STRING, b"all"
    return made


def in_a_branch(name):
    """LpNormalization in an If, with a value_info of a value that is not there any more."""
    value = helper.make_tensor_value_info
    then = helper.make_graph(
        [node("LpNormalization", ["x"], ["z"], axis=-1, p=2)],
        "then",
        [],
        [value("z", TensorProto.FLOAT, None)],
        value_info=[value(name, TensorProto.FLOAT, ["b", 5, 8])],
    )
    other = helper.make_graph([node("Identity", ["x"], ["z2"])], "other", [], [value("z2", TensorProto.FLOAT, None)])
    return model([node("If", ["c"], ["y"], then_branch=then, else_branch=other)], 18, c=np.array(True))


CASES = {
    "too little data": malformed(b"\1\2"),
    "too much data": malformed(b"\1" * 64),
    "no data": malformed(b""),
    "an infinite epsilon": model(norm("x", "y", "odd"), odd=np.float32(np.inf)),
    "an epsilon that is no number": model(norm("x", "y", "odd"), odd=np.float32(np.nan)),
    "a negative epsilon": model(norm("x", "y", "odd"), odd=np.float32(-1)),
    "a norm of no features": empty_slice(),
    "an attribute of another type": typed_attribute(),
    "an axis beyond the rank": model([node("RMSNormalization", ["x", "w"], ["y"], axis=7)], 23),
    **{f"LpNormalization in an If, a leftover {n}": in_a_branch(n) for n in ("old", "q", "w")},
}


@pytest.mark.parametrize("form", ["plugin", "onnx", "ort"])
@pytest.mark.parametrize("name", CASES)
def test_the_candidate_is_answered_and_the_others_are_fused(tmp_path, name, form):
    onnx.save(CASES[name], tmp_path / "m.onnx")
    for given in (tmp_path / "m.onnx", CASES[name]):
        report = explain(given, form=form)
        json.dumps(report.to_dict(), allow_nan=False)
        assert "whole" in {f.output for f in report.fused} or form == "onnx" or report.opset == 23, report
        fuse(given, form="plugin")


def test_a_constant_whose_data_do_not_fit_is_a_miss_with_a_reason():
    report = explain(CASES["too much data"])
    assert [f.output for f in report.fused] == ["whole"]
    (miss,) = report.near_misses
    assert "'odd' is not a constant" in miss.reason


def test_what_cannot_be_read_is_a_miss_with_a_reason(monkeypatch):
    def fail(facts, reduction):
        raise ValueError("not to be read")

    monkeypatch.setattr(engine, "open_candidate", fail)
    report = explain(CASES["a negative epsilon"])
    assert not report.fused
    assert report.near_misses
    for miss in report.near_misses:
        assert "cannot be read: ValueError: not to be read" in miss.reason
        assert "please report" in miss.hint
