"""What was measured on a GPU as text: our time and part of the copy's speed in each case, and against the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from benchmarks.summary import table

Record = dict[str, Any]

# The least part of a copy's bandwidth, by row length, for tensors that are larger than the L2 cache.
LEAST_OF_COPY = {128: 0.80}
LEAST_FROM, LEAST_OF_LONG = 1024, 0.90
NOISE = 0.02  # of a ratio of two medians


def _case(r: Record) -> tuple[str, str, int, int]:
    return r["op"], r["dtype"], r["rows"], r["size"]


def of_contestant(records: Sequence[Record], name: str) -> list[Record]:
    return [r for r in records if r["contestant"] == name]


def bandwidth_table(records: Sequence[Record], *, markdown: bool) -> str:
    """Microseconds, and the part of the copy's speed."""
    ours = {_case(r): r for r in of_contestant(records, "ours")}
    sizes = sorted({r["size"] for r in ours.values()})
    lines = []
    for op, dtype, rows in dict.fromkeys((r["op"], r["dtype"], r["rows"]) for r in ours.values()):
        cells = []
        for size in sizes:
            r = ours.get((op, dtype, rows, size))
            cells.append(f"{r['us']:.1f} ({r['of_copy']:.0%})" if r else "-")
        lines.append([op, dtype, str(rows), *cells])
    return table(["operator", "type", "rows", *map(str, sizes)], lines, markdown=markdown)


def peer_table(records: Sequence[Record], *, markdown: bool) -> str:
    """How many times as fast as the others: the geometric mean, the least, and in how many cases we are slower."""
    lines = []
    for name in dict.fromkeys(r["contestant"] for r in records):
        if name in ("ours", "copy"):
            continue
        for op in dict.fromkeys(r["op"] for r in records):
            members = [r for r in of_contestant(records, name) if r["op"] == op]
            if not members:
                continue
            least = min(members, key=lambda r: r["over_ours"])
            mean = math.exp(sum(math.log(r["over_ours"]) for r in members) / len(members))
            where = f"{least['over_ours']:.2f} ({least['dtype']} {least['rows']}x{least['size']})"
            slower = sum(r["over_ours"] < 1 - NOISE for r in members)
            lines.append([op, name, str(len(members)), f"{mean:.2f}", where, str(slower)])
    header = ["operator", "against", "cases", "times as fast", "least", "we are slower in"]
    return table(header, lines, markdown=markdown) if lines else "nobody else is installed"


def unmet(records: Sequence[Record]) -> list[str]:
    """Every case that misses what the kernels have to reach, in one sentence each."""
    found = []
    for r in of_contestant(records, "ours"):
        least = LEAST_OF_COPY.get(r["size"], LEAST_OF_LONG if r["size"] >= LEAST_FROM else 0)
        if r["beyond_l2"] and r["of_copy"] < least:
            found.append(f"{r['op']} {r['dtype']} {r['rows']}x{r['size']}: {r['of_copy']:.0%} of the copy's speed")
    for r in records:
        if r["contestant"] not in ("ours", "copy") and r["over_ours"] < 1 - NOISE:
            found.append(
                f"{r['op']} {r['dtype']} {r['rows']}x{r['size']}: "
                f"{r['over_ours']:.2f} times as fast as {r['contestant']}"
            )
    return found


def text(measured: dict[str, Any], *, markdown: bool) -> str:
    machine, records = measured["machine"], measured["records"]
    missed = unmet(records)
    cases = len(of_contestant(records, "ours"))
    parts = [
        f"{machine['name']} (compute capability {machine['capability']}, driver for CUDA {machine['driver_cuda']}); "
        f"against {', '.join(measured['peers']) or 'nobody'}",
        "Microseconds for one norm, and the part of a device-to-device copy's speed",
        bandwidth_table(records, markdown=markdown),
        "Times as fast as the others",
        peer_table(records, markdown=markdown),
        f"Cases below what the kernels have to reach: {len(missed)} (of {cases})",
        *(f"* {line}" for line in missed),
    ]
    return "\n\n".join(parts[:6]) + ("\n\n" + "\n".join(parts[6:]) if missed else "") + "\n"
