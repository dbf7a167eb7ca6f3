"""Pieces of HTML: sections, tables, figures. What is handed in as text is escaped here, what is HTML is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmsnorm_deploy.report.drawing import drawn
from rmsnorm_deploy.report.layout import Picture
from rmsnorm_deploy.report.text import counted, escaped


def figure(picture: Picture | None, name: str, title: str, caption: str) -> str:
    """A picture with its caption; nothing where there is none.

    Args:
        picture: what is drawn.
        name: begins every id in it.
        title: what a reader hears who does not see it.
        caption: what is said above it.
    """
    if picture is None or not picture.boxes:
        return ""
    more = f"; {counted(picture.left_out, 'more node')} left out" if picture.left_out else ""
    inner = scroll(drawn(picture, name, title), title)
    return f"<figure><figcaption>{escaped(caption)}{more}</figcaption>{inner}</figure>"


def section(name: str, title: str, *parts: str) -> str:
    """A part of the page: ``parts`` are HTML already."""
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{escaped(title)}</h2>{"".join(parts)}</section>'


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already; those that are no cell yet become one. Nothing without rows."""
    lines = ["".join(c if c.startswith("<td") else f"<td>{c}</td>" for c in row) for row in rows]
    if not lines:
        return ""
    head = "".join(f'<th scope="col">{escaped(h)}</th>' for h in heads)
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    top = f"<caption>{escaped(caption, 300)}</caption><thead><tr>{head}</tr></thead>"
    return scroll(f"<table>{top}<tbody>\n{body}</tbody></table>", caption)


def scroll(inner: str, label: str) -> str:
    """What may be wider than the page: it scrolls by itself, by keys as well."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escaped(label)}">{inner}</div>'


def right(text: str) -> str:
    """A cell with a number."""
    return f'<td class="number">{escaped(text)}</td>'


def verdict(passed: bool, why: str, yes: str = "agrees", no: str = "differs") -> str:
    """Whether something agrees, in a word and a colour, and why not."""
    said = f"{yes if passed else no}{f': {why}' if why else ''}"
    return f'<span class="{"good" if passed else "bad"}">{escaped(said, 400)}</span>'


def rest(count: int, one: str, many: str = "") -> str:
    """A line about what is not shown; nothing where that is nothing."""
    return f'<p class="soft">And {counted(count, one, many)} more, not shown.</p>' if count > 0 else ""
