"""What the commands write: data to stdout, talk to stderr."""

from __future__ import annotations

import contextlib
import contextvars
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from rmsnorm_deploy.cli.signals import finished
from rmsnorm_deploy.cli.streams import silence

Told = Callable[[str, int, int], None]
"""A function of what is being done, how much of it is done, and how much there is; 0 where that is not known."""

QUIET: contextvars.ContextVar[bool] = contextvars.ContextVar("QUIET", default=False)
"""Whether only errors and warnings are told, and no progress is shown."""
_ALWAYS = ("error: ", "hint: ", "warning: ")


def clean(text: str) -> str:
    """Names come from the model: no control character of theirs may reach the terminal, and none may start a line."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def say(text: str) -> None:
    """One line to stderr; when all is to be quiet, only what is wrong."""
    if QUIET.get() and not text.startswith(_ALWAYS):
        return
    try:
        sys.stderr.write(clean(text) + "\n")
        sys.stderr.flush()
    except OSError:  # nobody listens: the exit status still tells
        silence(sys.stderr)


def console() -> Any:
    """What writes to stdout: with colours on a terminal only."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    # rich obeys NO_COLOR by itself, but FORCE_COLOR as well unless it is told
    return Console(
        file=sys.stdout,
        force_terminal=terminal,
        width=None if terminal else 160,
        markup=False,
        emoji=False,
        highlight=False,
    )


def table_of(*columns: str, right: tuple[str, ...] = ()) -> Any:
    """An empty table with these columns; those in ``right`` are aligned to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def show(what: str | Any, style: str | None = None) -> None:
    """Text or a table to stdout."""
    console().print(clean(what) if isinstance(what, str) else what, style=style, soft_wrap=isinstance(what, str))


def add_row(table: Any, *cells: str) -> None:
    """Add a row to a table."""
    from rich.text import Text

    table.add_row(*(Text(clean(c)) for c in cells))


@contextlib.contextmanager
def progress_bar(first: str, *, shown: bool) -> Iterator[Told | None]:
    """A progress bar on stderr, and nothing where that is no terminal.

    Args:
        first: what is said until something else is.
        shown: whether there is to be one at all.

    Yields:
        What is to be called with words, how much is done, and how much there is; None where there is no bar.
    """
    if QUIET.get() or not (shown and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        TextColumn("{task.fields[share]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(file=sys.stderr, markup=False, highlight=False), transient=True) as bar:
        task = bar.add_task(clean(first), total=None, share="")

        def update(words: str, done: int, total: int) -> None:
            share = _share(done, total)
            bar.update(task, total=total or None, completed=done, description=clean(words), share=share)

        yield update


def _share(done: int, total: int) -> str:
    """How much of it is done, in words: steps as they are, and bytes in MiB."""
    if total < 2**20:
        return f"{done}/{total}" if total else ""
    return f"{done / 2**20:,.0f}/{total / 2**20:,.0f} MiB"


def settle() -> None:
    """All data are out, or this raises OSError; then nothing changes the command's outcome any more."""
    sys.stdout.flush()
    finished()


def print_json(value: Any, *, line: bool = False) -> None:
    """A value as JSON to stdout; on one line where it is one of several."""
    sys.stdout.write(json.dumps(value, indent=None if line else 2, ensure_ascii=True, allow_nan=False) + "\n")
