"""Records of a measurement, one line for each case, written when it is measured; whoever goes on reads them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Records:
    """A file of lines, each a JSON object. The first says what was measured where; another such line starts anew."""

    def __init__(self, path: Path | None, about: dict[str, Any]) -> None:
        self.path, self.about = path, about
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

    def result(self) -> dict[str, Any]:
        """Everything together: about, what the last run was to measure, and what all have measured."""
        runs, measured = self.of("run"), set(self.of("case"))
        last = runs[-1] if runs else {"peers": [], "lacking": [], "cases": []}
        left = [name for name in last["cases"] if name not in measured]
        return {
            **self.about,
            "peers": last["peers"],
            "lacking": last["lacking"],
            "complete": bool(runs) and not left,
            "cases": len(last["cases"]),
            "left": len(left),
            "host_us": next(iter(self.of("host")), {}),
            "records": [r for part in self.of("records") for r in part],
            "failed": self.of("failed"),
            "notes": list(dict.fromkeys(note for notes in self.of("notes") for note in notes)),
        }

    @classmethod
    def read(cls, path: Path) -> Records | None:
        """What is in a file, to look at only; None where it holds nothing yet."""
        try:
            raw = path.read_bytes()
            lines = [json.loads(line) for line in raw[: raw.rfind(b"\n") + 1].splitlines()]
            found = cls(None, lines[0]["about"])
        except (OSError, ValueError, IndexError, KeyError):
            return None
        found.lines = lines[1:]
        return found
