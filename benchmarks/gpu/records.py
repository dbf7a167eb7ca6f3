"""Records of a measurement, one line for each case, written when it is measured; whoever goes on reads them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Records:
    """A file of lines, each a JSON object. The first says what was measured where; another such line starts anew."""

    def __init__(self, path: Path | None, about: dict[str, Any]) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        if path is None:
            return
        raw = path.read_bytes() if path.is_file() else b""
        whole = raw[: raw.rfind(b"\n") + 1]  # an interruption may have cut the last line
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
        except ValueError:
            lines = []
        if lines and lines[0] == {"about": about}:
            self.lines = lines[1:]
            if len(whole) < len(raw):
                with path.open("r+b") as file:
                    file.truncate(len(whole))
        else:
            path.write_text(json.dumps({"about": about}) + "\n")

    def add(self, **line: Any) -> None:
        """One more line, on disk at once."""
        self.lines.append(line)
        if self.path:
            with self.path.open("ab") as file:
                file.write((json.dumps(line) + "\n").encode())

    def of(self, name: str) -> list[Any]:
        """What stands under a name, in all lines that have it."""
        return [line[name] for line in self.lines if name in line]
