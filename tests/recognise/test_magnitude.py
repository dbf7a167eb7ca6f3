"""Signs in front of the square: |x|, -x and Casts that lose nothing have the same square as x."""

import numpy as np
import pytest

import rmsnorm_deploy
from tests.support.graphs import nodes_of
from tests.support.run import run
from tests.support.spellings.graph import NUMPY, B, D, F, Graph, H

SIZE = 32
SHAPE = ["n", SIZE]
NARROW = {"float16": H, "bfloat16": B}


def there_and_back(g, v, *types):
    for t in types:
        v = g.cast(v, t)
    return v


def normalised(g, numerator, squared, reduce="mean", epsilon=1e-3):
    """``numerator`` divided by the RMS of ``squared``, which is its square already where ``reduce`` is a mean."""
    if reduce == "l2":
        return numerator / (g.reduce("ReduceL2", squared, (-1,)) * SIZE**-0.5 + epsilon)
    if reduce == "sum square":
        return numerator / g.op("Sqrt", g.reduce("ReduceSumSquare", squared, (-1,)) / float(SIZE) + epsilon)
    if reduce == "einsum":
        total = g.op("Einsum", squared, squared, equation="...i,...i->...")
        return numerator / g.op("Sqrt", g.along("Unsqueeze", total, (-1,)) / float(SIZE) + epsilon)
    return numerator / g.op("Sqrt", g.reduce("ReduceMean", squared, (-1,)) + epsilon)


def truth_of(x, of=lambda v: v, outside=False):
    wide = x.astype(np.float64)
    mean = (wide**2).mean(-1, keepdims=True)
    return of(wide) / (np.sqrt(mean) + 1e-3 if outside else np.sqrt(mean + 1e-3))


def judged(g, y, dtype, truth):
    """The fused model of ``y`` and the report, compared with the truth of x."""
    g.output(y, "y", SHAPE)
    fused, report = rmsnorm_deploy.fuse(g.model())
    x = (np.random.default_rng(0).standard_normal((4, SIZE)) * np.array([1, 0.01, 30, 0])[:, None]).astype(NUMPY[dtype])
    for hook in (None, rmsnorm_deploy.register):
        for optimise in (False, True):
            got = run(fused, {"x": x}, optimise, hook)[0].astype(np.float64)
            np.testing.assert_allclose(got, truth(x), rtol=2e-2 if dtype in (H, B) else 1e-5, atol=1e-6)
    return fused, report


def absolute(g, v):
    return g.op("Abs", v)


def negative(g, v):
    return g.op("Neg", v)


# (graph, x in float32, its own type) -> what is squared
SIGNS = {
    "abs": lambda g, f, t: absolute(g, f),
    "neg": lambda g, f, t: negative(g, f),
    "neg of abs of neg": lambda g, f, t: negative(g, absolute(g, negative(g, f))),
    "abs, then casts": lambda g, f, t: there_and_back(g, absolute(g, f), t, F),
    "casts, then abs": lambda g, f, t: absolute(g, there_and_back(g, f, t, F)),
    "casts around abs": lambda g, f, t: there_and_back(g, absolute(g, there_and_back(g, f, t, F)), t, F),
    "abs in double": lambda g, f, t: there_and_back(g, absolute(g, g.cast(f, D)), F, t, F),
    "casts alone": lambda g, f, t: there_and_back(g, f, t, D, t, F),
    "noise": lambda g, f, t: g.op("Identity", there_and_back(g, g.op("Identity", absolute(g, f)) * 1.0, t, F)),
}
SQUARES = {
    "pow": lambda g, v: (v**2.0, "mean"),
    "mul": lambda g, v: (v * v, "mean"),
    "abs of it": lambda g, v: (absolute(g, v * v), "mean"),
    "casts of it": lambda g, v: (there_and_back(g, absolute(g, v * v), D, F), "mean"),
    "l2": lambda g, v: (v, "l2"),
    "sum square": lambda g, v: (v, "sum square"),
    "einsum": lambda g, v: (v, "einsum"),
}


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("name", NARROW)
def test_a_square_does_not_see_a_sign(name, sign, square):
    dtype, g = NARROW[name], Graph()
    f = g.cast(g.input("x", dtype, SHAPE), F)
    y = g.cast(normalised(g, f, *SQUARES[square](g, SIGNS[sign](g, f, dtype))), dtype)
    fused, report = judged(g, y, dtype, lambda x: truth_of(x, outside=square == "l2"))
    assert [(f.x, f.type, f.rounding) for f in report.fused] == [("x", name.upper(), "same")]
    assert nodes_of(fused, "") == []


def test_two_absolute_values_of_one_value_are_a_square_and_one_is_none():
    for right, fuses in ((absolute, True), (lambda g, v: v, False), (negative, False)):
        g = Graph()
        x = g.input("x", F, SHAPE)
        g.output(normalised(g, x, absolute(g, x) * right(g, x)), "y", SHAPE)
        assert bool(rmsnorm_deploy.fuse(g.model())[1].fused) == fuses
    g = Graph()
    x = g.input("x", F, SHAPE)
    g.output(normalised(g, x, x * negative(g, x)), "y", SHAPE)
    assert not rmsnorm_deploy.fuse(g.model())[1].fused


@pytest.mark.parametrize(
    ("ops", "numbers"), [(["Abs"], np.abs), (["Neg"], np.negative), (["Abs", "Neg"], lambda v: -np.abs(v))]
)
@pytest.mark.parametrize("squared_too", [False, True])
def test_what_is_normalised_keeps_its_sign(ops, numbers, squared_too):
    g = Graph()
    signed = x = g.input("x", F, SHAPE)
    for op in ops:
        signed = g.op(op, signed)
    squared = signed if squared_too else x
    w = np.linspace(-1, 2, SIZE).astype(np.float32)
    y = normalised(g, signed, squared * squared) * g.weight(w, F)
    fused, report = judged(g, y, F, lambda x: truth_of(x, numbers) * w)
    assert len(report.fused) == 1
    assert nodes_of(fused, "") == ops


@pytest.mark.parametrize("scaled", ["scale first", "factor first", "scale with the inverse"])
def test_a_signed_value_meets_its_scale_first(scaled):
    g = Graph()
    x = g.input("x", F, SHAPE)
    signed, w = absolute(g, x), np.linspace(-1, 2, SIZE).astype(np.float32)
    if scaled == "scale first":
        y, factor = normalised(g, signed * g.weight(w, F), x * x), w
    elif scaled == "factor first":
        y, factor = normalised(g, signed * -2.0, x * x), -2.0
    else:
        y, factor = signed * (g.weight(w, F) * (1.0 / g.op("Sqrt", g.reduce("ReduceMean", x * x, (-1,)) + 1e-3))), w
    _, report = judged(g, y, F, lambda x: truth_of(x, np.abs) * factor)
    assert len(report.fused) == 1


def test_an_absolute_value_divided_by_its_norm_keeps_its_sign():
    g = Graph()
    x = g.input("x", F, SHAPE)
    y = g.op("LpNormalization", absolute(g, x), axis=-1, p=2) * SIZE**0.5
    with np.errstate(all="ignore"):
        _, report = judged(
            g,
            y,
            F,
            lambda x: np.nan_to_num(np.abs(x) / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True))),
        )
    assert report.fused[0].x.startswith("abs")


@pytest.mark.parametrize("first", [F, H, B])
def test_a_cast_that_loses_something_is_not_looked_through(first):
    lossy = {F: H, H: B, B: H}[first]
    g = Graph()
    f = g.cast(g.input("x", first, SHAPE), F) if first != F else g.input("x", F, SHAPE)
    squared = there_and_back(g, absolute(g, f), lossy, F)
    g.output(normalised(g, f, squared * squared), "y", SHAPE)
    assert not rmsnorm_deploy.fuse(g.model())[1].fused


def test_the_absolute_value_of_the_first_features_is_a_part_of_x():
    g = Graph()
    x = g.input("x", F, SHAPE)
    part = absolute(g, g.op("Slice", x, *(g.constant([v], 7) for v in (0, 8, -1))))
    y = normalised(g, x, part * part)

    def truth(x):
        wide = x.astype(np.float64)
        return wide / np.sqrt((wide[:, :8] ** 2).mean(-1, keepdims=True) + 1e-3)

    _, report = judged(g, y, F, truth)
    assert report.fused[0].attributes["partial_size"] == [8]
