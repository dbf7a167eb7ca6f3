"""Times the kernels on a GPU against a copy and against what is installed; one record for each case and contestant.

    python -m benchmarks.gpu.measure LIBRARY --json gpu.json --seconds 240

Everything that takes part in a case runs in turns in one process, on the same input, from CUDA graphs of many launches
where it can be captured, so that the time of the host does not count; buffers rotate, so that together they are four
times the L2 cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.gpu.contract import BYTES, TYPES, Kernels, Params, params
from benchmarks.gpu.driver import CudaError, Gpu, Graph
from benchmarks.gpu.peers import Buffers, Peer, peers
from benchmarks.gpu.values import decode, encode, norm, units

EPSILON = 1e-6
OPS = ("RMSNorm", "AddRMSNorm")
ROWS = (1, 16, 512, 4096, 32768)
SIZES = (4096, 1024, 128, 8192, 16384, 64)  # the more telling first, should the time run out
DTYPES = ("float16", "bfloat16", "float32")
EXTRA_ROWS = 524288  # for short rows, which are beyond L2 only in such numbers
EXTRA_UP_TO = 128
MOST_SETS = 256
L2_TIMES = 4
TILE = 1 << 20  # values that are made at random; the rest repeats them
SAMPLE_US = 300.0  # of one measurement
MOST_UNITS = 3.0  # how far our own result may be off


@dataclasses.dataclass(frozen=True)
class Case:
    op: str
    dtype: str
    rows: int
    size: int

    @property
    def inputs(self) -> int:
        return 2 if self.op == "AddRMSNorm" else 1

    @property
    def tensor_bytes(self) -> int:
        return self.rows * self.size * BYTES[TYPES[self.dtype]]

    @property
    def moved_bytes(self) -> int:
        """What is read and written at least, scale apart."""
        return 2 * self.inputs * self.tensor_bytes

    @property
    def name(self) -> str:
        return f"{self.op} {self.dtype} {self.rows}x{self.size}"


def grid(dtypes: list[str], sizes: list[int], rows: list[int]) -> Iterator[Case]:
    extra = [EXTRA_ROWS] if tuple(rows) == ROWS else []
    for dtype, size, op in itertools.product(dtypes, sizes, OPS):
        for count in [*reversed(rows), *(extra if size <= EXTRA_UP_TO else [])]:
            yield Case(op, dtype, count, size)


class Arena:
    """Device memory for all cases: inputs and outputs, in sets that take turns."""

    def __init__(self, gpu: Gpu, size: int) -> None:
        self.gpu, self.size = gpu, size
        self.inputs, self.outputs, self.scale = gpu.allocate(size), gpu.allocate(size), gpu.allocate(1 << 20)
        self.dtype = ""

    def fill(self, dtype: str, most_size: int) -> None:
        """Random values of one type everywhere."""
        if dtype == self.dtype:
            return
        rng = np.random.default_rng(0)
        tile = encode(rng.standard_normal(min(TILE, self.size // BYTES[TYPES[dtype]])), TYPES[dtype])
        self.gpu.upload(self.inputs, tile)
        done = tile.nbytes
        while done < self.size:
            more = min(done, self.size - done)
            self.gpu.copy(self.inputs + done, self.inputs, more, 0)
            done += more
        self.gpu.upload(self.scale, encode(rng.uniform(0.5, 2, most_size), TYPES[dtype]))
        self.gpu.synchronize()
        self.dtype = dtype

    def sets(self, case: Case) -> int:
        region = case.inputs * case.tensor_bytes
        wanted = -(-L2_TIMES * self.gpu.l2_bytes // (2 * region))
        return max(1, min(MOST_SETS, wanted, self.size // region))

    def buffers(self, case: Case, index: int) -> Buffers:
        region = case.inputs * case.tensor_bytes
        x, y = self.inputs + index * region, self.outputs + index * region
        added = case.inputs == 2
        return Buffers(
            x=x,
            residual=x + case.tensor_bytes if added else None,
            scale=self.scale,
            y=y,
            sum=y + case.tensor_bytes if added else None,
        )


class Ours:
    name = "ours"

    def __init__(self, kernels: Kernels, arena: Arena, case: Case, stream: int) -> None:
        self.kernels, self.stream = kernels, stream
        self.calls: list[Params] = []
        for index in range(arena.sets(case)):
            p = params(TYPES[case.dtype], (case.rows, case.size), 1, EPSILON)
            for name, pointer in dataclasses.asdict(arena.buffers(case, index)).items():
                setattr(p, name, pointer)
            self.calls.append(p)

    def run(self, index: int) -> None:
        self.kernels.launch(self.calls[index], self.stream)


class Copy:
    """As many bytes as the norm reads, to as many places as it writes."""

    name = "copy"

    def __init__(self, gpu: Gpu, arena: Arena, case: Case, stream: int) -> None:
        self.gpu, self.stream = gpu, stream
        self.bytes = case.inputs * case.tensor_bytes
        self.pairs = [(arena.buffers(case, i).y, arena.buffers(case, i).x) for i in range(arena.sets(case))]

    def run(self, index: int) -> None:
        to, source = self.pairs[index]
        self.gpu.copy(to, source, self.bytes, self.stream)


class Contestant:
    """One who takes part in a case, with one way to run all its launches."""

    def __init__(self, gpu: Gpu, stream: int, name: str, run: Callable[[int], None], count: int, prepared: Peer | None):
        self.gpu, self.stream, self.name, self.count = gpu, stream, name, count
        self.graph: Graph | None = None
        for index in range(min(3, count)):
            run(index)
        gpu.synchronize()

        def launches() -> None:
            for index in range(count):
                run(index)

        self._replay = launches
        self.captured = prepared is None or prepared.capturable
        if prepared is not None and prepared.capturable:
            self._replay = prepared.capture(launches)
        elif prepared is None:
            self.graph = gpu.capture(stream, launches)
            self._replay = lambda: self.graph.replay(stream) if self.graph else None
        self.start, self.end = gpu.event(), gpu.event()
        self.samples: list[float] = []
        self.repeats = 1
        self.sample()
        self.repeats = max(1, min(64, int(SAMPLE_US / max(self.sample() * count, 1e-3))))

    def sample(self) -> float:
        """Microseconds of one launch."""
        self.gpu.record(self.start, self.stream)
        for _ in range(self.repeats):
            self._replay()
        self.gpu.record(self.end, self.stream)
        return self.gpu.microseconds(self.start, self.end) / (self.repeats * self.count)

    def close(self) -> None:
        self._replay = lambda: None
        if self.graph:
            self.graph.close()


def wrong(gpu: Gpu, arena: Arena, case: Case, y: Callable[[int, int], bytes]) -> float:
    """How far the first and last row of a result are off, in units in the last place of the row's largest value."""
    data_type, row_bytes = TYPES[case.dtype], case.tensor_bytes // case.rows
    scale = decode(gpu.download(arena.scale, row_bytes), data_type)
    buffers = arena.buffers(case, 0)
    most = 0.0
    for row in {0, case.rows - 1}:
        x = decode(gpu.download(buffers.x + row * row_bytes, row_bytes), data_type)
        if buffers.residual:
            x = x + decode(gpu.download(buffers.residual + row * row_bytes, row_bytes), data_type)
            x = decode(encode(x, data_type), data_type)
        most = max(most, units(decode(y(row, row_bytes), data_type), norm(x, scale, EPSILON), data_type))
    return most


class Measurement:
    def __init__(self, gpu: Gpu, kernels: Kernels, arena: Arena, others: list[Peer], stream: int) -> None:
        self.gpu, self.kernels, self.arena, self.others, self.stream = gpu, kernels, arena, others, stream
        self.notes: list[str] = []

    def _enter(self, case: Case, deadline: float) -> Iterator[tuple[Contestant, float]]:
        """Contestants of a case, each with how far its result is off."""
        arena, count = self.arena, self.arena.sets(case)
        y = arena.buffers(case, 0).y
        here: list[tuple[str, Callable[[int], None], Peer | None]] = [
            ("ours", Ours(self.kernels, arena, case, self.stream).run, None),
            ("copy", Copy(self.gpu, arena, case, self.stream).run, None),
        ]
        for name, run, _ in here:
            made = Contestant(self.gpu, self.stream, name, run, count, None)
            if name == "ours":
                run(0)
                self.gpu.synchronize()
                off = wrong(self.gpu, arena, case, lambda row, size: self.gpu.download(y + row * size, size))
            else:
                off = 0.0
            yield made, off
        for peer in self.others:
            if not peer.takes(case.op, case.dtype):
                continue
            if time.monotonic() > deadline and peer.must_compile(case.op, case.dtype, (case.rows, case.size)):
                self.notes.append(f"{case.name}: {peer.name}: no time left to compile it")
                continue
            try:
                buffers = [arena.buffers(case, index) for index in range(count)]
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


def compile_only(gpu: Gpu, others: list[Peer], cases: list[Case], part: str) -> None:
    """Compile one part of what has to be compiled, so that the compiler's cache has it when it is measured."""
    index, count = map(int, part.split("/"))
    arena = Arena(gpu, 1 << 22)
    small = [dataclasses.replace(case, rows=min(case.rows, 16)) for case in cases]
    for number, case in enumerate(dict.fromkeys(case for case in small if case.rows in (1, 16))):
        arena.fill(case.dtype, case.size)
        for peer in others:
            shape = (case.rows, case.size)
            if number % count == index and peer.must_compile(case.op, case.dtype, shape):
                peer.prepare(case.op, case.dtype, shape, EPSILON, [arena.buffers(case, 0)])(0)
    gpu.synchronize()


def machine(gpu: Gpu, kernels: Kernels) -> dict[str, object]:
    return {
        "name": gpu.name,
        "capability": gpu.capability,
        "driver_cuda": gpu.driver_cuda,
        "multiprocessors": gpu.multiprocessors,
        "l2_bytes": gpu.l2_bytes,
        "architectures": kernels.architectures,
    }


def save(path: Path | None, result: dict[str, object]) -> None:
    if path:
        path.write_text(json.dumps(result, indent=1))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--compile-only", metavar="PART/OF", help="measure nothing, only compile what needs it")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--dtype", default=",".join(DTYPES))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    given = parser.parse_args(arguments)
    begin = time.monotonic()
    gpu, kernels = Gpu(), Kernels(given.library)
    others, stream, lacking = peers(gpu)
    sizes, rows = ([int(n) for n in text.split(",")] for text in (given.sizes, given.rows))
    cases = list(grid(given.dtype.split(","), sizes, rows))
    if given.compile_only:
        compile_only(gpu, others, cases, given.compile_only)
        return 0
    room = gpu.free_bytes() * 2 // 5  # the rest is for what the peers allocate themselves
    fitting = [case for case in cases if 2 * case.inputs * case.tensor_bytes <= room]
    largest = max(case.inputs * case.tensor_bytes for case in fitting)
    arena = Arena(gpu, max(largest, L2_TIMES * gpu.l2_bytes))
    measurement = Measurement(gpu, kernels, arena, others, stream)
    measurement.notes = [f"{case.name}: does not fit this GPU's memory" for case in cases if case not in fitting]
    found: list[dict[str, object]] = []
    result = {
        "machine": machine(gpu, kernels),
        "peers": [peer.label for peer in others],
        "lacking": lacking,
        "complete": False,
        "records": found,
        "notes": measurement.notes,
    }
    end = begin + given.seconds
    for number, case in enumerate(fitting):
        left = end - time.monotonic()
        if left < 0:
            measurement.notes.append(f"{case.name}: no time left")
            continue
        arena.fill(case.dtype, max(sizes))
        found += measurement.case(case, 0.6 * left / (len(fitting) - number), end - 0.25 * given.seconds)
        save(given.json, result)
        if case.rows == min(rows):
            print(f"{time.monotonic() - begin:4.0f} s  {case.op} {case.dtype} {case.size}", file=sys.stderr, flush=True)
    result["complete"] = True
    save(given.json, result)
    bad = [r for r in found if r["contestant"] == "ours" and r["off_units"] > MOST_UNITS]
    for r in bad:
        print(f"wrong: {r['op']} {r['dtype']} {r['rows']}x{r['size']} is off by {r['off_units']:.1f} units")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
