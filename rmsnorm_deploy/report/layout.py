"""Where the boxes and lines of a small graph go: in layers, from top to bottom. No box meets another or a line."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from rmsnorm_deploy.report.text import cells

CELL, LINE = 7.2, 17.0
"""Size of a character and of a line, in pixels, at 12 pixels and a monospaced font."""
PAD, GAP, RISE = 9.0, 18.0, 26.0
"""Inside a box, between two boxes of a layer, and between two layers."""
_SWEEPS = 6

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Box:
    """A node or a value.

    Attributes:
        lines: what it says.
        kind: "op", "new" (an operator that was written), "value", or "stop" (where recognition stopped).
    """

    lines: tuple[str, ...]
    kind: str = "op"


@dataclasses.dataclass(frozen=True)
class Picture:
    """A graph to be drawn.

    Attributes:
        boxes: in an order in which each stands behind those that lead to it.
        edges: pairs of places in ``boxes``.
        left_out: how many nodes were not drawn for want of room.
    """

    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int], ...]
    left_out: int = 0


@dataclasses.dataclass(frozen=True)
class Layout:
    """A graph with its places.

    Attributes:
        width: of everything, in pixels.
        height: of everything.
        places: of each box: left, top, width, height.
        lines: of each edge: its points; between two of them it may bend.
    """

    width: float
    height: float
    places: tuple[tuple[float, float, float, float], ...]
    lines: tuple[tuple[Point, ...], ...]


@dataclasses.dataclass
class _Item:
    """A box, or the place where a long edge passes a layer."""

    width: float
    height: float
    layer: int
    x: float = 0.0
    box: int = -1


def placed(picture: Picture) -> Layout:
    """The layout of a picture."""
    if not picture.boxes:
        return Layout(2 * PAD, 2 * PAD, (), ())
    sizes = [_size(box) for box in picture.boxes]
    edges = [(a, b) for a, b in dict.fromkeys(picture.edges) if a < b]
    layers = _layers(len(sizes), edges)
    items = [_Item(w, h, layers[i], box=i) for i, (w, h) in enumerate(sizes)]
    chains: list[list[int]] = []
    links: list[tuple[int, int]] = []
    for a, b in edges:
        chain = [a]
        for layer in range(layers[a] + 1, layers[b]):
            items.append(_Item(2.0, 0.0, layer))
            chain.append(len(items) - 1)
        chain.append(b)
        chains.append(chain)
        links += itertools.pairwise(chain)
    rows: list[list[int]] = [[] for _ in range(max(layers) + 1)]
    for i, item in enumerate(items):
        rows[item.layer].append(i)
    _order_and_place(rows, items, links)
    left = min(i.x - i.width / 2 for i in items) - PAD
    for item in items:
        item.x -= left
    tops, bottoms, y = [], [], PAD
    for row in rows:
        tops.append(y)
        bottoms.append(y + max(items[i].height for i in row))
        y = bottoms[-1] + RISE
    places = tuple((i.x - i.width / 2, tops[i.layer], i.width, i.height) for i in items[: len(sizes)])
    starts, ends = _ports(chains, items)
    lines = []
    for n, chain in enumerate(chains):
        first, last = items[chain[0]], items[chain[-1]]
        points = [(starts[n], tops[first.layer] + first.height), (starts[n], bottoms[first.layer])]
        for i in chain[1:-1]:
            points += [(items[i].x, tops[items[i].layer]), (items[i].x, bottoms[items[i].layer])]
        lines.append((*points, (ends[n], tops[last.layer])))
    width = max(i.x + i.width / 2 for i in items) + PAD
    return Layout(width, y - RISE + PAD, places, tuple(lines))


def _size(box: Box) -> tuple[float, float]:
    longest = max((cells(line) for line in box.lines), default=0)
    return longest * CELL + 2 * PAD, len(box.lines) * LINE + PAD


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Each box one below the lowest that leads to it; what nothing leads to goes right above its first reader."""
    layers = [0] * count
    for a, b in sorted(edges, key=lambda e: e[1]):
        layers[b] = max(layers[b], layers[a] + 1)
    led_to = {b for _, b in edges}
    for i in range(count):
        readers = [layers[b] for a, b in edges if a == i]
        if i not in led_to and readers:
            layers[i] = min(readers) - 1
    return layers


def _order_and_place(rows: list[list[int]], items: list[_Item], links: list[tuple[int, int]]) -> None:
    above: dict[int, list[int]] = {}
    below: dict[int, list[int]] = {}
    for a, b in links:
        above.setdefault(b, []).append(a)
        below.setdefault(a, []).append(b)
    for row in rows:
        _spread(row, items, [0.0] * len(row))
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else rows[::-1]:
            near = above if down else below
            wanted = {i: _middle([items[n].x for n in near.get(i, ())], items[i].x) for i in row}
            if sweep < _SWEEPS - 2:
                row.sort(key=lambda i: wanted[i])
            _spread(row, items, [wanted[i] for i in row])


def _middle(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _spread(row: list[int], items: list[_Item], wanted: list[float]) -> None:
    """Put the items of a row, in their order, near where they want to be, without one meeting another."""
    apart = [(items[a].width + items[b].width) / 2 + GAP for a, b in itertools.pairwise(row)]
    right, left = list(wanted), list(wanted)
    for i in range(1, len(row)):
        right[i] = max(right[i], right[i - 1] + apart[i - 1])
    for i in range(len(row) - 2, -1, -1):
        left[i] = min(left[i], left[i + 1] - apart[i])
    for i, item in enumerate(row):
        items[item].x = (left[i] + right[i]) / 2


def _ports(chains: list[list[int]], items: list[_Item]) -> tuple[list[float], list[float]]:
    """Where each edge leaves its first box and reaches its last one: side by side, in the order of the other ends."""
    found: list[list[float]] = []
    for end, other in ((0, 1), (-1, -2)):
        at = [0.0] * len(chains)
        for box in {chain[end] for chain in chains}:
            mine = sorted(
                (n for n, c in enumerate(chains) if c[end] == box), key=lambda n: (items[chains[n][other]].x, n)
            )
            step = min(items[box].width * 0.6 / max(len(mine) - 1, 1), 24.0)
            for k, n in enumerate(mine):
                at[n] = items[box].x + (k - (len(mine) - 1) / 2) * step
        found.append(at)
    return found[0], found[1]
