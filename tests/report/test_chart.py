"""Bars of one scale, from zero, with room for what most runs took."""

import re

import pytest

from rmsnorm_deploy.check.measured import Comparison
from rmsnorm_deploy.check.timing import Timing
from rmsnorm_deploy.report.chart import chart, duration


def bars(before, after):
    """Widths of the two bars, and the ends of the lines over them; None for an open end."""
    sides = (Timing("original", *before, 10), Timing("fused", *after, 10))
    text = chart(Comparison("model", "x[1]", *sides, "onnxruntime", 1.0, 1.0, 1.0), "c")
    widths = [float(w) for w in re.findall(r'<rect[^>]* width="([\d.]+)"', text)]
    paths = re.findall(r'class="spread" d="([^"]*)"', text)
    return widths, [float(re.search(r"H([\d.]+)", p)[1]) for p in paths], [p.count("v8") == 2 for p in paths]


def test_bars_have_one_scale():
    widths, ends, closed = bars((100.0, 90.0, 200.0), (50.0, 45.0, 60.0))
    assert widths[0] == pytest.approx(2 * widths[1], rel=1e-2)
    assert ends[0] == pytest.approx(339, abs=1)
    assert closed == [True, True]


def test_an_interrupted_run_leaves_the_bars_their_room():
    widths, ends, closed = bars((100.0, 90.0, 30_000.0), (50.0, 45.0, 60.0))
    assert widths[0] > 100
    assert max(ends) <= 340
    assert closed == [False, True]


def test_nothing_measured_is_no_division_by_zero():
    assert bars((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))[0] == [1.0, 1.0]


def test_times_have_a_unit_that_fits():
    assert [duration(t) for t in (0.5, 12.34, 4321.0, 7_654_321.0)] == [
        "0.5 \u00b5s",
        "12.3 \u00b5s",
        "4.32 ms",
        "7.65 s",
    ]
