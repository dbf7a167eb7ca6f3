"""How many norms of a corpus each tool fuses, and how many models it breaks: this project and its peers, side by side.

    python -m benchmarks.recall CORPUS [--part full] [--peers onnxruntime,onnxscript] [--json OUT]

CORPUS is a folder with a `manifest.json`: a list of {"file", "must_fuse", "kind", "dtype", ...}, where `file` is a path
in the folder whose first part names the part of the corpus, and `must_fuse` is how many norms a tool can fuse in it.

    norms       how many there are
    found       of them, one node in the result; those that the exporter had fused already count where they stay
    sound       those of them in results that are neither wrong nor fail to run
    wrong       results whose numbers differ from the original's by more than other rounding explains, on normal or on
                scaled inputs (a misplaced epsilon shows only in small ones): see benchmarks/peers/judge.py
    not running results that onnxruntime does not load or run on the CPU, where it does the original
    crashes     the tool raised, ended its process or took longer than --timeout
    refused     models that a tool raises on with good reason: invalid ones, and for onnxruntime as a tool those that it
                does not load without its optimizer either
    unjudged    results that nothing can be said about, since onnxruntime runs neither them nor their original
    seconds     the tool's own, reading and writing included

Initializers that are also inputs are not overridden: a tool that bakes in their values is not counted as wrong for it.
Every tool runs in a process of its own. A tool of your own takes part as --peers module:factory, where the factory
returns a function (source, target).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.peers.tools import OURS, PEERS, Tool, named
from benchmarks.peers.worker import Worker, WorkerFailed, WorkerMissing

SCHEMA_VERSION = 1
JUDGE = "benchmarks.peers.judge:worker"
RUN = "benchmarks.peers.tools:worker"
FAULTS = ("wrong", "not running", "crash")
ALL = "all parts"
SHARED = ("onnx", "onnxruntime", "numpy")
"""What every tool and the judge build on: named in the header beside the tools themselves."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a tool did with a model.

    Attributes:
        verdict: "right", "wrong", "not running", "crash", "refused", or "not judged" where the original runs nowhere.
        found: norms found, at most as many as there are.
        seconds: what the tool took.
        reason: for the verdict, in a sentence.
    """

    verdict: str
    found: int = 0
    seconds: float = 0.0
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Result:
    """What all tools did with a model.

    Attributes:
        entry: of the manifest.
        inputs: names of the inputs that the results were judged on.
        outcomes: by tool.
    """

    entry: dict[str, Any]
    inputs: list[str]
    outcomes: dict[str, Outcome]

    @property
    def part(self) -> str:
        """The part of the corpus that it is in."""
        return part_of(self.entry)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        entry = {k: self.entry.get(k) for k in ("file", "kind", "dtype", "must_fuse")}
        return entry | {"inputs": self.inputs, "tools": {k: dataclasses.asdict(v) for k, v in self.outcomes.items()}}


@dataclasses.dataclass
class Row:
    """A row of the table: one tool on one part of the corpus."""

    part: str
    tool: str
    models: int = 0
    norms: int = 0
    found: int = 0
    sound: int = 0
    wrong: int = 0
    not_running: int = 0
    crashes: int = 0
    refused: int = 0
    unjudged: int = 0
    seconds: float = 0.0

    def add(self, norms: int, outcome: Outcome) -> None:
        """Count one model."""
        self.models += 1
        self.norms += norms
        self.found += outcome.found
        self.sound += outcome.found if outcome.verdict not in FAULTS else 0
        self.wrong += outcome.verdict == "wrong"
        self.not_running += outcome.verdict == "not running"
        self.crashes += outcome.verdict == "crash"
        self.refused += outcome.verdict == "refused"
        self.unjudged += outcome.verdict == "not judged"
        self.seconds += outcome.seconds


class Comparison:
    """Tools, each in its process, and the judge in another.

    Args:
        tools: what to compare.
        timeout: seconds for one model.
        jobs: tools that run at a time.
        quiet: drop what the tools print.

    Raises:
        WorkerMissing: the judge lacks onnxruntime.
    """

    def __init__(self, tools: Sequence[Tool], *, timeout: float, jobs: int, quiet: bool = True) -> None:
        self.missing: dict[str, str] = {}
        self._jobs = jobs
        self._judge = Worker(JUDGE, timeout=timeout, quiet=quiet)
        self._judge.start()
        workers = {tool: Worker(RUN, tool.factory, timeout=timeout, quiet=quiet) for tool in tools}
        for tool, worker in list(workers.items()):
            try:
                worker.start()
            except (WorkerMissing, WorkerFailed) as error:
                what = "not installed" if isinstance(error, WorkerMissing) else "does not start"
                self.missing[tool.name] = f"{what} ({error})"
                del workers[tool]
        self._workers = workers
        self.tools = tuple(workers)

    def __enter__(self) -> Comparison:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in [*self._workers.values(), self._judge]:
            worker.close()

    def run(self, corpus: Path, entries: Sequence[dict[str, Any]]) -> list[Result]:
        """Results for every entry. The judge works on one model while the tools work on the next."""
        with (
            tempfile.TemporaryDirectory() as folder,
            ThreadPoolExecutor(self._jobs) as tool_threads,
            ThreadPoolExecutor(1) as judge_thread,
        ):
            judged: list[Future[Result]] = []
            for number, entry in enumerate(entries):
                source = corpus / entry["file"]
                targets = [Path(folder) / f"{number}-{i}.onnx" for i in range(len(self.tools))]
                made = list(tool_threads.map(self._transform, self.tools, [source] * len(targets), targets))
                judged.append(judge_thread.submit(self._judge_all, entry, source, targets, made))
                if (number + 1) % 100 == 0:
                    print(f"{number + 1} of {len(entries)} models", file=sys.stderr)
            return [future.result() for future in judged]

    def _transform(self, tool: Tool, source: Path, target: Path) -> Outcome:
        try:
            answer, seconds = self._workers[tool].call(source=str(source), target=str(target))
        except (WorkerFailed, WorkerMissing) as error:
            raised = isinstance(error, WorkerFailed) and error.survived
            return Outcome("raised" if raised else "crash", reason=str(error))
        if "refused" in answer:
            return Outcome("refused", 0, seconds, answer["refused"])
        return Outcome("", 0, seconds)

    def _judge_all(
        self, entry: dict[str, Any], source: Path, targets: Sequence[Path], made: Sequence[Outcome]
    ) -> Result:
        try:
            # by itself first: no tool is to blame for what the original does to the judge
            original, _ = self._judge.call(original=str(source))
            run = True
        except WorkerFailed:
            original, run = {"usable": True, "inputs": []}, False
        outcomes = {}
        for tool, target, outcome in zip(self.tools, targets, made, strict=True):
            if not outcome.verdict:
                outcome = self._judge_one(entry, tool, source, target, outcome.seconds, run)
            elif outcome.verdict == "raised":
                verdict = "crash" if original["usable"] else "refused"
                outcome = dataclasses.replace(outcome, verdict=verdict)
            # where files lie says nothing and differs from run to run
            reason = outcome.reason.replace(str(target), "the result").replace(str(source), entry["file"])
            outcomes[tool.name] = dataclasses.replace(outcome, reason=reason)
            for file in target.parent.glob(f"{target.name}*"):  # and its weights
                file.unlink()
        return Result(entry, original["inputs"], outcomes)

    def _judge_one(
        self, entry: dict[str, Any], tool: Tool, source: Path, target: Path, seconds: float, run: bool
    ) -> Outcome:
        try:
            answer, _ = self._judge.call(original=str(source), result=str(target), library=tool.library, run=run)
        except WorkerFailed as error:
            # it is not a model at all, or onnxruntime ended or hung on it
            return Outcome("not running" if error.survived else "crash", 0, seconds, str(error))
        return Outcome(answer["verdict"], min(answer["norms"], entry["must_fuse"]), seconds, answer["reason"])


def part_of(entry: dict[str, Any]) -> str:
    """The part of the corpus that a model is in."""
    return str(entry["file"]).partition("/")[0]


def totals(results: Sequence[Result]) -> list[Row]:
    """Rows by part, in the order of the corpus, and for more than one part those of all together."""
    parts = list(dict.fromkeys(r.part for r in results))
    rows: dict[tuple[str, str], Row] = {}
    for part in [*parts, ALL] if len(parts) > 1 else parts:
        for result in results:
            if part in (ALL, result.part):
                for tool, outcome in result.outcomes.items():
                    rows.setdefault((part, tool), Row(part, tool)).add(result.entry["must_fuse"], outcome)
    return list(rows.values())


def as_table(rows: Sequence[Row]) -> str:
    """The rows as a table in Markdown, columns aligned."""
    fields = [f.name for f in dataclasses.fields(Row)]
    cells = [[name.replace("_", " ") for name in fields]]
    for row in rows:
        values = (getattr(row, name) for name in fields)
        cells.append([f"{v:.1f}" if isinstance(v, float) else str(v) for v in values])
    widths = [max(len(line[i]) for line in cells) for i in range(len(fields))]

    def line(texts: Sequence[str]) -> str:
        aligned = (t.ljust(w) if i < 2 else t.rjust(w) for i, (t, w) in enumerate(zip(texts, widths, strict=True)))
        return f"| {' | '.join(aligned)} |"

    rule = "|" + "|".join("-" * (w + 2) if i < 2 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    return "\n".join([line(cells[0]), rule, *map(line, cells[1:])])


def versions(tools: Sequence[Tool]) -> dict[str, str]:
    """Versions of everything that has a part in the numbers."""
    shared = {name: str(importlib.import_module(name).__version__) for name in SHARED}
    return {t.name: t.version for t in tools} | {"python": platform.python_version()} | shared


def read_corpus(corpus: Path, part: str = "", match: str = "") -> list[dict[str, Any]]:
    """The entries of the manifest that were asked for.

    Raises:
        ValueError: there is no usable manifest, or nothing in it fits.
    """
    manifest = corpus / "manifest.json"
    try:
        entries = json.loads(manifest.read_text(encoding="utf-8"))
        chosen = [e for e in entries if part in ("", part_of(e)) and match in e["file"] and e["must_fuse"] >= 0]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{manifest} is not a readable manifest: {error!r}") from error
    for entry in chosen:
        if not (corpus / entry["file"]).is_file():
            raise ValueError(f"{entry['file']} is in the manifest and not in {corpus}")
    if not chosen:
        raise ValueError(f"no model of {manifest} fits --part and --match")
    return chosen


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recall",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--part", default="", metavar="NAME", help="full, single, hazard or jax (default: all)")
    parser.add_argument("--match", default="", metavar="TEXT", help="only models whose path contains this")
    parser.add_argument("--json", default="", metavar="OUT", help="write everything to this file; - for stdout")
    parser.add_argument("--peers", default=",".join(PEERS), metavar="A,B", help="default: %(default)s")
    parser.add_argument("--timeout", type=float, default=60, metavar="S", help="for one model (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="tools at a time (default: 2)")
    parser.add_argument("--verbose", action="store_true", help="every fault, and what the tools print, on stderr")
    arguments = parser.parse_args(argv)
    try:
        arguments.tools = [OURS, *(named(p.strip()) for p in arguments.peers.split(",") if p.strip())]
        arguments.entries = read_corpus(arguments.corpus, arguments.part, arguments.match)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, and print the table or the JSON."""
    arguments = _arguments(argv)
    tools = arguments.tools
    try:
        compared = Comparison(tools, timeout=arguments.timeout, jobs=arguments.jobs, quiet=not arguments.verbose)
    except WorkerMissing as error:
        print(
            f"nothing can be judged without onnxruntime: {error}\nInstall it: pip install onnxruntime", file=sys.stderr
        )
        return 4
    with compared:
        for tool in tools:
            if reason := compared.missing.get(tool.name):
                print(f"{tool.name}: {reason}; skipped. To include it: {tool.advice}", file=sys.stderr)
        results = compared.run(arguments.corpus, arguments.entries)
    if arguments.verbose:
        for result in results:
            for name, outcome in result.outcomes.items():
                if outcome.verdict in FAULTS:
                    print(f"{result.entry['file']}: {name}: {outcome.verdict}: {outcome.reason}", file=sys.stderr)
    rows = totals(results)
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "versions": versions(compared.tools),
        "tools": {t.name: compared.missing.get(t.name, t.setting) for t in tools},
        "totals": [dataclasses.asdict(row) for row in rows],
        "models": [result.to_dict() for result in results],
    }
    text = json.dumps(record, indent=1) + "\n"
    if arguments.json == "-":
        sys.stdout.write(text)
        return 0
    if arguments.json:
        Path(arguments.json).write_text(text, encoding="utf-8")
    print(", ".join(f"{name} {version or '(of unknown version)'}" for name, version in record["versions"].items()))
    for name, setting in record["tools"].items():
        print(f"{name}: {setting}")
    print()
    print(as_table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
