"""What was measured, as bars: before and after, the middle of all runs, and where four of five of them lie."""

from __future__ import annotations

from rmsnorm_deploy.check.measured import Comparison
from rmsnorm_deploy.report.layout import CELL
from rmsnorm_deploy.report.text import cells, escaped, visible

_WIDTH = 340.0
_BAR = 18.0
_LINE = 18.0
_ROOM = 3.0
"""Of the larger middle: so much the scale shows at most."""


def chart(comparison: Comparison, name: str) -> str:
    """One comparison as SVG. Its two bars have one scale, from zero.

    Args:
        comparison: what is shown.
        name: begins every id in it; no other drawing of the page has it.
    """
    sides = (("before", comparison.before), ("after", comparison.after))
    # one run in ten may have been interrupted for long, which says nothing and would leave no room for the rest
    most = min(max(t.p90 for _, t in sides), _ROOM * max(t.median for _, t in sides)) or 1.0
    full = _WIDTH - 2.0
    parts, y = [], 0.0
    for kind, timing in sides:
        words = visible(f"{timing.variant}: {duration(timing.median)}", int(_WIDTH / CELL))
        length = f'textLength="{cells(words) * CELL:.1f}" lengthAdjust="spacingAndGlyphs"'
        parts.append(f'<text x="1" y="{y + 13:.1f}" {length}>{escaped(words)}</text>')
        y += _LINE
        left, right = (1 + full * min(v / most, 1) for v in (timing.p10, timing.p90))
        # an open end: there is more than there is room for
        end = f"M{right:.1f} {y + _BAR / 2 - 4:.1f}v8" if timing.p90 <= most else ""
        middle = y + _BAR / 2
        width = max(full * timing.median / most, 1)
        parts.append(f'<rect class="{kind}" x="1" y="{y:.1f}" width="{width:.1f}" height="{_BAR:.1f}"/>')
        parts.append(
            f'<path class="spread" d="M{left:.1f} {middle:.1f}H{right:.1f}M{left:.1f} {middle - 4:.1f}v8{end}"/>'
        )
        y += _BAR + 8
    said = "; ".join(
        f"{t.variant} {duration(t.median)}, a tenth below {duration(t.p10)}, a tenth above {duration(t.p90)}"
        for _, t in sides
    )
    head = (
        f'<svg class="chart" role="img" aria-labelledby="{name}-t {name}-d" viewBox="0 0 {_WIDTH:.0f} {y:.0f}" '
        'xmlns="http://www.w3.org/2000/svg">'
    )
    title = f'<title id="{name}-t">Time of {escaped(comparison.what)}, before and after</title>'
    return "".join([head, title, f'<desc id="{name}-d">{escaped(said, 600)}</desc>', *parts, "</svg>"])


def duration(microseconds: float) -> str:
    """A time with three digits that count, in a unit that fits."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:.3g} {unit}"
    return f"{microseconds:.3g} \N{MICRO SIGN}s"
