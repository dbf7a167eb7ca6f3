"""Launches five norms once to warm up and once for a profiler to watch; `benchmarks.gpu.counters` runs it.

ncu --csv python -m benchmarks.gpu.profiled LIBRARY
"""

from __future__ import annotations

import sys

from benchmarks.gpu.cases import Case
from benchmarks.gpu.contestants import Arena, Ours
from benchmarks.gpu.contract import Kernels
from benchmarks.gpu.driver import Gpu

LAUNCHES = 2  # of each, one after the other


def cases(*, small: bool) -> list[Case]:
    """Bound by issue, by memory, by few blocks, by latency; and four tensors in place of two."""
    places = (("RMSNorm", 524288, 128), ("RMSNorm", 16384, 4096), ("RMSNorm", 4096, 16384), ("RMSNorm", 1, 4096))
    found = [Case(op, "bfloat16", rows, size) for op, rows, size in (*places, ("AddRMSNorm", 16384, 4096))]
    return [Case(c.op, c.dtype, min(c.rows, 2), c.size) for c in found] if small else found


def main(arguments: list[str]) -> int:
    library, *more = arguments
    gpu, kernels = Gpu(), Kernels(library)
    wanted = cases(small=more == ["--quick"])
    arena = Arena(gpu, max(case.inputs * case.tensor_bytes for case in wanted))
    stream = gpu.stream()
    arena.fill("bfloat16")
    for case in wanted:
        ours = Ours(kernels, arena, case, stream)
        for _ in range(LAUNCHES):
            ours.run(0)
        gpu.synchronize()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
