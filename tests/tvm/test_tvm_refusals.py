"""What cannot be imported is named in one message, wherever it is, and the advice is true."""

import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.tvm import import_onnx

node, F32, I64, BOOL = helper.make_node, TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name, kind=F32, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, functions=()):
    graph = helper.make_graph(
        nodes, "g", [info(name, *v) for name, v in inputs.items()], [info(name, *v) for name, v in outputs.items()]
    )
    opsets = [("", 18), ("far", 1), ("mine", 1), ("com.microsoft", 1)]
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*o) for o in opsets], functions=list(functions), ir_version=10
    )


def refusal(proto, capfd):
    with pytest.raises(ModelError) as raised:
        import_onnx(proto)
    assert capfd.readouterr() == ("", "")
    return raised.value


def rotation(x, y, name, **attributes):
    return node("RotaryEmbedding", [x, "at", "cos", "sin"], [y], name, domain="com.microsoft", **attributes)


ROTATED = {"x": (F32, [1, 2, 4, 8]), "at": (I64, [1]), "cos": (F32, [9, 4]), "sin": (F32, [9, 4])}
NO_SCALE = "(packed batches and a scale are not supported)"


def test_operators_and_forms_in_one_message(capfd):
    nodes = [
        node("Foo", ["x"], ["a"], "first", domain="far"),
        rotation("x", "b", "second", scale=2.0),
        rotation("b", "c", "", is_packed_batching=1),  # behind a refused one whose type is known
        node("Relu", ["a"], ["r"]),
        node("Bar", ["r"], ["d"], "fourth", domain="far"),
    ]
    found = refusal(model(nodes, ROTATED, {"c": (F32, [1, 2, 4, 8]), "d": ()}), capfd)
    assert found.message == (
        "TVM cannot import 4 nodes: far::Foo 'first'; far::Bar 'fourth'; "
        f"com.microsoft::RotaryEmbedding 'second' {NO_SCALE}; com.microsoft::RotaryEmbedding 'c' {NO_SCALE}"
    )
    assert found.hint == "Run the model in onnxruntime, or export it without these operators."


def test_what_only_follows_is_not_named(capfd):
    """The converter of Reshape fails for want of the shape, which a refused node would give."""
    nodes = [
        node("Foo", ["x"], ["shape"], "first", domain="far"),
        node("Reshape", ["x", "shape"], ["b"], "second"),
        node("Split", ["b"], ["c", "d"], "third", num_outputs=2),
        node("If", ["flag"], ["e"], "fourth", then_branch=branch("c", "Identity"), else_branch=branch("d", "Identity")),
        node("MatMul", ["e", "d"], ["y"], "fifth"),
        rotation("x", "z", "last", scale=2.0),
    ]
    inputs = ROTATED | {"flag": (BOOL, [])}
    found = refusal(model(nodes, inputs, {"y": (), "z": ()}), capfd)
    assert "far::Foo 'first'" in found.message
    assert not any(name in found.message for name in ("second", "third", "fourth", "fifth"))


def branch(value, kind, domain=""):
    return helper.make_graph(
        [node(kind, [value], [f"{value}_in"], f"{kind} in a branch", domain=domain)], "b", [], [info(f"{value}_in")]
    )


def test_branches_loops_and_functions(capfd):
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("far", 1)]
    inner = [node("Foo", ["a"], ["t"], "inner", domain="far"), node("Relu", ["t"], ["b"])]
    function = helper.make_function("mine", "Block", ["a"], ["b"], inner, opsets)
    body = helper.make_graph(
        [node("Baz", ["v"], ["w"], "in the loop", domain="far"), node("Identity", ["c"], ["d"])],
        "body",
        [info("i", I64, []), info("c", BOOL, []), info("v")],
        [info("d", BOOL, []), info("w")],
    )
    nodes = [
        node("If", ["flag"], ["a"], "branches", then_branch=branch("x", "Foo", "far"), else_branch=branch("x", "Relu")),
        node("Block", ["a"], ["b1"], "call", domain="mine"),
        node("Block", ["b1"], ["b2"], "call again", domain="mine"),
        node("Loop", ["many", "flag", "b2"], ["y"], "the loop", body=body),
    ]
    inputs = {"x": (F32, [2, 4]), "flag": (BOOL, []), "many": (I64, [])}
    message = refusal(model(nodes, inputs, {"y": ()}, [function]), capfd).message
    assert message.startswith("TVM cannot import 5 nodes: ")
    for part in ("far::Foo 'Foo in a branch'", "far::Foo 'inner", "Loop 'the loop'", "far::Baz 'in the loop'"):
        assert part in message
    assert message.count("far::Foo 'inner") == 2


@pytest.mark.parametrize("length", ["n", 4], ids=["dynamic", "fixed"])
def test_fixed_shapes_are_advised_only_where_they_help(length, capfd):
    """A converter that needs a number takes what a fixed shape gives it; a form that nobody knows stays unknown."""
    nodes = [node("Shape", ["x"], ["s"], "shape", start=2, end=3), node("TopK", ["x", "s"], ["v", "i"], "best", axis=2)]
    proto = model(nodes, {"x": (F32, [1, 2, length, 8])}, {"v": (), "i": (I64,)})
    if length == 4:
        import_onnx(proto)
    else:
        found = refusal(proto, capfd)
        assert "1 node: TopK 'best'" in found.message
        assert found.hint == "With fixed shapes it can: export the model without dynamic dimensions."
    inputs = ROTATED | {"x": (F32, [1, 2, length, 8])}
    found = refusal(model([rotation("x", "y", "turn", scale=2.0)], inputs, {"y": ()}), capfd)
    assert found.hint == "Run the model in onnxruntime, or export it without this operator."
