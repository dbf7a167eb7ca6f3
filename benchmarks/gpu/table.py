"""What was measured on a GPU as text: our time and part of the copy's speed in each case, and against the others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.gpu import predictions
from benchmarks.summary import table

Record = dict[str, Any]

# The least part of a copy's bandwidth, by row length, for tensors that are larger than the L2 cache.
LEAST_OF_COPY = {128: 0.80}
LEAST_FROM, LEAST_OF_LONG = 1024, 0.90
NOISE = 0.02  # of a ratio of two medians


VECTOR = 16  # bytes of the accesses whose speed is promised
OWN = ("ours", "copy", "TVM, ours")  # no peers


def _place(r: Record) -> str:
    variant = "" if r["variant"] == "plain" else f" ({r['variant']})"
    return f"{r['op']} {r['dtype']} {r['rows']}x{r['size']}{variant}"


def of_contestant(records: Sequence[Record], name: str) -> list[Record]:
    return [r for r in records if r["contestant"] == name]


def bandwidth_table(records: Sequence[Record], *, markdown: bool) -> str:
    """Microseconds, and the part of the copy's speed; of TVM's kernel too, where it was measured."""
    tvm = {_place(r): r for r in of_contestant(records, "TVM, ours")}

    def cell(r: Record) -> str:
        return f"{r['us']:.1f} ({r['of_copy']:.0%})"

    lines = []
    for r in sorted(of_contestant(records, "ours"), key=lambda r: (r["variant"] != "plain", r["dtype"], r["op"])):
        other = tvm.get(_place(r))
        where = [r["op"], r["dtype"], "" if r["variant"] == "plain" else r["variant"], str(r["rows"]), str(r["size"])]
        lines.append([*where, cell(r), cell(other) if other else "-"])
    return table(["operator", "type", "variant", "rows", "features", "ours", "TVM, ours"], lines, markdown=markdown)


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
    """Every case that misses what the kernels have to reach, in one sentence each.

    The part of a copy's speed is promised for rows that are whole vectors, in the two orders of rounding.
    """
    found = []
    for r in of_contestant(records, "ours"):
        least = LEAST_OF_COPY.get(r["size"], LEAST_OF_LONG if r["size"] >= LEAST_FROM else 0)
        promised = r["variant"] in ("plain", "gemma") and r["size"] % VECTOR == 0
        if promised and r["beyond_l2"] and r["of_copy"] < least:
            found.append(f"{_place(r)}: {r['of_copy']:.0%} of the copy's speed")
    for r in records:
        if r["contestant"] not in OWN and r["over_ours"] < 1 - NOISE:
            found.append(f"{_place(r)}: {r['over_ours']:.2f} times as fast as {r['contestant']}")
    return found


def host_table(host: dict[str, float], *, markdown: bool) -> str:
    """Who keeps the host how long for one launch."""
    lines = [[name, f"{us:.2f}"] for name, us in host.items()]
    return table(["launched by", "host, us"], lines, markdown=markdown)


def counters_table(records: Sequence[Record], *, markdown: bool) -> str:
    """What ncu counted; a counter that this GPU lacks is a dash."""
    columns = {
        **{"ns": "us", "issue_percent": "issue slots", "dram_percent": "DRAM", "occupancy_percent": "warps"},
        **{"instructions": "instructions", "registers": "registers"},
    }

    def cell(r: Record, name: str) -> str:
        if name not in r:
            return "-"
        if name == "ns":
            return f"{r[name] / 1e3:.1f}"
        return f"{r[name]:.0f} %" if name.endswith("percent") else f"{r[name]:.0f}"

    lines = [[f"{r['op']} {r['dtype']} {r['rows']}x{r['size']}", *(cell(r, name) for name in columns)] for r in records]
    return table(["norm", *columns.values()], lines, markdown=markdown)


def products_table(records: Sequence[Record], *, markdown: bool) -> str:
    """Products by cuBLAS, as compiled TVM models ask for them."""
    lines = [
        [r["name"], r["dtype"], f"{r['us']:.1f}", f"{r['tflops']:.1f}", f"{r['error']:.0e}"]
        for r in records
        if r["right"]
    ]
    return table(["product", "type", "us", "TFLOP/s", "error"], lines, markdown=markdown)


def decode_table(decode: dict[str, Any], *, markdown: bool) -> str:
    """Microseconds of a decoding step."""
    lines = [
        [r["name"], f"{r['us']:.0f}", f"{r['spread_us'][0]:.0f} to {r['spread_us'][1]:.0f}"] for r in decode["records"]
    ]
    return table(["onnxruntime", "step, us", "quartiles"], lines, markdown=markdown)


def _measured(measured: dict[str, Any], *, markdown: bool) -> Iterator[str]:
    machine, records = measured["machine"], measured["records"]
    missed = unmet(records)
    cases = len(of_contestant(records, "ours"))
    yield (
        f"{machine['name']} (compute capability {machine['capability']}, driver for CUDA {machine['driver_cuda']}); "
        f"against {', '.join(measured['peers']) or 'nobody'}"
    )
    if records:
        yield "Microseconds for one norm, and the part of a device-to-device copy's speed"
        yield bandwidth_table(records, markdown=markdown)
        yield "Times as fast as the others"
        yield peer_table(records, markdown=markdown)
    head = f"Misses of what the kernels have to reach: {len(missed)}, in {cases} cases"
    yield "\n".join([head, *(["", *(f"* {line}" for line in missed)] if missed else [])])
    yield "Host time of a launch from Python"
    yield host_table(measured["host_us"], markdown=markdown)


def text(result: dict[str, Any], *, markdown: bool) -> str:
    """Everything that gpu.json holds, as far as it is there."""
    steps = [[s["name"], s["status"], f"{s['seconds']:.0f}", s["detail"].replace("|", "/")] for s in result["steps"]]
    parts = [table(["step", "status", "s", ""], steps, markdown=markdown)]
    if result["measured"]:
        parts += _measured(result["measured"], markdown=markdown)
    if result.get("products"):
        parts += ["Products of TVM's models", products_table(result["products"]["records"], markdown=markdown)]
    if result["decode"]:
        parts += [
            f"A decoding step of {result['decode']['norms']} norms",
            decode_table(result["decode"], markdown=markdown),
        ]
    if result["counters"]:
        parts += ["What ncu counts", counters_table(result["counters"], markdown=markdown)]
    parts += ["Predicted, and what came of it", predictions.text(result, markdown=markdown)]
    return "\n\n".join(parts) + "\n"
