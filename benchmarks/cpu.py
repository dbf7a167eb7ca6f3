"""One norm on the CPU: our operators against onnxruntime's, in one process, turn and turn about.

    python -m benchmarks.cpu --json OUT.json [--dtype float16] [--threads 1] [--only AddRMSNorm]
    python -m benchmarks.cpu --summary FILE... [--markdown]

benchmarks/README.md says what is compared, how, and what the columns mean. The records are written after every case, so
that nothing is lost by Ctrl-C; several files, of a grid measured in pieces, are summarised together.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort

from benchmarks import floor, summary
from benchmarks.buffers import Buffers, last_level_cache
from benchmarks.chains import DECOMPOSED, DTYPES, FUSED, LAYER_NORM, Chain, check_not_fused, session
from benchmarks.neighbours import Neighbours
from benchmarks.placement import pinned
from benchmarks.timing import Contestant, alternate, median, quartiles, ratios
from rmsnorm_deploy import op
from rmsnorm_deploy.run.library import library_path

ROWS = [1, 16, 512, 4096]
SIZES = [64, 128, 896, 2048, 4096, 8192]
PARTS = {"6.25%": 0.0625, "25%": 0.25}
"""Of the features, in the statistic of a partial norm."""
CHAIN_LENGTH = 16
CHAIN_ELEMENTS = 65536
"""Tensors up to this size run in a chain, which divides the cost of a call among its nodes."""
COPY_REPETITIONS = 16
ROUND_US = {"in cache": 1000.0, "middle": 2000.0, "beyond": 2000.0}
WAKE_US = 3000.0
"""Before a round with several threads: a virtual CPU that sleeps takes that long to wake for good."""
PAUSE_US = 2500.0
"""Before that: after this time the threads of the one before sleep, see ``benchmarks.chains.SPIN_US``."""
DISTURBED = 0.05
"""Others may use this part of the CPUs before it is said; it counts with several threads above all."""
PRECISION = 0.005
"""Of the median ratios: their standard error over themselves, where the rounds may end."""


@dataclasses.dataclass(frozen=True)
class Group:
    """What is timed together: one operator, shape, type and number of threads.

    Attributes:
        kind: RMSNorm, beside which the partial norms run, or AddRMSNorm.
        rows: of X.
        size: number of features.
        dtype: of everything.
        threads: intra-op threads.
        only: which cases are wanted.
    """

    kind: op.Op
    rows: int
    size: int
    dtype: str
    threads: int
    only: str = ""

    @property
    def whole(self) -> str:
        """The case of the norm over all features."""
        return f"{self.kind.value} {self.rows}x{self.size}"

    def partial(self, part: str) -> str:
        """The case of a partial norm."""
        return f"{op.Op.GENERAL_RMS_NORM.value} {self.rows}x{self.size} {part}"

    def wants(self, case: str) -> bool:
        """Whether a case shall be measured: its operator is the one asked for, or its name contains the text."""
        return case.split()[0] == self.only if self.only in list(op.Op) else self.only in case

    @property
    def cases(self) -> list[str]:
        """The cases that are wanted."""
        partial = [self.partial(part) for part in PARTS] if self.kind is op.Op.RMS_NORM else []
        return [case for case in (self.whole, *partial) if self.wants(case)]


def grid(arguments: argparse.Namespace) -> Iterator[Group]:
    """Every group that the arguments ask for and that has a wanted case."""
    for threads in arguments.threads:
        for dtype in arguments.dtype:
            for kind in FUSED:
                for rows in arguments.rows:
                    for size in arguments.sizes:
                        group = Group(kind, rows, size, dtype, threads, arguments.only)
                        if group.cases:
                            yield group


class Measurement:
    """The contestants of one group, and the records of their times."""

    def __init__(self, group: Group, say: Callable[[str], None]) -> None:
        """Make every session and buffer.

        Args:
            group: what to measure.
            say: is told once for each baseline that onnxruntime cannot run.
        """
        self.group, self._say = group, say
        self.others: float | None = None
        residual = group.kind is op.Op.ADD_RMS_NORM
        self.buffers = Buffers(group.rows, group.size, group.dtype, tensors=2 if residual else 1)
        self.length = CHAIN_LENGTH if group.rows * group.size <= CHAIN_ELEMENTS else 1
        self._residual = residual
        self.contestants: dict[str, Contestant] = {}
        whole, partial = group.wants(group.whole), [p for p in PARTS if group.partial(p) in group.cases]
        self._add(group.kind.value, group.kind.value)
        if whole:
            self._add_baseline(FUSED[group.kind])
            self._add_baseline(DECOMPOSED)
            if group.threads > 1:
                self._add(self.one_thread, group.kind.value, threads=1)
        if not residual:
            self._add_baseline(LAYER_NORM)
        for part in partial:
            size = max(1, round(PARTS[part] * group.size))
            self._add(group.partial(part), op.Op.GENERAL_RMS_NORM.value, partial_size=size)
        self._judged = len(self.contestants)
        self._add_copies("plain", streaming=False)
        if floor.has_streaming():
            self._add_copies("streaming", streaming=True)

    @property
    def one_thread(self) -> str:
        """The name of our own norm in one thread, as a baseline."""
        return f"{self.group.kind.value}, 1 thread"

    def _contestant(self, runs: Sequence[Callable[[], object]], units: int) -> Contestant:
        kind, threads = self.buffers.size_class, self.group.threads
        if threads > 1:
            return Contestant(runs, units, threads=threads, round_us=ROUND_US[kind], warm_us=WAKE_US, pause_us=PAUSE_US)
        # In memory every call reads other buffers: there is nothing to warm.
        warm_us = 0.0 if kind == "beyond" else 1.0
        return Contestant(runs, units, threads=1, round_us=ROUND_US[kind], warm_us=warm_us)

    def _add(self, name: str, form: str, *, threads: int | None = None, partial_size: int | None = None) -> None:
        group = self.group
        chain = Chain(form, group.rows, group.size, group.dtype, self.length, self._residual, partial_size)
        if form == DECOMPOSED:
            check_not_fused(chain)
        runs = self.buffers.bind(session(chain, threads or group.threads), chain)
        self.contestants[name] = self._contestant(runs, self.length)

    def _add_baseline(self, name: str) -> None:
        """One of onnxruntime's; where it has no kernel for this type, that is said and there is no record."""
        group = self.group
        try:
            self._add(name, name)
        except ort.capi.onnxruntime_pybind11_state.NotImplemented as error:
            self._say(f"{group.kind.value} {group.dtype}: no {name} baseline: {str(error).splitlines()[0]}")

    def _add_copies(self, name: str, *, streaming: bool) -> None:
        rotated = len(self.buffers.sets) > 1
        repetitions = 1 if rotated or self.length == 1 else COPY_REPETITIONS
        runs = [
            floor.copier(outputs, inputs, streaming=streaming, threads=self.group.threads, repetitions=repetitions)
            for inputs, outputs in self.buffers.sets
        ]
        self.contestants[name] = self._contestant(runs, repetitions)

    def run(self, rounds: int, seconds: float) -> None:
        """Time all of them, see :func:`benchmarks.timing.alternate`."""
        neighbours = Neighbours()
        alternate(
            list(self.contestants.values()),
            judged=self._judged,
            most_rounds=rounds,
            seconds=seconds,
            precision=PRECISION,
        )
        self.others = neighbours.share()

    def records(self) -> list[dict[str, Any]]:
        """One for each pair of a case of ours and a baseline."""
        group = self.group
        made = []
        if group.wants(group.whole):
            baselines = [
                n for n in (FUSED[group.kind], LAYER_NORM, DECOMPOSED, self.one_thread) if n in self.contestants
            ]
            made += [self._record(group.whole, group.kind.value, name) for name in baselines]
        for part in PARTS:
            case = group.partial(part)
            if case in self.contestants:
                if LAYER_NORM in self.contestants:
                    made.append(self._record(case, case, LAYER_NORM))
                made.append(self._record(case, case, group.kind.value, f"{group.kind.value}, all features"))
        return made

    def _record(self, case: str, ours_name: str, baseline_name: str, label: str = "") -> dict[str, Any]:
        ours, baseline = self.contestants[ours_name], self.contestants[baseline_name]
        of_rounds = ratios(ours, baseline)
        floors = [
            round(median(self.contestants[name].rounds), 3) if name in self.contestants else None
            for name in ("plain", "streaming")
        ]
        return {
            "case": case,
            "op": case.split()[0],
            "rows": self.group.rows,
            "size": self.group.size,
            "dtype": self.group.dtype,
            "threads": self.group.threads,
            "ours_us": round(median(ours.rounds), 3),
            "ours_spread_us": [round(q, 3) for q in quartiles(ours.rounds)],
            "baseline": label or baseline_name,
            "baseline_us": round(median(baseline.rounds), 3),
            "baseline_spread_us": [round(q, 3) for q in quartiles(baseline.rounds)],
            "ratio": round(median(of_rounds), 4),
            "ratio_spread": [round(q, 4) for q in quartiles(of_rounds)],
            "floor_us": min(f for f in floors if f is not None),
            "plain_floor_us": floors[0],
            "streaming_floor_us": floors[1],
            "class": self.buffers.size_class,
            "rounds": len(ours.rounds),
            "others": None if self.others is None else round(self.others, 3),
            "machine": machine(),
            "onnxruntime": ort.__version__,
        }


def instruction_set() -> str:
    """The one of our kernels that runs here."""
    library = ctypes.CDLL(str(library_path()))
    library.rmsnorm_deploy_cpu_isa.restype = ctypes.c_char_p
    name = library.rmsnorm_deploy_cpu_isa()
    return name.decode() if name else "none"


def machine() -> str:
    """The CPU, its last-level cache and the instruction set of our kernels."""
    known: dict[str, str] = {}
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            key, _, value = line.partition(":")
            known.setdefault(key.strip(), value.strip())
    name = known.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in known:
        name += f" (family {known['cpu family']}, model {known.get('model', '?')})"
    return (
        f"{name}, {os.cpu_count()} CPUs, last-level cache {last_level_cache() >> 20} MiB, kernels {instruction_set()}"
    )


def numbers(text: str) -> list[int]:
    """A list such as "1,16"."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of numbers such as 1,16") from None
    if min(values) < 1:
        raise argparse.ArgumentTypeError("numbers must be at least 1")
    return values


def thread_numbers(text: str) -> list[int]:
    """Like :func:`numbers`; a process has one thread pool, so at most one may exceed 1."""
    values = numbers(text)
    if len({v for v in values if v > 1}) > 1:
        raise argparse.ArgumentTypeError("at most one number of threads above 1 in a run")
    return values


def types(text: str) -> list[str]:
    """A list such as "float32,bfloat16"."""
    names = text.split(",")
    if unknown := sorted(set(names) - set(DTYPES)):
        raise argparse.ArgumentTypeError(f"unknown {unknown}: the types are {', '.join(DTYPES)}")
    return names


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the records to this file")
    parser.add_argument(
        "--summary", type=Path, nargs="+", metavar="FILE", help="measure nothing, summarise these files"
    )
    parser.add_argument("--markdown", action="store_true", help="the summary as tables for benchmarks/README.md")
    parser.add_argument("--only", default="", help="an operator's name, or text that the case contains: '512x896'")
    parser.add_argument("--dtype", type=types, default=list(DTYPES), help="default: float32,float16,bfloat16")
    parser.add_argument("--threads", type=thread_numbers, default=[1, 2], help="intra-op threads (default: 1,2)")
    parser.add_argument("--rows", type=numbers, default=ROWS, help="default: 1,16,512,4096")
    parser.add_argument("--sizes", type=numbers, default=SIZES, help="features; default: 64,128,896,2048,4096,8192")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of a case at most (default: 60)")
    parser.add_argument("--seconds", type=float, default=2.0, help="for a group of cases, about, at most (default: 2)")
    parser.add_argument("--quick", action="store_true", help="fewer shapes and short rounds, to see that it works")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.rows = [r for r in chosen.rows if r in (1, 16, 512)] or chosen.rows
        chosen.sizes = [s for s in chosen.sizes if s in (64, 896, 4096)] or chosen.sizes
        chosen.seconds = min(chosen.seconds, 0.3)
    return chosen


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], bool]:
    """All records that were asked for, or those until Ctrl-C, and whether that came."""
    said: set[str] = set()

    def say(text: str) -> None:
        if text not in said:
            said.add(text)
            print(text, file=sys.stderr)

    def write() -> None:
        if arguments.json:
            arguments.json.write_text(json.dumps(records, indent=1) + "\n")

    print(
        f"{machine()}; onnxruntime {ort.__version__}; {datetime.datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
        file=sys.stderr,
    )
    records: list[dict[str, Any]] = []
    write()  # a path that cannot be written is an error now, not after the measurement
    groups = list(grid(arguments))
    begin = time.perf_counter()
    try:
        for i, group in enumerate(groups, 1):
            with pinned(group.threads):
                measurement = Measurement(group, say)
                measurement.run(arguments.rounds, arguments.seconds)
            made = measurement.records()
            records += made
            write()
            ours, others = made[0], measurement.others or 0.0
            print(
                f"{i}/{len(groups)} {time.perf_counter() - begin:4.0f} s  {ours['case']} {group.dtype} "
                f"{group.threads} thread{'s' * (group.threads > 1)}: {ours['ours_us']:.2f} us, "
                + ", ".join(
                    f"{r['ratio']:.2f} times as fast as {r['baseline']}" for r in made if r["case"] == ours["case"]
                )
                + f" ({ours['rounds']} rounds)"
                + (f"; DISTURBED: other processes used {others:.0%} of the CPUs" if others > DISTURBED else ""),
                file=sys.stderr,
            )
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept", file=sys.stderr)
        return records, True
    return records, False


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or summarise; print the summary."""
    chosen = parse(arguments)
    interrupted = False
    if chosen.summary:
        records = summary.merge([json.loads(path.read_text()) for path in chosen.summary])
    else:
        records, interrupted = measure(chosen)
    if records:
        print(summary.text(records, markdown=chosen.markdown))
    elif not interrupted:
        print("no case matches", file=sys.stderr)
        return 1
    return 130 if interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
