"""What the benchmarks of compiled models share on the command line: where records go, and summaries of them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def parser_of(name: str, text: str | None, only: str) -> argparse.ArgumentParser:
    """A parser with the options about records and types.

    Args:
        name: of the module.
        text: its docstring, whose first line says what it does.
        only: what ``--only`` takes.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=(text or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the records to this file")
    parser.add_argument("--summary", type=Path, nargs="+", metavar="FILE", help="measure nothing, summarise these")
    parser.add_argument("--markdown", action="store_true", help="the summary as a table for benchmarks/README.md")
    parser.add_argument("--only", default="", help=only)
    parser.add_argument("--dtype", type=lambda t: t.split(","), default=["float32", "float16"])
    return parser


def read(files: Sequence[Path]) -> list[Any]:
    """The records of all files."""
    return [r for path in files for r in json.loads(path.read_text())]
