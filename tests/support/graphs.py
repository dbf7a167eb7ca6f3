"""Graphs that tests of fusing have in common, and what they ask of a fused model."""

import numpy as np
from onnx import TensorProto, helper

from rmsnorm_deploy.op import DOMAIN
from tests.support.judge import units
from tests.support.run import run
from tests.support.spellings.graph import F, Graph, V


def chain(g, x, w=None, epsilon=1e-6, axes=(-1,), keepdims=1, square=None):
    """The commonest spelling; returns every value on the way."""
    v = {"x": x}
    v["square"] = square if square is not None else x**2.0
    v["mean"] = g.reduce("ReduceMean", v["square"], axes, keepdims)
    v["sum"] = v["mean"] + epsilon
    v["rms"] = g.op("Sqrt", v["sum"])
    v["inverse"] = g.op("Reciprocal", v["rms"])
    v["normalised"] = x * v["inverse"]
    v["y"] = v["normalised"] * w if w is not None else v["normalised"]
    return v


def nodes_of(model, domain=DOMAIN):
    return [n.op_type for n in model.graph.node if n.domain == domain]


def same_results(model, fused, feeds, slack=8):
    for optimise in (False, True):
        for a, b in zip(run(model, feeds, False), run(fused, feeds, optimise), strict=True):
            assert units(b, a.astype(np.float64)) <= slack


# -- where norms live -------------------------------------------------------------------------------------------------


def if_model(weight_outside=True):
    g = Graph()
    g.input("x", F, (2, 3, 8))
    g.weight(np.linspace(1, 2, 8), F, "w")
    condition = g.input("c", TensorProto.BOOL, ())
    bodies = []
    for name, epsilon in (("then", 1e-6), ("else", 0.5)):
        inner = Graph()
        v = chain(inner, V(inner, "x", F), V(inner, "w", F), epsilon)
        inner._rename(v["y"], f"{name}_y")
        for node in inner.nodes:  # names are unique across all scopes
            for names in (node.input, node.output):
                for i, n in enumerate(names):
                    if n not in ("x", "w", f"{name}_y"):
                        names[i] = f"{name}_{n}"
        for t in inner.initializers:
            t.name = f"{name}_{t.name}"
        bodies.append(
            helper.make_graph(
                inner.nodes, name, [], [helper.make_tensor_value_info(f"{name}_y", F, (2, 3, 8))], inner.initializers
            )
        )
    g.nodes.append(
        helper.make_node("If", [condition.name], ["y"], name="if", then_branch=bodies[0], else_branch=bodies[1])
    )
    g.outputs.append(helper.make_tensor_value_info("y", F, (2, 3, 8)))
    return g.model()
