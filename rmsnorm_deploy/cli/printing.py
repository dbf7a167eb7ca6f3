"""What the commands write: data to stdout, talk to stderr."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from rmsnorm_deploy.cli.signals import finished
from rmsnorm_deploy.cli.streams import silence


def clean(text: str) -> str:
    """Names come from the model: no control character of theirs may reach the terminal, and none may start a line."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def say(text: str) -> None:
    """One line to stderr."""
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
def progress_bar(first: str, *, shown: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """A progress bar on stderr, and nothing where that is no terminal.

    Args:
        first: what is said until something else is.
        shown: whether there is to be one at all.

    Yields:
        What is to be called with words, how much is done, and how much there is; None where there is no bar.
    """
    if not (shown and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(file=sys.stderr, markup=False, highlight=False), transient=True) as bar:
        task = bar.add_task(first, total=None)
        yield lambda words, done, total: bar.update(task, total=total, completed=done, description=clean(words))


def settle() -> None:
    """All data are out, or this raises OSError; then nothing changes the command's outcome any more."""
    sys.stdout.flush()
    finished()


def print_json(value: Any) -> None:
    """A value as JSON to stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False) + "\n")
