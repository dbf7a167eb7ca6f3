"""The plot of what :mod:`benchmarks.paper` measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_MISSING = "the plot needs matplotlib: pip install '.[plot]'"


def draw(records: Sequence[dict[str, Any]], paper: tuple[float, float], target: Path) -> None:
    """Write a PNG: time saved over LayerNorm, the norm alone by its length on the left, models on the right.

    Args:
        records: of the benchmark.
        paper: the range that the paper reports, as a band.
        target: the file.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SystemExit(_MISSING) from error
    figure = Figure(figsize=(10, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    alone = [r for r in records if r["what"] == "norm"]
    for form in dict.fromkeys(r["form"] for r in alone):
        for rows, style in zip(sorted({r["rows"] for r in alone}), ("--", "-"), strict=False):
            points = sorted((r["size"], r["saved"]) for r in alone if (r["form"], r["rows"]) == (form, rows))
            label = f"{form}, {rows} row{'s' if rows > 1 else ''}"
            left.plot(*zip(*points, strict=True), style, marker="o", markersize=3, label=label)
    left.set_xscale("log", base=2)
    left.set_xlabel("features")
    left.set_ylabel("time saved over LayerNorm")
    left.set_title("the norm alone")
    left.legend(fontsize=7)
    whole = [r for r in records if r["what"] == "model"]
    right.bar(range(len(whole)), [r["saved"] for r in whole])
    right.set_xticks(range(len(whole)), [r["case"] for r in whole], rotation=30, ha="right", fontsize=7)
    right.set_title("converted models")
    for axes in (left, right):
        axes.axhspan(*paper, alpha=0.15, color="gray")
        axes.axhline(0, linewidth=0.5, color="black")
    right.annotate("the paper, 7 % to 64 %", (0.02, paper[1]), xycoords=("axes fraction", "data"), va="top", fontsize=7)
    left.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    figure.savefig(target, metadata={"Software": ""})
