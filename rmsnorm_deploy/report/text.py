"""Texts of a model, made fit to be shown. They are hostile: every one of them passes through here."""

from __future__ import annotations

import html
import re
import unicodedata

LIMIT = 160
"""Characters of the longest text that is shown whole."""
_TAIL = 48
_MOST_MARKS = 2
"""Combining marks on one letter; more of them would be drawn over other lines."""
_PLAIN = re.compile(r"[A-Za-z0-9 ,;()'-]*")


def visible(text: str, limit: int = LIMIT) -> str:
    """``text`` on one line, with an escape for what nobody would see: controls, line ends, marks of direction.

    Args:
        text: anything.
        limit: columns of the longest text that is shown whole; of a longer one, its beginning and its end.
    """
    if len(text) <= limit:
        shown = "".join(_units(text))
        if cells(shown) <= limit:
            return shown
    tail = min(_TAIL, limit // 3)
    head = _fitting(_units(text[:limit]), limit - tail - 2)
    return f"{head}\N{HORIZONTAL ELLIPSIS}{_fitting(_units(text[-tail:])[::-1], tail, backwards=True)}"


def _units(text: str) -> list[str]:
    """Each character, or the escape for it."""
    shown, marks = [], 0
    for c in text:
        marks = marks + 1 if unicodedata.combining(c) else 0
        hidden = not c.isprintable() or marks > _MOST_MARKS
        shown.append(f"\\u{ord(c):04x}" if hidden else c)
    return shown


def _fitting(units: list[str], limit: int, *, backwards: bool = False) -> str:
    """As many of ``units`` as fit, in the order of the text."""
    taken: list[str] = []
    for unit in units:
        limit -= cells(unit)
        if limit < 0:
            break
        taken.append(unit)
    return "".join(taken[::-1] if backwards else taken)


def escaped(text: str, limit: int = LIMIT) -> str:
    """``text`` for HTML and SVG, in an element or in a quoted attribute."""
    return html.escape(visible(text, limit), quote=True)


def isolated(text: str, limit: int = LIMIT) -> str:
    """``text`` as code of HTML; letters that run from right to left turn nothing around that is not theirs."""
    return f"<bdi><code>{escaped(text, limit)}</code></bdi>"


def code(text: str, limit: int = LIMIT) -> str:
    """``text`` as code of Markdown, on a line or in a cell of a table: there nothing of it is a mark, link or name."""
    shown = visible(text, limit).replace("|", "\N{BROKEN BAR}")
    if not shown.strip():
        return "(empty)"
    fence = "`" * (max(map(len, re.findall("`+", shown)), default=0) + 1)
    gap = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{gap}{shown}{gap}{fence}"


def sentence(text: str, limit: int = 400) -> str:
    """A sentence in Markdown that may have names of the model in it: as it is, or as code where it has any mark."""
    return text if len(text) <= limit and _PLAIN.fullmatch(text) else code(text, limit)


def cells(text: str) -> int:
    """How many columns of a monospaced font a text takes at most."""
    wide = sum(unicodedata.east_asian_width(c) in "WFA" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def number(value: float | None) -> str:
    """A number with three digits that count; a dash for none."""
    return "\N{EN DASH}" if value is None else f"{value:.3g}"


def counted(count: int, one: str, many: str = "") -> str:
    """Such as "1 norm", "2 norms"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
