"""Values that are used in many ways, which double with every step, are not followed for ever."""

import time

import numpy as np
from onnx import helper

import rmsnorm_deploy
from tests.support.graphs import chain
from tests.support.spellings.graph import F, Graph


def doubled(g, norms=1, steps=60):
    """Norms whose statistic is used twice at every step, by nodes that no checker would take."""
    x = g.input("x", F, (2, 8))
    for k in range(norms):
        v = g.reduce("ReduceMean", x * x, (-1,), 1) + (1e-3 + k)
        for _ in range(steps):
            v = g.op("Neg", v, v)
        g.output(g.op("Exp", g.op("Sqrt", v)), f"y{k}", None)
    return x


def seconds(model):
    start = time.process_time()
    report = rmsnorm_deploy.explain(model)
    return time.process_time() - start, report


def test_ways_that_double_are_given_up():
    g = Graph(opset=17)
    x = doubled(g)
    h = chain(g, x, g.weight(np.ones(8), F))["y"]
    g.output(h, "z", (2, 8))
    took, report = seconds(g.model())
    assert took < 5
    assert len(report.fused) == 1
    assert [m.reason for m in report.missed] == ["its values are used in more ways than are followed"]


def test_many_such_norms_share_what_may_be_spent():
    g = Graph(opset=17)
    x = doubled(g, norms=150, steps=14)
    h = chain(g, x, g.weight(np.ones(8), F))["y"]
    g.output(h, "z", (2, 8))
    took, report = seconds(g.model())
    assert took < 15
    assert len(report.fused) == 1  # the last one, which has a share of its own


def test_a_node_that_reads_what_comes_of_it_ends():
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("ReduceSumSquare", ["x"], ["s"], axes=[-1], keepdims=1),
        helper.make_node("Sqrt", ["s"], ["r"]),
        helper.make_node("Neg", ["r", *["t"] * 20], ["n"]),
        helper.make_node("Reciprocal", ["n"], ["t"]),
        helper.make_node("Mul", ["x", "t"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [info("x", F, (2, 8))], [info("y", F, (2, 8))])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    took, _ = seconds(model)
    assert took < 5
