"""The charts of the pages: bars of the numbers in a table of the same page.

``python -m tests.docs.reference`` draws them.
"""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
WIDTH, LABELS, BAR, GAP, TOP = 820, 370, 16, 14, 34
STYLE = (
    "text { font: 13px system-ui, sans-serif; fill: #24292f } .one { stroke: #8c959f; stroke-dasharray: 3 3 }"
    " .s0 { fill: #3f51b5 } .s1 { fill: #26a69a }"
    " @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .s0 { fill: #8c9eff } }"
)


class Chart(NamedTuple):
    """A table as bars.

    ``head`` is how the table's first line begins; ``columns`` are those with numbers to draw, with their names.
    """

    page: str
    head: str
    columns: dict[int, str]
    image: str


CHARTS = (
    Chart(
        "docs/explanation/speed.md",
        "| ours | onnxruntime's |",
        {2: "float32", 4: "float16"},
        "docs/images/norm_onnxruntime.svg",
    ),
    Chart("docs/how-to/tvm.md", "| ours | the other |", {2: "float32", 3: "float16"}, "docs/images/norm_tvm.svg"),
)


def rows(chart):
    """Label and numbers of each row of the chart's table; an empty first cell repeats the one above."""
    lines = (ROOT / chart.page).read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(chart.head))
    first = ""
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return
        cells = [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
        first = cells[0] or first
        yield f"{first} : {cells[1]}", [float(cells[i]) for i in chart.columns]


def drawn(chart):
    """The chart as SVG. Every bar says its number; the dashed line is a ratio of 1."""
    table = list(rows(chart))
    most = max(max(numbers) for _, numbers in table)
    scale = (WIDTH - LABELS - 60) / most
    parts, y = [], TOP
    for i, name in enumerate(chart.columns.values()):
        parts.append(f'<rect class="s{i}" x="{LABELS + 90 * i}" y="8" width="12" height="12"/>')
        parts.append(f'<text x="{LABELS + 90 * i + 18}" y="19">{name}</text>')
    for label, numbers in table:
        middle = y + BAR * len(numbers) / 2 + 5
        parts.append(f'<text x="{LABELS - 10}" y="{middle:g}" text-anchor="end">{_fitting(label)}</text>')
        for i, number in enumerate(numbers):
            width = number * scale
            parts.append(f'<rect class="s{i}" x="{LABELS}" y="{y}" width="{width:.1f}" height="{BAR - 2}"/>')
            parts.append(f'<text x="{LABELS + width + 6:.1f}" y="{y + 12}">{number:g}</text>')
            y += BAR
        y += GAP
    one = f"{LABELS + scale:.1f}"
    parts.append(f'<line class="one" x1="{one}" x2="{one}" y1="{TOP - 6}" y2="{y - GAP + 4}"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" role="img">'
        f"<style>{STYLE}</style>{''.join(parts)}</svg>\n"
    )


def _fitting(label):
    """The label in the room that it has: onnxruntime's names are long."""
    return label.replace(" : ", " / ").replace("SimplifiedLayerNormalization", "SimplifiedLayerNorm.")
