"""Shapes that depend on constants which the graph computes: what is folded, and what Pad, Tile and Slice then give."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import rmsnorm_deploy
from rmsnorm_deploy.recognise.computed_shapes import state_constants
from rmsnorm_deploy.recognise.folding import Operands, fold
from tests.support.graphs import same_results
from tests.support.run import run
from tests.support.spellings.graph import I64, F, Graph

SIZE = 8


def ints(g, *values):
    return g.constant(list(values), I64)


def index(g, value):
    return g.constant(value, I64)


def padding(g, *, divisor=4, given=None):
    """Pads for two dimensions, as TorchScript's exporter turns the numbers of F.pad into them: (0, (4 - 8 % 4) % 4)."""
    more = (index(g, 4) - g.op("Mod", index(g, SIZE), index(g, divisor))) if given is None else given
    last = g.along("Unsqueeze", g.op("Mod", more, index(g, divisor)), [0])
    listed = g.cast(g.op("Concat", ints(g, 0), last, axis=0), I64)
    missing = index(g, 4) - g.op("Gather", g.op("Shape", listed, dtype=I64), index(g, 0))
    zeros = helper.make_tensor("", I64, [1], [0])
    rest = g.op("ConstantOfShape", g.along("Unsqueeze", missing, [0]), dtype=I64, value=zeros)
    pairs = g.op("Reshape", g.op("Concat", listed, rest, axis=0), ints(g, -1, 2))
    turned = g.op("Slice", pairs, ints(g, -1), ints(g, -(2**63) + 1), ints(g, 0), ints(g, -1))
    return g.cast(g.op("Reshape", g.op("Transpose", turned, perm=[1, 0]), ints(g, -1)), I64)


def gated(pads, opset=17):
    """A norm of a padded x times a gate that needs x's size; and the same with what comes of an initializer."""
    g = Graph(opset, constant_nodes=True)
    x, z = g.input("x", F, (3, SIZE)), g.input("z", F, (3, SIZE))
    product = g.op("Pad", x, pads(g)) * (z * g.op("Sigmoid", z))
    root = g.op("Sqrt", g.reduce("ReduceMean", product * product, [-1]) + 1e-5)
    g.output(product / root * g.weight(np.linspace(0.5, 2, SIZE), F), "y", (3, SIZE))
    return g.model()


def data():
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal((3, SIZE)).astype(np.float32) for name in "xz"}


@pytest.mark.parametrize("opset", [13, 17, 18])
def test_a_padding_that_the_graph_computes_of_constants(opset):
    model = gated(padding, opset)
    fused, report = rmsnorm_deploy.fuse(model, also=["gates"])
    assert [norm.op for norm in report.fused] == ["GatedRMSNorm"], report.missed
    same_results(model, fused, data())


def test_what_a_caller_can_change_is_no_constant():
    def pads(g):
        number = g.weight(np.int64(0), I64, "number")
        g.inputs.append(helper.make_tensor_value_info("number", I64, []))
        return padding(g, given=number)

    model = gated(pads)
    fused, report = rmsnorm_deploy.fuse(model, also=["gates"])
    assert [norm.op for norm in report.fused] == ["RMSNorm"]
    same_results(model, fused, data())


def test_a_padding_that_makes_it_longer_is_one():
    g = Graph(17, constant_nodes=True)
    x = g.input("x", F, (3, SIZE - 1))
    longer = g.op("Pad", x, padding(g, divisor=7))  # (4 - 8 % 7) % 7 is 3
    mean = g.reduce("ReduceSum", longer * longer, [-1]) / float(SIZE + 2)
    g.output(longer / g.op("Sqrt", mean + 1e-5), "y", (3, SIZE + 2))
    model = g.model()
    fused, report = rmsnorm_deploy.fuse(model)
    assert len(report.fused) == 1
    feeds = {"x": data()["x"][:, 1:]}
    same_results(model, fused, feeds)
    assert run(fused, feeds, False)[0].shape == (3, SIZE + 2)


N = np.array
FOLDED = [
    ("Div", [N([-7, 7, -7, 7, 0, -8]), N([2, -2, -2, 2, 3, 4])], {}),
    ("Mod", [N([-7, 7, -7, 7, 0]), N([4, -4, -4, 4, 3])], {}),
    ("Mod", [N([-7, 7, -7, 7, 0]), N([4, -4, -4, 4, 3])], {"fmod": 1}),
    ("Slice", [np.arange(12).reshape(4, 3), N([-1]), N([-(2**63) + 1]), N([0]), N([-1])], {}),
    ("Slice", [np.arange(12).reshape(4, 3), N([1, 0]), N([3, 2]), N([0, -1])], {}),
    ("Slice", [np.arange(12).reshape(4, 3), N([1]), N([2**63 - 1])], {}),
    ("Slice", [np.arange(5), N([3]), N([0]), N([0]), N([-2])], {}),
    ("Transpose", [np.arange(6).reshape(2, 3)], {}),
    ("Transpose", [np.arange(6).reshape(1, 2, 3)], {"perm": [2, 0, 1]}),
    ("Shape", [np.arange(6).reshape(2, 3)], {}),
    ("Size", [np.arange(6).reshape(2, 3)], {}),
    ("Equal", [N([[1, 2], [3, 4]]), N([1, 4])], {}),
    ("Where", [N([True, False]), N([[1], [2]]), N([5, 6])], {}),
]


@pytest.mark.parametrize(("op", "arrays", "attributes"), FOLDED)
def test_what_is_folded_is_what_onnxruntime_computes(op, arrays, attributes):
    """Each with its operands as constants, in the types that shapes have."""
    node = helper.make_node(op, [f"i{i}" for i in range(len(arrays))], ["y"], **attributes)
    read = {a.name: ir.serde.deserialize_attribute(a) for a in node.attribute}
    found = fold(Operands(op, read, arrays))
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(node.input, arrays, strict=True)
    ]
    kind = onnx.TensorProto.BOOL if op == "Equal" else I64
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", kind, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (truth,) = run(model, dict(zip(node.input, arrays, strict=True)), False)
    assert found is not None
    assert found.dtype == truth.dtype
    np.testing.assert_array_equal(found, truth)


@pytest.mark.parametrize(
    ("op", "arrays", "attributes"),
    [
        ("Div", [N([1]), N([0])], {}),
        ("Mod", [N([1]), N([0])], {}),
        ("Mod", [N([1.5]), N([1.0])], {"fmod": 1}),
        ("Slice", [np.arange(4), N([0, 1]), N([3, 3]), N([0, 0])], {}),
        ("Slice", [np.arange(4), N([0]), N([3]), N([1])], {}),
        ("Where", [N([1, 0]), N([1, 1]), N([2, 2])], {}),
        ("Shape", [np.arange(4)], {"start": 0}),
        ("Transpose", [np.arange(4)], {"perm": [1, 0]}),
    ],
)
def test_what_is_not_folded(op, arrays, attributes):
    node = helper.make_node(op, ["a"], ["y"], **attributes)
    read = {a.name: ir.serde.deserialize_attribute(a) for a in node.attribute}
    assert fold(Operands(op, read, arrays)) is None


def test_a_quotient_of_sizes_rounds_towards_zero():
    """-(-7 / 2) is 3, so that this is the sum over 8 elements divided by 3, and no mean."""
    g = Graph(17)
    x = g.input("x", F, (3, SIZE))
    count = g.op(
        "Neg",
        g.op("Div", g.op("Neg", g.op("Gather", g.op("Shape", x, dtype=I64), index(g, -1)) - index(g, 1)), index(g, 2)),
    )
    mean = g.reduce("ReduceSum", x * x, [-1]) / g.cast(count, F)
    g.output(x / g.op("Sqrt", mean + 1e-5), "y", (3, SIZE))
    model = g.model()
    fused, _ = rmsnorm_deploy.fuse(model)
    same_results(model, fused, {"x": data()["x"]})


def test_damaged_constants_are_none():
    tensor = numpy_helper.from_array(np.zeros(4, np.int64), "pads")
    nodes = [helper.make_node("Identity", ["pads"], ["p"]), helper.make_node("Pad", ["x", "p"], ["y"])]
    graph = onnx.GraphProto(node=nodes, initializer=[tensor])
    state_constants(graph)
    assert [n.op_type for n in graph.node] == ["Constant", "Pad"]
    graph.node[0].CopyFrom(nodes[0])
    graph.initializer[0].raw_data = tensor.raw_data[:-3]
    state_constants(graph)
    assert [n.op_type for n in graph.node] == ["Identity", "Pad"]


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("ConstantOfShape", ["pads"], ["p"], value=1),
        helper.make_node("Transpose", ["pads"], ["p"], perm=3),
        helper.make_node("Cast", ["pads"], ["p"], to=onnx.TensorProto.STRING),
        helper.make_node("Cast", ["pads"], ["p"], to=99),
        helper.make_node("Gather", ["pads", "pads"], ["p"], axis=[0]),
        helper.make_node("Concat", ["pads", "p"], ["p"], axis=0),
        helper.make_node("ConstantOfShape", ["large"], ["p"]),
    ],
    ids=lambda node: f"{node.op_type} {node.attribute[0].name if node.attribute else ''}",
)
def test_a_malformed_node_is_left(node):
    weights = [numpy_helper.from_array(np.full(4, n), name) for n, name in ((0, "pads"), (2**62, "large"))]
    reader = helper.make_node("Pad", ["x", "p"], ["y"])
    graph = onnx.GraphProto(node=[node, reader], initializer=weights)
    state_constants(graph)
    assert list(graph.node) == [node, reader]
