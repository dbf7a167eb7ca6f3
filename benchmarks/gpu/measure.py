"""Times the kernels on a GPU against a copy and against what is installed; one record for each case and contestant.

    python -m benchmarks.gpu.measure LIBRARY --json gpu.json --seconds 240

Everything that takes part in a case runs in turns in one process, on the same input, from CUDA graphs of many launches
where it can be captured, so that the time of the host does not count; buffers rotate, so that together they are four
times the L2 cache.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.ahead import compile_part
from benchmarks.gpu.cases import DTYPES, EPSILON, Case, chosen, grid
from benchmarks.gpu.contestants import L2_TIMES, Arena, Contestant, Copy, Ours, wrong
from benchmarks.gpu.contract import Kernels
from benchmarks.gpu.driver import CudaError, Gpu
from benchmarks.gpu.host import host_times
from benchmarks.gpu.peers import Peer, peers
from benchmarks.gpu.records import Records
from benchmarks.gpu.steps import save
from benchmarks.gpu.tvm_norm import TvmKernels

MOST_SECONDS = 1.0  # of the rounds of one case
MOST_UNITS = 3.0  # how far our own result may be off
OURS = ("ours", TvmKernels.name)


class Measurement:
    def __init__(
        self, gpu: Gpu, kernels: Kernels, arena: Arena, others: list[Peer], tvm: TvmKernels | None, stream: int
    ) -> None:
        self.gpu, self.kernels, self.arena, self.others, self.stream = gpu, kernels, arena, others, stream
        self.tvm = tvm
        self.notes: list[str] = []

    def _enter(self, case: Case, deadline: float) -> Iterator[tuple[Contestant, float]]:
        """Contestants of a case, each with how far its result is off."""
        arena, count = self.arena, self.arena.sets(case)
        y = arena.buffers(case, 0).y
        buffers = [arena.buffers(case, index) for index in range(count)]
        here = [
            ("ours", Ours(self.kernels, arena, case, self.stream).run),
            ("copy", Copy(self.gpu, arena, case, self.stream).run),
        ]
        if self.tvm and self.tvm.takes(case):
            here.append((self.tvm.name, self.tvm.prepare(case, buffers, self.stream)))
        for name, run in here:
            made = Contestant(self.gpu, self.stream, name, run, count, None)
            if name != "copy":
                run(0)
                self.gpu.synchronize()
                off = wrong(self.gpu, arena, case, lambda row, size: self.gpu.download(y + row * size, size))
            else:
                off = 0.0
            yield made, off
        for peer in self.others:
            if case.variant != "plain" or not peer.takes(case.op, case.dtype):
                continue
            compiles = peer.must_compile(case.op, case.dtype, (case.rows, case.size))
            if compiles and not case.telling:
                continue
            if compiles and time.monotonic() > deadline:
                self.notes.append(f"{case.name}: {peer.name}: no time left to compile it")
                continue
            try:
                run = peer.prepare(case.op, case.dtype, (case.rows, case.size), EPSILON, buffers)
                made = Contestant(self.gpu, self.stream, peer.name, run, count, peer)
                run(0)
                self.gpu.synchronize()
                yield made, wrong(self.gpu, arena, case, peer.result)
            except CudaError:
                raise
            except Exception as error:  # whatever a peer of another project may raise
                first = (str(error).splitlines() or [""])[0]
                self.notes.append(f"{case.name}: {peer.name}: {type(error).__name__}: {first}")
                peer.forget()

    def case(self, case: Case, seconds: float, deadline: float) -> list[dict[str, object]]:
        entered = list(self._enter(case, deadline))
        everyone = [contestant for contestant, _ in entered]
        stop = time.monotonic() + seconds
        rounds = 0
        while rounds < 7 or (rounds < 31 and time.monotonic() < stop):
            order = everyone[rounds % len(everyone) :] + everyone[: rounds % len(everyone)]
            for contestant in order[:: 1 if rounds % 2 else -1]:
                contestant.samples.append(contestant.sample())
            rounds += 1
        medians = {c.name: statistics.median(c.samples) for c in everyone}
        records: list[dict[str, object]] = []
        for contestant, off in entered:
            low, _, high = statistics.quantiles(contestant.samples, n=4)
            us = medians[contestant.name]
            ratios = [a / b for a, b in zip(contestant.samples, everyone[0].samples, strict=True)]
            records.append(
                {
                    "op": case.op,
                    "dtype": case.dtype,
                    "rows": case.rows,
                    "size": case.size,
                    "variant": case.variant,
                    "contestant": contestant.name,
                    "us": us,
                    "spread_us": [low, high],
                    "gb_per_s": case.moved_bytes / us / 1e3,
                    "of_copy": medians["copy"] / us,
                    "over_ours": statistics.median(ratios),
                    "off_units": off,
                    "rounds": rounds,
                    "launches": contestant.count,
                    "graph": contestant.captured,
                    "beyond_l2": case.tensor_bytes > self.gpu.l2_bytes,
                }
            )
            contestant.close()
        for peer in self.others:
            peer.forget()
        if self.others:
            self.others[0].t.release()
        return records


def machine(gpu: Gpu, kernels: Kernels) -> dict[str, object]:
    return {
        "name": gpu.name,
        "capability": gpu.capability,
        "driver_cuda": gpu.driver_cuda,
        "multiprocessors": gpu.multiprocessors,
        "l2_bytes": gpu.l2_bytes,
        "architectures": kernels.architectures,
    }


def cases_of(given: argparse.Namespace) -> list[Case]:
    """All, or those that the options name."""
    dtypes = given.dtype.split(",")
    if not given.sizes and not given.rows:
        return grid(dtypes)
    sizes, rows = (
        [int(n) for n in (text or usual).split(",")]
        for text, usual in ((given.sizes, "128,4096"), (given.rows, "1,16,4096"))
    )
    return chosen(dtypes, sizes, rows)


def wrong_ones(result: dict[str, Any]) -> list[str]:
    """Our own results that are further off than rounding explains, and what could not be run, a sentence each."""
    bad = [r for r in result["records"] if r["contestant"] in OURS and r["off_units"] > MOST_UNITS]
    return [
        *result["failed"],
        *(
            f"wrong: {r['contestant']}: {r['op']} {r['dtype']} {r['rows']}x{r['size']} ({r['variant']}): "
            f"off by {r['off_units']:.1f} units"
            for r in bad
        ),
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--records", type=Path, help="a line for each case, as soon as it is measured; is gone on with")
    parser.add_argument("--kernels", default="", help="what tells the library from others, for --records")
    parser.add_argument("--tvm", type=Path, help="folder of benchmarks.gpu.tvm_kernels")
    parser.add_argument("--compile-only", metavar="PART/OF", help="measure nothing, only compile what needs it")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--dtype", default=",".join(DTYPES))
    parser.add_argument("--sizes")
    parser.add_argument("--rows")
    given = parser.parse_args(arguments)
    begin = time.monotonic()
    gpu, kernels = Gpu(), Kernels(given.library)
    others, stream, lacking = peers(gpu)
    cases = cases_of(given)
    if given.compile_only:
        compile_part(gpu, others, cases, given.compile_only)
        return 0
    tvm = None
    try:
        tvm = TvmKernels(gpu, given.tvm) if given.tvm else None
    except (CudaError, OSError, ValueError, KeyError, TypeError) as error:  # made for other GPUs, or damaged
        lacking.append(f"TVM's kernels: {type(error).__name__}: {error}")
    room = gpu.free_bytes() * 2 // 5  # the rest is for what the peers allocate themselves
    fitting = [case for case in cases if 2 * case.inputs * case.tensor_bytes <= room]
    largest = max(case.inputs * case.tensor_bytes for case in fitting)
    arena = Arena(gpu, max(largest, L2_TIMES * gpu.l2_bytes))
    measurement = Measurement(gpu, kernels, arena, others, tvm, stream)
    about = {"machine": machine(gpu, kernels), "kernels": given.kernels}
    records = Records(given.records, about)
    known = set(records.of("case"))
    records.add(
        run={
            "peers": [*([tvm.name] if tvm else []), *(peer.label for peer in others)],
            "lacking": lacking,
            "cases": [case.name for case in fitting],
        },
        notes=[f"{case.name}: does not fit this GPU's memory" for case in cases if case not in fitting],
    )
    end = begin + given.seconds
    if not records.of("host"):
        host, notes = host_times(gpu, kernels, arena, others, tvm, stream, 0.02 * given.seconds)
        records.add(host=host, notes=notes)
    left = [case for case in fitting if case.name not in known]
    while left:
        remaining = end - time.monotonic()
        if remaining < 0:
            break
        case = left.pop(0)
        measurement.notes = []
        arena.fill(case.dtype)
        seconds = min(MOST_SECONDS, 0.6 * remaining / min(len(left) + 1, 60))
        try:
            found = measurement.case(case, seconds, end - 0.25 * given.seconds)
        except Exception as error:  # whoever goes on must not fall over the same case
            records.add(case=case.name, failed=f"{case.name}: {type(error).__name__}: {error}")
            raise
        records.add(case=case.name, records=found, notes=measurement.notes)
        us = found[0]["us"]
        print(
            f"{time.monotonic() - begin:4.0f} s  {case.name}: {us:.2f} us, {found[0]['of_copy']:.0%} of a copy",
            file=sys.stderr,
            flush=True,
        )
    result = records.result()
    if given.json:
        save(given.json, result)
    for line in wrong_ones(result):
        print(line)
    return 1 if wrong_ones(result) else 0


if __name__ == "__main__":
    sys.exit(main())
