"""A small graph as SVG, in the colours of the page that it stands in."""

from __future__ import annotations

from rmsnorm_deploy.report.layout import CELL, LINE, PAD, Picture, placed
from rmsnorm_deploy.report.text import cells, escaped


def drawn(picture: Picture, name: str, title: str) -> str:
    """The SVG of a picture.

    Args:
        picture: what is drawn.
        name: begins every id in it; no other drawing of the page has it.
        title: what a reader hears who does not see it; escaped here.
    """
    layout = placed(picture)
    width, height = f"{layout.width:.0f}", f"{layout.height:.0f}"
    said = "; ".join(" ".join(box.lines) for box in picture.boxes)
    parts = [
        f'<svg class="graph" role="img" aria-labelledby="{name}-t {name}-d" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">',
        f'<title id="{name}-t">{escaped(title)}</title>',
        f'<desc id="{name}-d">From top to bottom: {escaped(said, 2000)}</desc>',
        f'<defs><marker id="{name}-a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>',
    ]
    for points in layout.lines:
        (x, y), *rest = points
        path = [f"M{x:.1f} {y:.1f}"]
        for a, b in rest:
            middle = (y + b) / 2
            path.append(f"C{x:.1f} {middle:.1f} {a:.1f} {middle:.1f} {a:.1f} {b:.1f}" if a != x else f"V{b:.1f}")
            x, y = a, b
        parts.append(f'<path class="edge" d="{"".join(path)}" marker-end="url(#{name}-a)"/>')
    for box, (x, y, w, h) in zip(picture.boxes, layout.places, strict=True):
        round_ = h / 2 if box.kind == "value" and len(box.lines) == 1 else 5
        parts.append(
            f'<g class="box {box.kind}"><rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" '
            f'rx="{round_:.0f}"/>'
        )
        for i, line in enumerate(box.lines):
            # whatever font there is, the line stays in its box
            length = f' textLength="{cells(line) * CELL:.1f}" lengthAdjust="spacingAndGlyphs"' if line else ""
            style = ' class="head"' if i == 0 and box.kind != "value" else ""
            at = f'x="{x + w / 2:.1f}" y="{y + PAD / 2 + (i + 0.74) * LINE:.1f}"'
            parts.append(f"<text {at}{style}{length}>{escaped(line)}</text>")
        parts.append("</g>")
    return "".join([*parts, "</svg>"])
