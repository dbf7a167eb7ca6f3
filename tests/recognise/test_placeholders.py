"""Names of dimensions that a tool made up prove nothing: what fuses before shape inference fuses after it."""

import numpy as np
import onnx
import pytest

import rmsnorm_deploy
from tests.support.graphs import chain, same_results
from tests.support.spellings.graph import I64, F, Graph

NAMED, NAMELESS = ("b", "s", 8), (None, None, 8)


def ints(g, *values):
    return g.constant(list(values), I64)


def shape_of(g, x, **attributes):
    return g.op("Shape", x, dtype=I64, **attributes)


def over_root(g, x, mean):
    return x / g.op("Sqrt", mean + 1e-3)


def reduced(g, x):
    return g.reduce("ReduceMean", x * x, (-1,), keepdims=0)


def sliced_shape(g, x):
    leading = g.op("Slice", shape_of(g, x), ints(g, 0), ints(g, 2))
    return over_root(g, x, g.op("Reshape", reduced(g, x), g.op("Concat", leading, ints(g, 1), axis=0)))


def gathered_dims(g, x):
    dims = [g.along("Unsqueeze", g.op("Gather", shape_of(g, x), g.constant(i, I64)), [0]) for i in (0, 1)]
    return over_root(g, x, g.op("Reshape", reduced(g, x), g.op("Concat", *dims, ints(g, 1), axis=0)))


def one_left_open(g, x):
    first = g.op("Gather", shape_of(g, x), ints(g, 0))
    return over_root(g, x, g.op("Reshape", reduced(g, x), g.op("Concat", first, ints(g, -1, 1), axis=0)))


def copied_dims(g, x):
    return over_root(g, x, g.op("Reshape", reduced(g, x), ints(g, 0, 0, 1)))


def of_the_statistic(g, x):
    mean = reduced(g, x)
    return over_root(g, x, g.op("Reshape", mean, g.op("Concat", shape_of(g, mean), ints(g, 1), axis=0)))


def expanded(g, x):
    dims = [g.op("Gather", shape_of(g, x), ints(g, i)) for i in range(3)]
    length = g.op("Expand", g.reduce("ReduceL2", x, (-1,)), g.op("Concat", *dims, axis=0))
    return x / length


def behind_a_reshape(g, x):
    flat = g.op("Reshape", x, ints(g, -1, 8))
    back = g.op("Reshape", flat * 2.0, g.op("Concat", shape_of(g, x, start=0, end=2), ints(g, -1), axis=0))
    return chain(g, back, g.weight(np.linspace(1, 2, 8), F))["y"]


def residual(g, x):
    shape = shape_of(g, x)
    halves = [g.op("Reshape", g.op(name, g.op("Reshape", x, ints(g, -1, 8))), shape) for name in ("Tanh", "Sigmoid")]
    return chain(g, halves[0] + halves[1], g.weight(np.linspace(1, 2, 8), F))["y"]


def rows_in_front(g, x):
    """Of an unknown number of rows: every tool gives it another name."""
    rows = g.op("Compress", x, g.op("Equal", g.reduce("ReduceSum", x, (1, 2), 0), g.constant(0.0), dtype=9), axis=0)
    return chain(g, rows + g.op("Tanh", rows), g.weight(np.linspace(1, 2, 8), F))["y"]


BUILDS = [
    *(sliced_shape, gathered_dims, one_left_open, copied_dims, of_the_statistic, expanded),
    *(behind_a_reshape, residual, rows_in_front),
]


def symbolic(model):
    """The shape inference that comes with onnxruntime."""
    tool = pytest.importorskip("onnxruntime.tools.symbolic_shape_infer", reason="needs sympy")
    try:
        return tool.SymbolicShapeInference.infer_shapes(model, 2**31 - 1, True, False, 0)
    except TypeError:
        pytest.skip("it does not know ReduceL2")


def unchecked(model):
    """Without the arithmetic on shapes, so that most names are made up."""
    return onnx.shape_inference.infer_shapes(model)


TOOLS = {
    "onnx": unchecked,
    "onnx with data": lambda m: onnx.shape_inference.infer_shapes(m, data_prop=True),
    "onnx twice": lambda m: onnx.shape_inference.infer_shapes(unchecked(m), data_prop=True),
    "onnxruntime": symbolic,
    "onnxruntime after onnx": lambda m: symbolic(unchecked(m)),
}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("dims", [NAMED, NAMELESS], ids=["named", "nameless"])
@pytest.mark.parametrize("build", BUILDS, ids=lambda f: f.__name__)
def test_what_fuses_before_a_tool_fuses_after_it(build, dims, tool):
    g = Graph()
    if (build, dims) == (of_the_statistic, NAMELESS):
        pytest.skip("not fused before either")
    y = build(g, g.input("x", F, dims))
    g.output(y, "y", (None, None, 8))
    model = g.model()
    (before,) = rmsnorm_deploy.fuse(model, dry_run=True)[1].fused
    inferred = TOOLS[tool](model)
    fused, report = rmsnorm_deploy.fuse(inferred)
    (norm,) = report.fused
    # a tool may also know more: that a scale does not enlarge, that a residual has x's shape
    assert set(before.spelling.split(" > ")) <= set(norm.spelling.split(" > "))
    same_results(model, fused, {"x": np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)})


def test_two_names_of_inputs_are_two_dimensions():
    g = Graph()
    x = g.input("x", F, ("b", "s", 8))
    shape = g.op("Concat", g.op("Gather", shape_of(g, x), ints(g, 1, 0)), ints(g, 1), axis=0)
    g.output(over_root(g, x, g.op("Reshape", reduced(g, x), shape)), "y", (None, None, 8))
    report = rmsnorm_deploy.fuse(g.model(), dry_run=True)[1]
    assert not report.fused
    assert "another place" in report.near_misses[0].reason
