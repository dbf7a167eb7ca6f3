"""What the GPU's counters say of five norms: issue slots and memory in use, instructions. Needs ncu.

python -m benchmarks.gpu.counters LIBRARY --ncu ncu --json counters.json
"""

from __future__ import annotations

import argparse
import csv
import io
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.profiled import LAUNCHES, cases
from benchmarks.gpu.steps import save

MISSING = 4
# Our name of each, so that the names of a GPU's generation stand in one place.
METRICS = {
    "gpu__time_duration.sum": "ns",
    "sm__inst_issued.avg.pct_of_peak_sustained_active": "issue_percent",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_percent",
    "dram__bytes.sum": "dram_bytes",
    "smsp__inst_executed.sum": "instructions",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_percent",
    "launch__registers_per_thread": "registers",
}


def parsed(text: str) -> list[dict[str, float]]:
    """Counters of each launch, in order, from ncu's CSV; other lines around it do not disturb."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    found: dict[int, dict[str, float]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(line for line in lines[start:] if line.startswith('"')))):
        name = METRICS.get(row["Metric Name"])
        try:
            value = float(row["Metric Value"].replace(",", ""))
        except ValueError:  # n/a: this GPU lacks the counter
            continue
        if name:
            found.setdefault(int(row["ID"]), {})[name] = value
    return [found[number] for number in sorted(found)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--quick", action="store_true", help="two rows in place of many")
    given = parser.parse_args(arguments)
    # The clocks are not this program's to lock; base units, so that there is one of each kind.
    command = [given.ncu, "--csv", "--print-units", "base", "--clock-control", "none", "--metrics", ",".join(METRICS)]
    program = [
        sys.executable,
        "-m",
        "benchmarks.gpu.profiled",
        str(given.library),
        *(["--quick"] if given.quick else []),
    ]
    done = subprocess.run([*command, *program], capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr, sep="\n")
    launches = parsed(done.stdout)
    wanted = cases(small=given.quick)
    if len(launches) != LAUNCHES * len(wanted):
        reason = next(
            (line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line or "ERR_" in line), ""
        )
        print(f"ncu counted {len(launches)} of {LAUNCHES * len(wanted)} launches: {reason.strip('= ')}")
        return MISSING if not launches else 1
    last = launches[LAUNCHES - 1 :: LAUNCHES]
    records = [
        {"op": c.op, "dtype": c.dtype, "rows": c.rows, "size": c.size, **counted}
        for c, counted in zip(wanted, last, strict=True)
    ]
    save(given.json, records)
    print(f"{len(records)} norms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
