"""Drawings of small graphs, whatever their edges: boxes stand apart, lines go around them, texts have room."""

import itertools
import random

import pytest

from rmsnorm_deploy.report.layout import CELL, Box, Picture, placed


def some_graph(seed):
    rng = random.Random(seed)
    count = rng.randint(1, 24)
    boxes = tuple(Box(("x" * rng.randint(0, 34),) * rng.randint(1, 9)) for _ in range(count))
    edges = [(rng.randrange(count), rng.randrange(count)) for _ in range(rng.randint(0, 2 * count))]
    return Picture(boxes, tuple(edges))


@pytest.mark.parametrize("seed", range(40))
def test_boxes_stand_apart_and_lines_go_around_them(seed):
    picture = some_graph(seed)
    layout = placed(picture)
    for box, (x, y, w, h) in zip(picture.boxes, layout.places, strict=True):
        assert x >= 0
        assert y >= 0
        assert x + w <= layout.width
        assert y + h <= layout.height
        assert w > max(map(len, box.lines)) * CELL
    for a, b in itertools.combinations(layout.places, 2):
        assert a[0] + a[2] < b[0] or b[0] + b[2] < a[0] or a[1] + a[3] < b[1] or b[1] + b[3] < a[1]
    assert len(layout.lines) == len({(a, b) for a, b in picture.edges if a < b})
    for points in layout.lines:
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            assert y1 >= y0
            # a bend stays between its ends: straight down, or between two layers, where no box is
            for x, y, w, h in layout.places:
                if x0 == x1:
                    assert not (x < x0 < x + w and y0 < y + h / 2 < y1)
                else:
                    assert y1 <= y or y0 >= y + h


def test_it_is_the_same_each_time():
    assert placed(some_graph(3)) == placed(some_graph(3))


def test_nothing_has_a_layout_too():
    assert placed(Picture((), ())).places == ()
