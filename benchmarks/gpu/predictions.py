"""What the kernels are expected to do on a GPU, said before anybody measured it; with a result, what came of it.

    python -m benchmarks.gpu.predictions                  # exactly the table in README.md
    python -m benchmarks.gpu.predictions gpu.json         # with what gpu-check measured

Instructions are counted in what nvcc 13 makes for sm_90 (cuobjdump -sass); a warp pass is what 32 threads do with 16
bytes each. An H100 has 132 x 4 issue slots of 1.76 GHz and a copy of 3.0 TB/s, an H200 as many of 1.98 GHz and a copy
of 4.3 TB/s. bfloat16 where no other type is named.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.summary import table

Range = tuple[float, float]
GPUS = ("H100", "H200")


@dataclasses.dataclass(frozen=True)
class Prediction:
    """One claim that can be wrong.

    Attributes:
        of: where its value stands in a result: "records", "host_us", "counters" or "decode".
        field: which value. "over" is how many times as long the first of two decoding steps takes as the second.
        name: of the contestant, or of whoever launches, or of two decoding steps.
        place: operator, type, rows, features and variant.
        h100, h200: between which two numbers it lies.
        why: the reason.
    """

    of: str
    field: str
    name: str
    place: tuple[str, str, int, int, str] | None
    h100: Range
    h200: Range
    why: str

    @property
    def what(self) -> str:
        """The claim's subject, for a reader."""
        if self.of == "host_us":
            return f"host time of a launch: {self.name}"
        if self.place is None:
            return f"decoding step: {self.name}"
        op, dtype, rows, size, variant = self.place
        kind = "" if dtype == "bfloat16" else f" {dtype}"
        more = "" if variant == "plain" else f", {variant}"
        who = "" if self.name == "ours" else f"{self.name}: "
        return f"{who}{op}{kind} {rows}x{size}{more}"

    @property
    def unit(self) -> str:
        """What the numbers are."""
        return {
            **{"of_copy": "% of a copy", "us": "us", "over_ours": "x our time", "over": "x its time"},
            **{"issue_percent": "% of issue slots", "dram_percent": "% of DRAM"},
        }[self.field]

    def shown(self, value: float) -> str:
        """A value of this kind as text."""
        if self.field == "of_copy":
            return f"{100 * value:.0f}"
        return f"{value:.0f}" if self.field.endswith("percent") else f"{value:.3g}"

    def range(self, gpu: str) -> Range:
        """What was claimed for a GPU of :data:`GPUS`."""
        return self.h100 if gpu == GPUS[0] else self.h200

    def found(self, result: dict[str, Any]) -> float | None:
        """What was measured, if it was."""
        measured = result.get("measured") or {}
        if self.of == "host_us":
            value: float | None = measured.get("host_us", {}).get(self.name)
            return value
        if self.of == "decode":
            times = {r["name"]: r["us"] for r in (result.get("decode") or {}).get("records", [])}
            first, second = (name.strip() for name in self.name.split(" over "))
            return times[first] / times[second] if first in times and second in times else None
        records = measured.get("records", []) if self.of == "records" else result.get("counters") or []
        for r in records:
            place = r["op"], r["dtype"], r["rows"], r["size"], r.get("variant", "plain")
            if place == self.place and r.get("contestant", self.name) == self.name and self.field in r:
                return float(r[self.field])
        return None


def _at(
    name: str, rows: int, size: int, op: str = "RMSNorm", dtype: str = "bfloat16", variant: str = "plain"
) -> tuple[str, tuple[str, str, int, int, str]]:
    return name, (op, dtype, rows, size, variant)


def _claim(
    field: str, at: tuple[str, tuple[str, str, int, int, str]], h100: Range, h200: Range, why: str, of: str = "records"
) -> Prediction:
    return Prediction(of, field, *at, h100, h200, why)


_LAUNCH = "a launch in a graph is about 2 us; then one read from L2 or DRAM, a sum, one write"
PREDICTIONS = (
    _claim("us", _at("ours", 1, 4096), (2.3, 3.2), (2.3, 3.2), f"{_LAUNCH}; 256 threads have the row, and one barrier"),
    _claim("us", _at("ours", 16, 4096), (2.3, 3.2), (2.3, 3.2), "16 blocks on 132 multiprocessors: as one row"),
    _claim(
        "us",
        _at("ours", 1, 16384),
        (2.8, 4.2),
        (2.8, 4.2),
        "512 threads with four chunks each, all asked for at once, by way of shared memory; no next row to hide them",
    ),
    _claim("us", _at("ours", 32, 128), (2.2, 3.0), (2.2, 3.0), f"{_LAUNCH}; no barrier"),
    _claim(
        *("of_copy", _at("ours", 4096, 4096), (0.85, 0.92), (0.83, 0.92)),
        "6 blocks a multiprocessor, 48 KB in flight; a copy at that rate needs 16 to 23 KB. The start and the end of a "
        "launch of 20 us cost the rest",
    ),
    _claim("of_copy", _at("ours", 16384, 4096), (0.88, 0.95), (0.86, 0.94), "the same, four times as long"),
    _claim(
        *("of_copy", _at("ours", 524288, 128), (0.85, 0.93), (0.82, 0.92)),
        "95 instructions a warp pass: at 90 % of the copy 27 % of an H100's issue slots and 34 % of an H200's, so that "
        "memory is the limit; 4 blocks with 53 registers, 32 KB in flight, which an H200 has less to spare with",
    ),
    _claim(
        *("of_copy", _at("ours", 4096, 16384), (0.86, 0.93), (0.80, 0.91)),
        "2 blocks a multiprocessor, each with 32 KB of its next row on the way while it works on one; but 264 blocks "
        "have 15.5 rows each, so that the last turn is half empty",
    ),
    _claim(
        "of_copy",
        _at("ours", 8192, 8192),
        (0.86, 0.93),
        (0.81, 0.91),
        "as 4096x16384 with half the row: 2 blocks, 32 KB of next rows on the way, 31 turns",
    ),
    _claim(
        *("of_copy", _at("ours", 16384, 2880), (0.85, 0.93), (0.82, 0.92)),
        "360 chunks in places for 512: 34 KB in flight, and predicated instructions for nothing",
    ),
    _claim(
        *("of_copy", _at("ours", 16384, 4096, "AddRMSNorm"), (0.88, 0.95), (0.86, 0.94)),
        "two chunks of x and two of the residual to a thread, 64 KB in flight; less than twice the instructions",
    ),
    _claim(
        *("of_copy", _at("ours", 16384, 4096, dtype="float16"), (0.88, 0.95), (0.87, 0.95)),
        "as bfloat16: both round two by two and multiply two by two in 16 bits",
    ),
    _claim(
        *("of_copy", _at("ours", 16384, 4096, dtype="float32"), (0.92, 0.97), (0.90, 0.96)),
        "half as many values in a byte, none of them converted",
    ),
    _claim(
        *("of_copy", _at("ours", 16384, 3584, variant="gemma"), (0.89, 0.95), (0.87, 0.94)),
        "rounded once, but multiplied in float32: 80 registers for 72, and 12 % more instructions",
    ),
    _claim(
        *("of_copy", _at("ours", 16384, 3584, variant="gemma, float32 scale"), (0.82, 0.93), (0.77, 0.91)),
        "two chunks to a thread, 32 KB in flight in place of 48; the scale stays in registers for all rows of a block",
    ),
    _claim(
        *("of_copy", _at("ours", 16384, 4096, variant="general"), (0.80, 0.91), (0.75, 0.89)),
        "two chunks to a thread; the bias from L1 in every row, each chunk checked against the part that is measured: "
        "117 to 125 instructions a warp pass",
    ),
    _claim(
        *("of_copy", _at("ours", 32768, 320, variant="columns"), (0.60, 0.85), (0.50, 0.80)),
        "kept in registers, but 64 bytes side by side only, two sectors of 32",
    ),
    _claim(
        *("of_copy", _at("ours", 16384, 4097), (0.25, 0.50), (0.20, 0.45)),
        "2 bytes an access: 8 times the loads and stores of a whole vector",
    ),
    _claim(
        *("of_copy", _at("TVM, ours", 16384, 4096), (0.85, 0.93), (0.83, 0.92)),
        "163 instructions for two warp passes, no loop: 82 each",
    ),
    _claim(
        *("of_copy", _at("TVM, ours", 524288, 128), (0.84, 0.92), (0.82, 0.91)),
        "106 instructions a warp pass: at 90 % of the copy 30 % and 38 % of the issue slots; blocks of 8 rows",
    ),
    _claim(
        *("of_copy", _at("TVM, ours", 4096, 16384), (0.80, 0.90), (0.74, 0.86)),
        "blocks of 512 threads with 63 registers: two a multiprocessor, 64 KB in flight, of which one reads while the "
        "other sums",
    ),
    _claim(
        *("over_ours", _at("torch.compile", 16384, 4096), (0.97, 1.15), (0.97, 1.15)),
        "a loop over the row there, twice, the second time from L1; both near the copy",
    ),
    _claim(
        *("over_ours", _at("torch.compile", 4096, 16384), (0.97, 1.25), (0.95, 1.25)),
        "its second reading comes from L2; it has nothing of the next row on the way",
    ),
    _claim(
        *("over_ours", _at("torch eager", 16384, 4096, "AddRMSNorm"), (1.25, 1.7), (1.25, 1.7)),
        "the sum goes to memory and back: 5 tensors moved, not 4, in two launches",
    ),
    _claim(
        *("over_ours", _at("Triton", 1, 4096), (0.9, 1.15), (0.9, 1.15)),
        "bound by the launch; 8 warps have the row in both",
    ),
    _claim(
        *("over_ours", _at("Triton", 524288, 128), (0.97, 1.3), (0.97, 1.3)),
        "16 rows a block, exchanged by shuffles; more instructions a row, but memory is the limit of both",
    ),
    Prediction(
        *("host_us", "us", "ours", None, (2.5, 4.5), (2.5, 4.5)),
        "2 us for cudaLaunchKernelEx with 168 bytes of arguments, 1 us for ctypes; the device's attributes are known",
    ),
    Prediction("host_us", "us", "no rows", None, (0.7, 1.4), (0.7, 1.4), "ctypes, which device is current, how many"),
    _claim(
        *("issue_percent", _at("ours", 524288, 128), (23, 32), (29, 40), "see above"),
        of="counters",
    ),
    _claim(
        "dram_percent", _at("ours", 16384, 4096), (82, 92), (80, 92), "a copy itself reaches 90 to 92", of="counters"
    ),
    Prediction(
        *("decode", "over", "as exported over our norms", None, (0.95, 1.2), (0.95, 1.2)),
        "onnxruntime fuses this spelling by itself; then there are as many launches, and the host is what counts",
    ),
    Prediction(
        *("decode", "over", "our norms over our norms, CUDA graph", None, (1.5, 3), (1.5, 3)),
        "about 20 launches a layer of 3 to 5 us each on the host, against 2 to 3 us each in a graph",
    ),
)


def rows(result: dict[str, Any] | None) -> list[list[str]]:
    """A line for each claim: what, predicted, and measured with whether it held; the reason."""
    name = (((result or {}).get("measured") or {}).get("machine") or {}).get("name", "")
    gpu = next((g for g in GPUS if g in name), None)
    lines = []
    for p in PREDICTIONS:
        claimed = [" to ".join(p.shown(value) for value in p.range(g)) for g in GPUS]
        found = p.found(result) if result else None
        measured = "not yet"
        if found is not None:
            low, high = p.range(gpu) if gpu else (0.0, float("inf"))
            verdict = "" if not gpu else ", held" if low <= found <= high else ", more" if found > high else ", less"
            measured = p.shown(found) + verdict
        lines.append([p.what, p.unit, *claimed, measured, p.why])
    return lines


def text(result: dict[str, Any] | None, *, markdown: bool) -> str:
    """The table of all claims."""
    header = ["what", "unit", *(f"{gpu}, predicted" for gpu in GPUS), "measured", "why"]
    return table(header, rows(result), markdown=markdown)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, nargs="?", help="gpu.json of gpu-check")
    given = parser.parse_args(arguments)
    print(text(json.loads(given.result.read_text()) if given.result else None, markdown=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
