"""Variances are neither fused nor counted as norms that should have been; what only looks like one is."""

import numpy as np
import pytest

import rmsnorm_deploy
from tests.support.graphs import chain, nodes_of
from tests.support.spellings.graph import I64, F, Graph

SHAPE = (2, 3, 8)


def mean(g, x, axes=(-1,)):
    return g.reduce("ReduceMean", x, axes)


def after(g, x, centred, measured):
    """The centred value over the root of ``measured``, scaled and moved."""
    w, b = (g.weight(np.linspace(1, 2, 8), F) for _ in range(2))
    return centred / g.op("Sqrt", measured + 1e-5) * w + b


def torchscript(g, x):
    c = x - mean(g, x)
    return after(g, x, c, mean(g, c**2.0))


def subtracted_twice(g, x):
    m = mean(g, x)
    return after(g, x, x - m, mean(g, (x - m) ** 2.0))


def of_two_means(g, x):
    c = x - mean(g, x)
    return after(g, x, c, mean(g, (x - mean(g, x)) ** 2.0))


def sum_over_n(g, x):
    c = x - g.reduce("ReduceSum", x, (-1,)) / 8.0
    return after(g, x, c, g.reduce("ReduceSum", c * c, (-1,)) / 8.0)


def unbiased(g, x):
    c = x - mean(g, x)
    return after(g, x, c, g.reduce("ReduceSum", c * c, (-1,)) / 7.0)


def plus_negative(g, x):
    c = x + g.op("Neg", mean(g, x))
    return after(g, x, c, mean(g, c * c))


def difference_of_squares(g, x):
    m = mean(g, x)
    return after(g, x, x - m, mean(g, x * x) - m * m)


def difference_of_powers(g, x):
    m = mean(g, x)
    return after(g, x, x - m, mean(g, x**2.0) - m**2.0)


def kept_away(g, x):
    m = g.along("Unsqueeze", g.reduce("ReduceMean", x, (-1,), keepdims=0), [-1])
    c = x - m
    return after(g, x, c, mean(g, c * c))


def group(g, x):
    h = g.op("Reshape", x, g.constant([2, 3, 2, 4], I64))
    c = h - mean(g, h)
    return g.op("Reshape", c / g.op("Sqrt", mean(g, c * c) + 1e-5), g.constant([2, 3, 8], I64))


def batch(g, x):
    """Over dimensions that are not next to each other."""
    c = x - mean(g, x, (0, 2))
    return c / g.op("Sqrt", mean(g, c * c, (0, 2)) + 1e-5)


def deviation(g, x):
    c = x - mean(g, x)
    return x * g.op("Sqrt", mean(g, c * c))


VARIANCES = [
    *(torchscript, subtracted_twice, of_two_means, sum_over_n, unbiased, plus_negative, difference_of_squares),
    *(difference_of_powers, kept_away, group, batch, deviation),
]


@pytest.mark.parametrize("build", VARIANCES, ids=lambda f: f.__name__)
def test_a_variance_is_no_near_miss(build):
    g = Graph()
    x = g.input("x", F, SHAPE)
    y = chain(g, build(g, x), g.weight(np.ones(8), F))["y"]
    g.output(y, "y", SHAPE)
    fused, report = rmsnorm_deploy.fuse(g.model())
    assert nodes_of(fused) == ["RMSNorm"]
    assert report.missed
    assert not report.near_misses
    assert report.summary() == "fused 1 of 1"


def other_mean(g, x):
    """The mean of other rows is subtracted: a norm of a difference."""
    c = x - mean(g, x, (1,))
    return c * g.op("Sqrt", mean(g, c * c) + 1e-5)


def mean_of_another(g, x):
    z = g.input("z", F, SHAPE)
    c = x - mean(g, z)
    return c * g.op("Sqrt", mean(g, c * c) + 1e-5)


def other_square(g, x):
    m = mean(g, g.input("z", F, SHAPE))
    return x / g.op("Sqrt", mean(g, x * x) - m * m)


@pytest.mark.parametrize("build", [other_mean, mean_of_another, other_square], ids=lambda f: f.__name__)
def test_what_only_looks_like_a_variance_is_a_near_miss(build):
    g = Graph()
    x = g.input("x", F, SHAPE)
    g.output(build(g, x), "y", SHAPE)
    report = rmsnorm_deploy.fuse(g.model(), dry_run=True)[1]
    assert not report.fused
    assert len(report.near_misses) == 1
