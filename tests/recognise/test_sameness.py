"""A value that the graph computes twice is one value for recognition, and only where it is provably the same."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_deploy
from tests.support.graphs import nodes_of, same_results
from tests.support.run import run
from tests.support.spellings.graph import I64, D, F, Graph, H, V

SHAPE = (2, 3, 8)


def ints(g, *values):
    return g.constant(list(values), I64)


# how the graph makes a value; called twice, with constants of its own each time
MAKERS = {
    "cast": ((SHAPE, H), lambda g, x: g.cast(x, F)),
    "narrowing cast": ((SHAPE, D), lambda g, x: g.cast(x, F)),
    "cast and cast like": ((SHAPE, H), lambda g, x: g.op("CastLike", x, g.constant(1.0), dtype=F)),
    "slice": (((2, 3, 12), F), lambda g, x: g.op("Slice", x, ints(g, 0), ints(g, 8), ints(g, 2))),
    "slice from inside": (((2, 3, 12), F), lambda g, x: g.op("Slice", x, ints(g, 3), ints(g, 11), ints(g, -1))),
    "transpose": (((3, 2, 8), F), lambda g, x: g.op("Transpose", x, perm=[1, 0, 2])),
    "reshape": (((6, 8), F), lambda g, x: g.op("Reshape", x, ints(g, *SHAPE))),
    "gather": (((4, 3, 8), F), lambda g, x: g.op("Gather", x, ints(g, 1, 0), axis=0)),
    "gather, default axis": (((4, 3, 8), F), lambda g, x: g.op("Gather", x, ints(g, 1, 0))),
    "arithmetic": ((SHAPE, F), lambda g, x: g.op("Tanh", x * 3.0 + 0.5)),
    "sum of itself": ((SHAPE, F), lambda g, x: x + g.op("Sigmoid", x)),
    "long": ((SHAPE, F), lambda g, x: _long(g, x)),
    "matmul": ((SHAPE, F), lambda g, x: g.op("MatMul", x, _matrix(g))),
}


def _long(g, x):
    for _ in range(30):
        x = g.op("Tanh", x) + 0.25
    return x


def _matrix(g):
    return g.constant(np.eye(8)[::-1], F)


def norm(g, squared, scaled, epsilon=1e-3):
    return scaled / g.op("Sqrt", g.reduce("ReduceMean", squared * squared, (-1,)) + epsilon)


def fused_of(g, y, count=1):
    g.output(y, "y", SHAPE)
    model = g.model()
    fused, report = rmsnorm_deploy.fuse(model)
    assert len(report.fused) == count, report.missed
    return model, fused


@pytest.mark.parametrize("constant_nodes", [False, True])
@pytest.mark.parametrize("maker", MAKERS)
def test_a_value_that_is_computed_twice_is_one_value(maker, constant_nodes):
    (shape, dtype), make = MAKERS[maker]
    g = Graph(constant_nodes=constant_nodes)
    x = g.input("x", dtype, shape)
    model, fused = fused_of(g, norm(g, make(g, x), make(g, x)))
    numpy = {H: np.float16, D: np.float64, F: np.float32}[dtype]
    feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(numpy)}
    same_results(model, fused, feeds)
    truth = run(model, feeds, False)[0]
    np.testing.assert_allclose(run(fused, feeds, True, rmsnorm_deploy.register)[0], truth, rtol=2e-6, atol=1e-7)


def test_operands_change_places_and_names_of_casts():
    g = Graph()
    x, z = g.input("x", F, SHAPE), g.input("z", F, SHAPE)
    fused_of(g, norm(g, x + z, z + x))
    g = Graph()
    x = g.input("x", H, SHAPE)
    fused_of(g, norm(g, g.cast(x, F), g.op("CastLike", x, g.constant(2.0), dtype=F)))


def test_both_factors_of_the_square_may_be_computed_apart():
    g = Graph()
    x = g.input("x", D, SHAPE)
    a, b, c = (g.cast(x, F) for _ in range(3))
    fused_of(g, c / g.op("Sqrt", g.reduce("ReduceMean", a * b, (-1,)) + 1e-3))


def test_quantised_values_with_scales_of_their_own():
    nodes, tensors = [], [numpy_helper.from_array(np.float32(1e-3), "e"), numpy_helper.from_array(np.ones(8, "f"), "w")]
    for n in "ab":
        tensors += [
            numpy_helper.from_array(np.float32(0.05), f"s{n}"),
            numpy_helper.from_array(np.uint8(3), f"z{n}"),
        ]
        nodes.append(helper.make_node("DequantizeLinear", ["x", f"s{n}", f"z{n}"], [n]))
    nodes += [
        helper.make_node("Mul", ["a", "a"], ["q"]),
        helper.make_node("ReduceMean", ["q"], ["m"], axes=[-1]),
        helper.make_node("Add", ["m", "e"], ["v"]),
        helper.make_node("Sqrt", ["v"], ["r"]),
        helper.make_node("Div", ["b", "r"], ["d"]),
        helper.make_node("Mul", ["d", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, SHAPE)],
        [helper.make_tensor_value_info("y", F, SHAPE)],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    fused, report = rmsnorm_deploy.fuse(model)
    assert len(report.fused) == 1
    assert nodes_of(fused, "").count("DequantizeLinear") == 1, "nothing reads the other one any more"
    same_results(model, fused, {"x": np.arange(48, dtype=np.uint8).reshape(SHAPE)})
    # of another scale it is another value
    model.graph.initializer[4].CopyFrom(numpy_helper.from_array(np.float32(0.06), "sb"))
    assert not rmsnorm_deploy.fuse(model, dry_run=True)[1].fused


DIFFERENT = {
    "random": lambda g, x: (g.op("RandomNormalLike", x), g.op("RandomNormalLike", x)),
    "random with a seed": lambda g, x: (g.op("RandomNormalLike", x, seed=1.0), g.op("RandomNormalLike", x, seed=1.0)),
    "behind random": lambda g, x: (x + g.op("RandomNormalLike", x), x + g.op("RandomNormalLike", x)),
    "attributes": lambda g, x: (g.op("Elu", x, alpha=0.5), g.op("Elu", x, alpha=0.25)),
    "an attribute and its default": lambda g, x: (g.op("Elu", x, alpha=0.5), g.op("Elu", x)),
    "constants": lambda g, x: (x * 2.0, x * 2.0000002),
    "signs of zero": lambda g, x: (x / 0.0, x / -0.0),
    "inputs": lambda g, x: (g.op("Tanh", x), g.op("Tanh", g.input("z", F, SHAPE))),
    "order of a difference": lambda g, x: (x - g.input("z", F, SHAPE), V(g, "z", F) - x),
    "types": lambda g, x: (g.cast(g.cast(x, H), F), g.cast(g.cast(x, 16), F)),
    "an unknown operator": lambda g, x: (g.op("Rope", x, domain="my.ops"), g.op("Rope", x, domain="my.ops")),
    "domains": lambda g, x: (g.op("Gelu", x, domain="my.ops"), g.op("Gelu", x)),
    "training": lambda g, x: tuple(
        g.op("Dropout", x, g.constant(0.5), g.constant(True, TensorProto.BOOL)) for _ in range(2)
    ),
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_values_that_may_differ_are_two(kind, monkeypatch):
    from tests.support.spellings import graph

    monkeypatch.setitem(graph.NUMPY, TensorProto.BOOL, np.bool_)
    g = Graph(opset=20)
    x = g.input("x", F, SHAPE)
    a, b = DIFFERENT[kind](g, x)
    y = norm(g, a, b)
    g.output(y, "y", SHAPE)
    model = g.model(extra_opsets=[helper.make_opsetid("my.ops", 1)])
    assert not rmsnorm_deploy.fuse(model, dry_run=True)[1].fused


def test_outputs_of_one_node_are_two_values():
    g = Graph()
    x = g.input("x", F, (2, 3, 16))
    names = ["a", "b"]
    g.nodes.append(helper.make_node("Split", ["x", ints(g, 8, 8).name], names, axis=2))
    del x
    g.output(norm(g, V(g, "a", F), V(g, "b", F)), "y", SHAPE)
    assert not rmsnorm_deploy.fuse(g.model(), dry_run=True)[1].fused


def test_outputs_of_two_equal_nodes_are_one():
    g = Graph()
    g.input("x", F, (2, 3, 16))
    for one, two in (("a", "b"), ("c", "d")):
        g.nodes.append(helper.make_node("Split", ["x", ints(g, 8, 8).name], [one, two], axis=2))
    model, fused = fused_of(g, norm(g, V(g, "b", F), V(g, "d", F)))
    same_results(model, fused, {"x": np.random.default_rng(0).standard_normal((2, 3, 16)).astype(np.float32)})


def test_large_weights_are_not_compared():
    """A weight is never read, so that two of them are two values."""
    g = Graph()
    x = g.input("x", F, SHAPE)
    y = norm(g, *(g.op("MatMul", x, g.weight(np.zeros((8, 1024)), F)) for _ in range(2)))
    g.output(y, "y", (2, 3, 1024))
    assert not rmsnorm_deploy.fuse(g.model(), dry_run=True)[1].fused


def test_a_default_that_a_caller_may_override_is_not_compared():
    g = Graph()
    x = g.input("x", F, SHAPE)
    a, b = g.weight(np.float32(2), F, "a"), g.weight(np.float32(2), F, "b")
    for name in "ab":
        g.inputs.append(helper.make_tensor_value_info(name, F, ()))
    g.output(norm(g, x * a, x * b), "y", SHAPE)
    assert not rmsnorm_deploy.fuse(g.model(), dry_run=True)[1].fused


def test_a_residual_sum_that_is_computed_twice_is_taken_in():
    g = Graph()
    x, r = g.input("x", F, SHAPE), g.input("r", F, SHAPE)
    model, fused = fused_of(g, norm(g, x + r, x + r))
    assert nodes_of(fused) == ["AddRMSNorm"]
    assert "Add" not in nodes_of(fused, "")
    data = np.random.default_rng(0).standard_normal((2, *SHAPE)).astype(np.float32)
    same_results(model, fused, {"x": data[0], "r": data[1]})


def test_two_chains_from_the_input_on_are_compared_in_linear_time():
    """Each pair once: a chain of sums of itself has 2^200 paths."""
    g = Graph()
    x = g.input("x", F, SHAPE)

    def tower():
        v = x
        for _ in range(100):
            v = v + g.op("Tanh", v)
        return v

    a, b = tower(), tower()
    g.output(norm(g, a, b), "y", SHAPE)
    model = g.model()
    onnx.checker.check_model(model)
    assert len(rmsnorm_deploy.fuse(model, dry_run=True)[1].fused) == 1


def test_inside_a_subgraph_values_from_outside_are_compared_too():
    inner = Graph()
    inner.nodes = [
        helper.make_node("Cast", ["x"], ["b"], to=F),
        helper.make_node("Mul", ["a", "a"], ["q"]),
        helper.make_node("ReduceMean", ["q", "axes"], ["m"]),
        helper.make_node("Add", ["m", "e"], ["v"]),
        helper.make_node("Sqrt", ["v"], ["r"]),
        helper.make_node("Div", ["b", "r"], ["inner_y"]),
    ]
    branch = helper.make_graph(inner.nodes, "then", [], [helper.make_tensor_value_info("inner_y", F, SHAPE)])
    other = helper.make_graph(
        [helper.make_node("Identity", ["a"], ["other_y"])],
        "else",
        [],
        [helper.make_tensor_value_info("other_y", F, SHAPE)],
    )
    g = Graph()
    g.input("x", D, SHAPE)
    g.input("c", TensorProto.BOOL, ())
    g.constant(1e-3, F, "e")
    g.constant([-1], I64, "axes")
    g.nodes += [
        helper.make_node("Cast", ["x"], ["a"], to=F),
        helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=other),
    ]
    g.outputs.append(helper.make_tensor_value_info("y", F, SHAPE))
    model = g.model()
    fused, report = rmsnorm_deploy.fuse(model)
    assert len(report.fused) == 1, report.missed
    x = np.random.default_rng(0).standard_normal(SHAPE)
    for c in (True, False):
        same_results(model, fused, {"x": x, "c": np.array(c)})
