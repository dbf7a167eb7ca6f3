"""Tables of the records of benchmarks/cpu.py: geometric means, the worst case of each, distance to the floor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Record = dict[str, Any]
COLUMNS: dict[str, Callable[[Record], bool]] = {
    "1 row": lambda r: bool(r["rows"] < 16),
    "in cache": lambda r: bool(r["rows"] >= 16 and r["class"] == "in cache"),
    "middle": lambda r: bool(r["rows"] >= 16 and r["class"] == "middle"),
    "beyond": lambda r: bool(r["rows"] >= 16 and r["class"] == "beyond"),
}
"""A case belongs to one of them: few rows, or otherwise its size class."""
SLOWER = 0.97
"""Cells with a ratio below this are listed."""
LAYER_NORM = "LayerNormalization"


def merge(files: Iterable[Sequence[Record]]) -> list[Record]:
    """The records of several files; of those measured twice, the last."""
    kept: dict[tuple[Any, ...], Record] = {}
    for records in files:
        for record in records:
            names = ("machine", "onnxruntime", "case", "dtype", "threads", "baseline")
            kept[tuple(record[name] for name in names)] = record
    return list(kept.values())


def operator(record: Record) -> str:
    """The operator, for a partial norm with its part of the features: "GeneralRMSNorm 25%"."""
    name, _, *part = record["case"].split()
    return " ".join([name, *part])


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def grouped(records: Iterable[Record], key: Callable[[Record], Any]) -> dict[Any, list[Record]]:
    """The records by a key, in the order in which the keys appear."""
    found: dict[Any, list[Record]] = {}
    for record in records:
        found.setdefault(key(record), []).append(record)
    return found


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, markdown: bool) -> str:
    """Rows as text in columns or as a Markdown table. Columns from the third hold numbers, the last but text."""
    if markdown:
        rule = ["---", "---", *["---:"] * (len(header) - 3), "---"]
        return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return "\n".join(
        "  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)).rstrip() for row in (header, *rows)
    )


def _means(records: Sequence[Record], value: Callable[[Record], float]) -> list[str]:
    """The geometric mean in each column, "-" where there is none."""
    cells = []
    for belongs in COLUMNS.values():
        values = [value(r) for r in records if belongs(r)]
        cells.append(f"{geometric_mean(values):.2f}" if values else "-")
    return cells


def ratio_table(records: Sequence[Record], *, markdown: bool) -> str:
    """How many times as fast: for every operator, baseline and type, by column, and the smallest of them."""
    rows = []
    for (op, baseline, dtype), members in grouped(records, lambda r: (operator(r), r["baseline"], r["dtype"])).items():
        worst = min(members, key=lambda r: float(r["ratio"]))
        shape = worst["case"].split()[1]
        many = [r["ratio"] for r in members if r["rows"] >= 16]
        rows.append(
            [
                op,
                baseline,
                dtype,
                *_means(members, lambda r: float(r["ratio"])),
                f"{geometric_mean(many):.2f}" if many else "-",
                f"{worst['ratio']:.2f} ({shape})",
            ]
        )
    rows.sort(key=lambda row: row[:2])
    return table(["operator", "against", "type", *COLUMNS, "16 rows or more", "smallest"], rows, markdown=markdown)


def saved_table(records: Sequence[Record], *, markdown: bool) -> str:
    """The paper's measure: the share of LayerNormalization's time that is saved, 1 - ours / its."""
    rows = []
    members = [r for r in records if r["baseline"] == LAYER_NORM]
    for (op, dtype), found in grouped(members, lambda r: (operator(r), r["dtype"])).items():
        saved = [1 - 1 / r["ratio"] for r in found]
        cells = [
            "-" if cell == "-" else f"{1 - 1 / float(cell):.0%}" for cell in _means(found, lambda r: float(r["ratio"]))
        ]
        rows.append([op, dtype, *cells, f"{min(saved):.0%} to {max(saved):.0%}"])
    return table(["operator", "type", *COLUMNS, "range"], rows, markdown=markdown) if rows else ""


def floor_table(records: Sequence[Record], *, markdown: bool) -> str:
    """How many times as fast as the better copy: 1 is the time that moving the bytes takes."""
    rows = []
    for (op, dtype), members in grouped(records, lambda r: (operator(r), r["dtype"])).items():
        once = list({r["case"]: r for r in members}.values())
        least = min(once, key=lambda r: float(r["floor_us"] / r["ours_us"]))
        worst = f"{least['floor_us'] / least['ours_us']:.2f} ({least['case'].split()[1]})"
        rows.append([op, dtype, *_means(once, lambda r: float(r["floor_us"] / r["ours_us"])), worst])
    return table(["operator", "type", *COLUMNS, "smallest"], rows, markdown=markdown)


def slower_table(records: Sequence[Record], *, markdown: bool) -> str:
    """Every cell where we are slower, the slowest first."""
    rows = [
        [
            r["case"],
            r["baseline"],
            r["dtype"],
            f"{r['ours_us']:.2f}",
            f"{r['baseline_us']:.2f}",
            f"{r['ratio']:.2f}",
            f"{r['ratio_spread'][0]:.2f} to {r['ratio_spread'][1]:.2f}",
        ]
        for r in sorted(records, key=lambda r: float(r["ratio"]))
        if r["ratio"] < SLOWER
    ]
    if not rows:
        return ""
    return table(
        ["case", "against", "type", "ours us", "theirs us", "times as fast", "quartiles"], rows, markdown=markdown
    )


def missing(records: Sequence[Record]) -> list[str]:
    """Baselines that one type has and another lacks: onnxruntime has no kernel, or it was not measured."""
    baselines = {(r["op"], r["baseline"]): None for r in records}
    found = {(r["op"], r["baseline"], r["dtype"]) for r in records}
    dtypes = {r["dtype"]: None for r in records}
    return [f"{op} {dtype}: {name}" for op, name in baselines for dtype in dtypes if (op, name, dtype) not in found]


def text(records: Sequence[Record], *, markdown: bool) -> str:
    """The whole summary: for each machine, onnxruntime and number of threads."""
    parts = []
    for (machine, version), of_machine in grouped(records, lambda r: (r["machine"], r["onnxruntime"])).items():
        parts.append(f"{machine}; onnxruntime {version}")
        for threads, found in grouped(of_machine, lambda r: r["threads"]).items():
            clock = "1 thread, CPU time" if threads == 1 else f"{threads} threads, wall clock"
            slower = slower_table(found, markdown=markdown)
            sections = {
                "times as fast as the other, geometric means": ratio_table(found, markdown=markdown),
                "time saved against LayerNormalization": saved_table(found, markdown=markdown),
                "times as fast as the better copy, geometric means": floor_table(found, markdown=markdown),
                f"less than {SLOWER} times as fast": slower or "none",
                "no such baseline": "\n".join(missing(found)) or "none",
            }
            for title, content in sections.items():
                if content:
                    parts.append(f"{'#### ' if markdown else ''}{clock}: {title}\n\n{content}")
    return "\n\n".join(parts)
