"""Sizes and axes that the graph computes: a sum divided by a length from Shape, axes from a Range up to the rank."""

import functools

import numpy as np
import pytest
from onnx import helper

import rmsnorm_deploy
from rmsnorm_deploy.op import DOMAIN
from tests.support.run import run
from tests.support.spellings.graph import I64, F, Graph

SHAPE = (2, 3, 8)
SHAPES = {"static": SHAPE, "named": ("b", "s", "h"), "named but the last": ("b", "s", 8), "nameless": (None,) * 3}
EPSILON = 1e-3


def ints(g, *values):
    return g.constant(list(values), I64)


def index(g, value):
    return g.constant(value, I64)


def shape_of(g, x, **attributes):
    return g.op("Shape", x, dtype=I64, **attributes)


def split_shape(g, x):
    names = [g.name("dim") for _ in range(3)]
    shape = shape_of(g, x)
    g.nodes.append(helper.make_node("Split", [shape.name, ints(g, 1, 1, 1).name], names, axis=0))
    return type(x)(g, names[2], I64)


def size_over_rest(g, x):
    rest = g.op("Slice", shape_of(g, x), ints(g, 0), ints(g, 2))
    return g.op("Div", g.op("Size", x, dtype=I64), g.op("ReduceProd", rest, keepdims=0))


# the number of features, as graphs compute it
COUNTS = {
    "gather": lambda g, x: g.op("Gather", shape_of(g, x), index(g, -1)),
    "gather counted from the front": lambda g, x: g.op("Gather", shape_of(g, x), index(g, 2), axis=0),
    "gather of one element": lambda g, x: g.op("Gather", shape_of(g, x), ints(g, 2)),
    "gather and squeeze": lambda g, x: g.along("Squeeze", g.op("Gather", shape_of(g, x), ints(g, -1)), [0]),
    "slice": lambda g, x: g.op("Slice", shape_of(g, x), ints(g, 2), ints(g, 3)),
    "slice to the end": lambda g, x: g.op("Slice", shape_of(g, x), ints(g, -1), ints(g, 2**63 - 1), ints(g, 0)),
    "shape with a start": lambda g, x: shape_of(g, x, start=2),
    "split": split_shape,
    "product": lambda g, x: g.op("ReduceProd", shape_of(g, x, start=-1), keepdims=0),
    "size over the rest": size_over_rest,
    "concat and gather": lambda g, x: g.op(
        "Gather", g.op("Concat", shape_of(g, x), ints(g, 7), axis=0), index(g, 2), axis=0
    ),
    "of the square": lambda g, x: g.op("Gather", shape_of(g, x * x), index(g, -1)),
    "of a cast": lambda g, x: g.op("Gather", shape_of(g, g.cast(x, 11)), index(g, -1)),
    "twice and half": lambda g, x: g.op("Gather", shape_of(g, x), index(g, -1)) * index(g, 2) / index(g, 2),
    "reshaped": lambda g, x: g.op("Reshape", g.op("Gather", shape_of(g, x), index(g, -1)), ints(g, 1)),
    "of sizes with -1 left out": lambda g, x: g.op(
        "Gather", where_minus_one(g, concat(g, ints(g, -1), shape_of(g, x, start=1)), True), index(g, -1)
    ),
    "rank minus one": lambda g, x: g.op(
        "Gather", shape_of(g, x), g.op("Size", shape_of(g, x), dtype=I64) - index(g, 1)
    ),
}


def total(g, x):
    return g.reduce("ReduceSum", x * x, (-1,))


def einsum(g, x):
    return g.along("Unsqueeze", g.op("Einsum", x, x, equation="abi,abi->ab"), [-1])


def norm(g, x, mean):
    return x / g.op("Sqrt", mean + EPSILON)


def length(g, x):
    return g.reduce("ReduceL2", x, (-1,))


def root(g, n):
    return g.op("Sqrt", n)


# how a norm uses that number, and whether it has an epsilon
USES = {
    "sum / n": (lambda g, x, n: norm(g, x, total(g, x) / n), True),
    "einsum / n": (lambda g, x, n: norm(g, x, einsum(g, x) / n), True),
    "sum of squares / n": (lambda g, x, n: norm(g, x, g.reduce("ReduceSumSquare", x, (-1,)) / n), True),
    "sum * (1 / n)": (lambda g, x, n: norm(g, x, total(g, x) * (1.0 / n)), True),
    "reciprocal * sum": (lambda g, x, n: norm(g, x, g.op("Reciprocal", n) * total(g, x)), True),
    "sum * n ** -1": (lambda g, x, n: norm(g, x, total(g, x) * n**-1.0), True),
    "x / (length / root)": (lambda g, x, n: x / (length(g, x) / root(g, n)), False),
    "x / (length * n ** -0.5)": (lambda g, x, n: x / (length(g, x) * n**-0.5), False),
    "x / length * root": (lambda g, x, n: x / length(g, x) * root(g, n), False),
    "root * (x / length)": (lambda g, x, n: root(g, n) * (x / length(g, x)), False),
    "x * root / length": (lambda g, x, n: x * root(g, n) / length(g, x), False),
    "x / length / (1 / root)": (lambda g, x, n: x / length(g, x) / g.op("Reciprocal", root(g, n)), False),
}


def judge(count, use, dims, wanted=1):
    g = Graph()
    x = g.input("x", F, dims)
    n = g.cast(COUNTS[count](g, x), F)
    build, has_epsilon = USES[use]
    g.output(build(g, x, n), "y", dims)
    model = g.model()
    fused, report = rmsnorm_deploy.fuse(model)
    assert len(report.fused) == wanted, report.missed
    data = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    truth = data / np.sqrt((data.astype(np.float64) ** 2).mean(-1, keepdims=True) + EPSILON * has_epsilon)
    for hook in (None, rmsnorm_deploy.register):
        np.testing.assert_allclose(run(fused, {"x": data}, False, hook)[0], truth, rtol=2e-6)
    return fused


@pytest.mark.parametrize("dims", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("count", COUNTS)
def test_a_sum_is_divided_by_a_size_from_the_graph(count, dims):
    judge(count, "sum / n", dims)


@pytest.mark.parametrize("dims", [SHAPES["static"], SHAPES["named"]], ids=["static", "named"])
@pytest.mark.parametrize("use", USES)
def test_a_size_from_the_graph_is_used_in_any_order(use, dims):
    judge("gather", use, dims)


@pytest.mark.parametrize("dims", [SHAPES["static"], SHAPES["named"], SHAPES["nameless"]], ids=["static", "named", "no"])
def test_a_size_of_two_dimensions(dims):
    g = Graph()
    x = g.input("x", F, dims)
    n = g.cast(g.op("ReduceProd", shape_of(g, x, start=1), keepdims=0), F)
    y = norm(g, x, g.reduce("ReduceSum", x * x, (-2, -1)) / n)
    g.output(y, "y", dims)
    fused, report = rmsnorm_deploy.fuse(g.model())
    assert len(report.fused) == 1, report.missed
    data = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    truth = data / np.sqrt((data.astype(np.float64) ** 2).mean((1, 2), keepdims=True) + EPSILON)
    np.testing.assert_allclose(run(fused, {"x": data}, False)[0], truth, rtol=2e-6)


def gathered(g, x, axis):
    return g.op("Gather", shape_of(g, x), ints(g, axis), axis=0)


def where_minus_one(g, sizes, kept, number=-1):
    """What TorchScript's exporter makes of the sizes of an expand: 1 where one is -1."""
    fill = helper.make_tensor("", I64, [1], [1])
    ones = g.op("ConstantOfShape", ints(g, 3), dtype=I64, value=fill)
    stays = g.op("Equal", sizes, ones * index(g, number), dtype=I64)
    return g.op("Where", stays, *((ones, sizes) if kept else (sizes, ones)), dtype=I64)


def concat(g, *sizes):
    return g.op("Concat", *sizes, axis=0)


# how the statistic is made as long as x; whether that is proven to change nothing
LENGTHENED = {
    "expand(-1, -1, n)": (
        lambda g, x, v: g.op("Expand", v, where_minus_one(g, concat(g, ints(g, -1, -1), gathered(g, x, 2)), True)),
        True,
    ),
    "expand(b, t, n)": (lambda g, x, v: g.op("Expand", v, where_minus_one(g, shape_of(g, x), True)), True),
    "repeat(1, 1, n)": (lambda g, x, v: g.op("Tile", v, concat(g, ints(g, 1, 1), gathered(g, x, 2))), True),
    "repeat of it expanded": (
        lambda g, x, v: g.op("Tile", g.op("Expand", v, ints(g, 1, 1, 1)), concat(g, ints(g, 1, 1), gathered(g, x, -1))),
        True,
    ),
    "repeat(1, t, 1)": (lambda g, x, v: g.op("Tile", v, concat(g, ints(g, 1), gathered(g, x, 1), ints(g, 1))), False),
    "repeat(1, 1, t)": (lambda g, x, v: g.op("Tile", v, concat(g, ints(g, 1, 1), gathered(g, x, 1))), False),
    "repeat(1, 1, 1, n)": (lambda g, x, v: g.op("Tile", v, concat(g, ints(g, 1, 1, 1), gathered(g, x, 2))), False),
    "sizes that may be 5": (lambda g, x, v: g.op("Expand", v, where_minus_one(g, shape_of(g, x), True, 5)), False),
    "the other branch": (
        lambda g, x, v: g.op(
            "Expand", v, where_minus_one(g, concat(g, ints(g, -1), gathered(g, x, 0), ints(g, 8)), False)
        ),
        False,
    ),
}


@pytest.mark.parametrize("name", LENGTHENED)
@pytest.mark.parametrize("dims", [SHAPES["named"], SHAPES["nameless"]], ids=["named", "nameless"])
def test_a_statistic_that_is_made_as_long_as_x(name, dims):
    lengthened, is_proven = LENGTHENED[name]
    g = Graph()
    x = g.input("x", F, dims)
    v = lengthened(g, x, g.op("ReduceMean", x * x, ints(g, -1)))
    g.output(norm(g, x, v), "y", (None,) * (4 if "1, 1, 1, n" in name else 3))
    fused, report = rmsnorm_deploy.fuse(g.model())
    assert len(report.fused) == is_proven, report.missed
    assert len(report.near_misses) == (not is_proven)
    if not is_proven:
        return
    data = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    data[0, 0], data[0, 1], data[1, 0] = 0.0, data[0, 1] * 1e-20, data[1, 0] * 1e18
    data[1, 1, 3], data[1, 2, 3] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        truth = data / np.sqrt((data.astype(np.float64) ** 2).mean(-1, keepdims=True) + EPSILON)
    for hook in (None, rmsnorm_deploy.register):
        np.testing.assert_allclose(run(fused, {"x": data}, False, hook)[0], truth, rtol=2e-6)


def test_another_dimension_is_not_the_size():
    """Of equal length in this run, but not by the model."""
    g = Graph()
    x = g.input("x", F, ("b", "s", "h"))
    n = g.cast(g.op("Gather", shape_of(g, x), index(g, 1)), F)
    g.output(norm(g, x, total(g, x) / n), "y", ("b", "s", "h"))
    _fused, report = rmsnorm_deploy.fuse(g.model())
    assert not report.fused
    assert len(report.near_misses) == 1


def test_half_the_size_is_another_factor():
    """The integer division rounds, so that the factor is not known."""
    g = Graph()
    x = g.input("x", F, ("b", "s", "h"))
    n = g.cast(g.op("Gather", shape_of(g, x), index(g, 2)) / index(g, 2), F)
    g.output(norm(g, x, total(g, x) / n), "y", ("b", "s", "h"))
    assert not rmsnorm_deploy.fuse(g.model(), dry_run=True)[1].fused


def test_a_sum_over_another_value_of_that_size_is_no_norm_of_it():
    g = Graph()
    x, z = g.input("x", F, (None, 8)), g.input("z", F, (None, 8))
    n = g.cast(g.op("Gather", shape_of(g, z), index(g, 0)), F)
    g.output(x / g.op("Sqrt", g.reduce("ReduceSum", x * x, (0,)) / n + EPSILON), "y", (None, 8))
    assert not rmsnorm_deploy.fuse(g.model(), dry_run=True)[1].fused


# ---------------------------------------------------------------------------------------------------------------------
# The functions of the standard, written out


@functools.cache
def node_tests():
    from onnx.backend.test.case import node
    from onnx.backend.test.case.node import layernormalization, rmsnormalization  # noqa: F401, each adds its cases

    # The function that collects all operators' cases makes thousands of them first.
    return {case.name: case for case in node._NodeTestCases if "expanded" in case.name}


EXPANDED = [
    *(f"{r}d_axis{a}" for r in (2, 3, 4) for a in range(r)),
    *(f"{r}d_axis_negative_{a}" for r in (2, 3, 4) for a in range(1, r + 1)),
    "default_axis",
]
NAMES = [f"test_rms_normalization_{n}{'_epsilon' if n.startswith('3d') else ''}_expanded" for n in EXPANDED]


@pytest.mark.parametrize("name", NAMES)
def test_a_norm_that_the_standard_writes_out(name):
    case = node_tests()[name]
    fused, report = rmsnorm_deploy.fuse(case.model)
    assert [n.op_type for n in fused.graph.node if n.domain == DOMAIN] == ["RMSNorm"], report.missed
    for inputs, outputs in case.data_sets:
        feeds = {i.name: np.asarray(array) for i, array in zip(case.model.graph.input, inputs, strict=True)}
        for hook in (None, rmsnorm_deploy.register):
            np.testing.assert_allclose(run(fused, feeds, True, hook)[0], outputs[0], rtol=1e-5, atol=1e-6)


def test_all_norms_that_the_standard_writes_out_are_named_here():
    assert {n for n in node_tests() if n.startswith("test_rms_norm")} == set(NAMES)


@pytest.mark.parametrize(
    "name", ["test_layer_normalization_3d_axis1_epsilon_expanded", "test_layer_normalization_2d_axis1_expanded_ver18"]
)
def test_a_layer_norm_that_the_standard_writes_out_is_none(name):
    report = rmsnorm_deploy.fuse(node_tests()[name].model, dry_run=True)[1]
    assert not report.fused
    assert not report.near_misses


@pytest.mark.parametrize("rank_from", ["size", "shape of shape"])
def test_axes_from_a_range_where_the_sizes_are_not_known(rank_from):
    g = Graph()
    x = g.input("x", F, ("b", None, "h"))
    shape = shape_of(g, x)
    rank = g.op("Size", shape) if rank_from == "size" else g.along("Squeeze", g.op("Shape", shape, dtype=I64), [0])
    axes = g.op("Range", rank - index(g, 1), rank, index(g, 1))
    mean = g.op("ReduceMean", x * x, axes)
    g.output(norm(g, x, mean), "y", ("b", None, "h"))
    _, report = rmsnorm_deploy.fuse(g.model())
    assert [n.axes for n in report.fused] == [(-1,)], report.missed


def test_a_range_that_nothing_could_hold_is_not_computed():
    g = Graph()
    x = g.input("x", F, SHAPE)
    axes = g.op("Range", index(g, 0), index(g, 2**62), index(g, 1))
    g.output(norm(g, x, g.op("ReduceMean", x * x, axes)), "y", SHAPE)
    report = rmsnorm_deploy.fuse(g.model(), dry_run=True)[1]
    assert not report.fused
    assert len(report.near_misses) == 1
