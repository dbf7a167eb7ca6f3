"""Norms of which something is unknown: fused where that is proven all the same, and counted in any case."""

import numpy as np
import pytest
from onnx import helper

import rmsnorm_deploy
from tests.support.graphs import chain, nodes_of
from tests.support.run import run
from tests.support.spellings.graph import I64, D, F, Graph, H

SHAPE = (2, 3, 8)
NUMPY = {F: np.float32, H: np.float16, D: np.float64}


def behind(g, x, dtype=F):
    """``x`` behind an operator that onnx does not know."""
    return g.op("Mystery", x, domain="my.ops", dtype=dtype)


def report_of(g, y, shape=SHAPE, dtype=F, functions=()):
    g.output(y, "y", shape)
    model = g.model(functions=functions, extra_opsets=[helper.make_opsetid("my.ops", 1)])
    return model, rmsnorm_deploy.fuse(model, dry_run=True)[1]


def w_of(g, dtype=F):
    return g.weight(np.linspace(0.5, 2, 8), dtype)


# ---------------------------------------------------------------------------------------------------------------------
# The type


@pytest.mark.parametrize("epsilon", ["added to the mean", "clamps the mean", "added to the root"])
@pytest.mark.parametrize("dtype", [F, D])
def test_a_type_is_known_by_the_constants_beside_it(epsilon, dtype):
    g = Graph()
    x = behind(g, g.input("x", dtype, SHAPE), dtype)
    mean = g.reduce("ReduceMean", x * x, (-1,))
    root = {
        "added to the mean": lambda: g.op("Sqrt", mean + 1e-3),
        "clamps the mean": lambda: g.op("Sqrt", g.op("Max", mean, g.constant(1e-3, dtype))),
        "added to the root": lambda: g.op("Sqrt", mean) + 1e-3,
    }[epsilon]()
    g.output(g.op("Mystery", x / root, domain="my.ops"), "y", None)
    _, report = [None, rmsnorm_deploy.fuse(g.model(), dry_run=True)[1]]
    assert [n.type for n in report.fused] == [{F: "FLOAT", D: "DOUBLE"}[dtype]], report.missed


def test_a_type_is_known_by_what_the_norm_goes_into():
    g = Graph()
    x = behind(g, g.input("x", F, SHAPE))
    mean = g.reduce("ReduceMean", x * x, (-1,))
    y = g.op("MatMul", g.op("Transpose", x / g.op("Sqrt", mean), perm=[0, 1, 2]), g.weight(np.eye(8), F))
    _, report = report_of(g, y)
    assert len(report.fused) == 1, report.missed


def test_a_norm_of_unknown_type_is_a_near_miss():
    g = Graph()
    x = behind(g, g.input("x", F, SHAPE))
    mean = g.reduce("ReduceMean", x * x, (-1,))
    y = behind(g, x / g.op("Sqrt", mean))
    _, report = report_of(g, y)
    assert not report.fused
    (miss,) = report.near_misses
    assert "type" in miss.reason


def test_types_that_contradict_each_other_prove_nothing_for_others():
    """The exponent of Pow has a type of its own."""
    g = Graph()
    x = behind(g, g.input("x", F, SHAPE))
    mean = g.reduce("ReduceMean", g.op("Pow", x, g.constant(2.0, D)), (-1,))
    y = behind(g, x / g.op("Sqrt", mean))
    _, report = report_of(g, y)
    assert not report.fused
    assert len(report.near_misses) == 1


def test_a_cast_of_an_unknown_type_is_counted():
    g = Graph()
    x = behind(g, g.input("x", F, SHAPE))
    square = g.cast(x * x, F)
    y = x / g.op("Sqrt", g.reduce("ReduceMean", square, (-1,)) + 1e-3)
    _, report = report_of(g, behind(g, y))
    assert len(report.fused) + len(report.near_misses) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Rank and axes


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSumSquare", "LpNormalization", "ReduceL2", "Einsum"])
def test_a_positive_axis_of_unknown_rank_is_counted(op):
    g = Graph(opset=17)
    x = behind(g, g.input("x", F, SHAPE))
    x = g.op("Relu", x) + 1.0
    if op == "LpNormalization":
        y = g.op(op, x, axis=2, p=2)
    elif op == "Einsum":
        y = x / g.op("Sqrt", g.op("Einsum", x, x, equation="i...,i...->..."))
    else:
        value = x * x if op == "ReduceMean" else x
        mean = g.op(op, value, axes=[2])
        y = x / (mean if op == "ReduceL2" else g.op("Sqrt", mean + 1e-3))
    _, report = report_of(g, y)
    assert not report.fused
    assert len(report.near_misses) == 1


def test_axes_that_a_caller_gives_are_counted():
    g = Graph()
    x, axes = g.input("x", F, SHAPE), g.input("axes", I64, (1,))
    y = x / g.op("Sqrt", g.op("ReduceMean", x * x, axes) + 1e-3)
    _, report = report_of(g, y)
    assert not report.fused
    assert len(report.near_misses) == 1


def test_a_norm_of_unknown_rank_leaves_what_may_enlarge_it_outside():
    g = Graph()
    x = behind(g, g.input("x", F, SHAPE))
    y = chain(g, x, w_of(g))["y"]
    _, report = report_of(g, y)
    assert len(report.fused) == 1
    assert "Mul(.,W)" not in report.fused[0].spelling


# ---------------------------------------------------------------------------------------------------------------------
# Operators that are a norm by contract


CONTRACT = ("RMSNormalization", "SimplifiedLayerNormalization")


def contract(op, g, x, w, dtype, **attributes):
    return g.op(op, x, w, dtype=dtype, **{"axis": -1, "epsilon": 1e-3, **attributes})


@pytest.mark.parametrize("dtype", [F, H])
@pytest.mark.parametrize("op", CONTRACT)
def test_a_norm_by_contract_of_unknown_rank_is_fused(op, dtype):
    g = Graph(opset=23)
    x = behind(g, g.input("x", dtype, SHAPE), dtype)
    if op == "SimplifiedLayerNormalization":
        x = g.op("Mystery", x, domain="my.ops", dtype=dtype) * g.constant(1.0, dtype)
    _, report = report_of(g, contract(op, g, x, w_of(g, dtype), dtype))
    assert [n.scale for n in report.fused] == [g.initializers[-1].name], report.missed


def test_a_norm_by_contract_of_unknown_type_is_cast_where_that_is_exact():
    """float32 scale: x is float32 or of 16 bits, and the arithmetic is that of float32."""
    g = Graph(opset=17)
    x = behind(g, g.input("x", H, SHAPE))
    g.output(contract("SimplifiedLayerNormalization", g, x, w_of(g), F), "y", SHAPE)
    fused, report = rmsnorm_deploy.fuse(g.model(extra_opsets=[helper.make_opsetid("my.ops", 1)]))
    assert len(report.fused) == 1, report.missed
    assert nodes_of(fused, "") == ["Cast"]
    g = Graph(opset=17)
    x = behind(g, g.input("x", F, SHAPE))
    _, report = report_of(g, contract("SimplifiedLayerNormalization", g, x, w_of(g, H), H))
    assert not report.fused
    assert len(report.near_misses) == 1


@pytest.mark.parametrize("axis", [7, 3, -4, 2**40])
@pytest.mark.parametrize("op", CONTRACT)
def test_an_axis_outside_the_rank_is_a_near_miss(op, axis):
    g = Graph(opset=23)
    x = g.input("x", F, SHAPE)
    _, report = report_of(g, contract(op, g, x, w_of(g), F, axis=axis))
    assert not report.fused
    assert "rank" in report.near_misses[0].reason


@pytest.mark.parametrize("axis", [1, 2**40])
def test_a_positive_axis_of_a_norm_by_contract_needs_the_rank(axis):
    g = Graph(opset=23)
    x = behind(g, g.input("x", F, SHAPE))
    _, report = report_of(g, contract("RMSNormalization", g, x, w_of(g), F, axis=axis))
    assert not report.fused
    assert len(report.near_misses) == 1


def test_a_scale_that_the_contract_forbids_is_left_alone():
    g = Graph(opset=23)
    x = g.input("x", F, (2, 3, 1))
    _, report = report_of(g, contract("RMSNormalization", g, x, w_of(g), F), (2, 3, 8))
    assert not report.fused
    assert "enlarges" in report.near_misses[0].reason


SCALES = {
    "each sample": ("b", 1, 8),
    "each row": ("b", 3, 8),
    "each position": (3, 8),
    "a number for each sample": ("b", 1, 1),
}


@pytest.mark.parametrize("how", ["given", "computed", "residual"])
@pytest.mark.parametrize("dtype", [F, H, D])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("op", CONTRACT)
def test_a_norm_by_contract_has_a_scale_for_each_sample(op, scale, dtype, how):
    shape = SCALES[scale]
    g = Graph(opset=23)
    x, s = g.input("x", dtype, ("b", 3, 8)), g.input("s", dtype, shape)
    if how == "computed":
        s = s + 1.0
    if how == "residual":
        x = x + g.input("r", dtype, ("b", 3, 8))
    g.output(contract(op, g, x, s, dtype), "y", ("b", 3, 8))
    fused, report = rmsnorm_deploy.fuse(g.model())
    wanted = "GeneralRMSNorm" if dtype == D else "AddRMSNorm" if how == "residual" else "RMSNorm"
    assert [n.op for n in report.fused] == [wanted], report.missed
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal(SHAPE).astype(NUMPY[dtype]),
        "s": rng.standard_normal([2 if d == "b" else d for d in shape]).astype(NUMPY[dtype]),
    }
    wide = {k: v.astype(np.float64) for k, v in feeds.items()}
    if how == "residual":
        feeds["r"] = feeds["x"][::-1].copy()
        wide["x"] = (feeds["x"] + feeds["r"]).astype(np.float64)
    truth = wide["x"] / np.sqrt((wide["x"] ** 2).mean(-1, keepdims=True) + 1e-3) * (wide["s"] + (how == "computed"))
    slack = {F: 1e-5, H: 5e-3, D: 1e-6}[dtype]
    for hook in (None, rmsnorm_deploy.register):
        for optimise in (False, True):
            np.testing.assert_allclose(run(fused, feeds, optimise, hook)[0], truth, slack, slack)


# ---------------------------------------------------------------------------------------------------------------------
# No features


@pytest.mark.parametrize("form", ["plugin", "ort"])
@pytest.mark.parametrize("axes", [(-1,), (-2, -1)])
def test_a_norm_of_no_features_stays_as_it_was(axes, form):
    g, shape = Graph(opset=17), ("b", 3, 0)
    x = g.input("x", F, shape)
    g.output(chain(g, x, g.weight(np.zeros(0), F), axes=axes)["y"], "y", shape)
    model = g.model()
    fused, report = rmsnorm_deploy.fuse(model, form=form)
    assert "no elements" in report.near_misses[0].reason
    for hook in (None, rmsnorm_deploy.register):
        assert run(fused, {"x": np.zeros((2, 3, 0), np.float32)}, True, hook)[0].shape == (2, 3, 0)


def test_a_norm_of_no_rows_is_fused():
    g = Graph(opset=17)
    x = g.input("x", F, (0, 3, 8))
    g.output(chain(g, x, w_of(g))["y"], "y", (0, 3, 8))
    fused, report = rmsnorm_deploy.fuse(g.model())
    assert report.fused
    assert run(fused, {"x": np.zeros((0, 3, 8), np.float32)}, True)[0].shape == (0, 3, 8)


# ---------------------------------------------------------------------------------------------------------------------
# What only a damaged file has


@pytest.mark.parametrize("keepdims", [2, -1])
def test_a_keepdims_that_onnx_does_not_know_is_counted(keepdims):
    """onnxruntime takes no number but 1 for yes."""
    g = Graph(opset=17)
    x = g.input("x", F, SHAPE)
    mean = g.op("ReduceMean", x * x, axes=[-1], keepdims=keepdims)
    _, report = report_of(g, x / g.op("Sqrt", mean + 1e-3))
    assert not report.fused
    assert len(report.near_misses) == 1


def test_a_constant_whose_data_do_not_fit_its_type_is_none():
    g = Graph(opset=17)
    x = g.input("x", F, SHAPE)
    y = chain(g, x)["y"]
    g.initializers[-1].raw_data = bytes(8)  # of a float32 scalar: epsilon
    _, report = report_of(g, y)
    assert not report.fused
    assert len(report.near_misses) == 1
