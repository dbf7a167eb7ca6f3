"""One norm compiled by TVM for the CPU: ours against onnxruntime's, TVM's own and our onnxruntime kernel.

    python -m benchmarks.tvm_cpu --threads 1 --json 1.json [--dtype float32] [--rows 1,16] [--only AddRMSNorm]
    python -m benchmarks.tvm_cpu --summary FILE... [--markdown]

benchmarks/README.md says what is compared and how. TVM makes its threads once in a process, so there is one number of
threads in a run.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, helper

from benchmarks import record_files, summary
from benchmarks.buffers import Buffers
from benchmarks.chains import DTYPES, EPSILON, FUSED, Chain, build, session
from benchmarks.cpu import CHAIN_ELEMENTS, PAUSE_US, ROUND_US, WAKE_US, machine, numbers
from benchmarks.neighbours import Neighbours
from benchmarks.placement import pinned
from benchmarks.timing import Contestant, alternate, median, quartiles, ratios
from rmsnorm_deploy.op import NormParameters, Op

ROWS = [1, 16, 512]
SIZES = [128, 896, 4096]
CHAIN_LENGTH = 32
"""Norms in a graph of tensors up to CHAIN_ELEMENTS: the cost of a call is divided among them."""
OURS, BARE = "TVM, ours", "TVM, ours, the function alone"
STOCK, LIBRARY = "TVM's default", "our onnxruntime kernel"
DISTURBED = 0.05


class BareContestant:
    """The kernel without a graph, timed by TVM's time_evaluator.

    Attributes:
        rounds: as of :class:`benchmarks.timing.Contestant`.
    """

    def __init__(self, module: Any, arguments: Sequence[Any]) -> None:
        import tvm

        self.rounds: list[float] = []
        self._arguments = arguments
        once = module.time_evaluator("norm", tvm.cpu(), number=1, repeat=3)(*arguments).min * 1e6
        self._evaluate = module.time_evaluator("norm", tvm.cpu(), number=max(1, round(1000 / max(once, 0.01))))

    def round(self) -> None:
        """Measure once more."""
        self.rounds.append(self._evaluate(*self._arguments).mean * 1e6)


def stock_model(chain: Chain) -> ModelProto:
    """The chain as TVM's own importer reads it: RMSNormalization, after an Add where there is a residual."""
    made = build(chain)
    nodes = []
    for i in range(chain.length):
        x = f"x{i}"
        if chain.residual:
            nodes.append(helper.make_node("Add", [x, f"s{i}"], [f"s{i + 1}"]))
            x = f"s{i + 1}"
        nodes.append(helper.make_node("RMSNormalization", [x, "scale"], [f"x{i + 1}"], epsilon=EPSILON))
    del made.graph.node[:], made.opset_import[:]
    made.graph.node.extend(nodes)
    made.opset_import.append(helper.make_opsetid("", 23))
    made.ir_version = 11
    return made


def _tvm_runs(main: Any, buffers: Buffers, chain: Chain) -> list[Callable[[], object]]:
    """For each set of buffers a function that runs the graph on it.

    TVM allocates results by itself. Those of a run are dropped just before the next run on the same set, so that as
    many buffers are written in turn as by onnxruntime, whose results are bound.
    """
    import tvm

    kept: collections.deque[Any] = collections.deque()

    def run(inputs: Sequence[Any]) -> None:
        if len(kept) == len(buffers.sets):
            kept.popleft()
        kept.append(main(*inputs))

    runs: list[Callable[[], object]] = []
    for inputs, _ in buffers.sets:
        arrays = [m.view(DTYPES[chain.dtype][1]).reshape(chain.rows, chain.size) for m in inputs]
        runs.append(functools.partial(run, [tvm.runtime.from_dlpack(a) for a in arrays]))
    return runs


def compiled(chain: Chain) -> Any:
    """The chain as a user gets it."""
    from rmsnorm_deploy import tvm as ours

    with tempfile.TemporaryDirectory() as folder:
        ours.compile(build(chain), output=Path(folder) / "c")
        return ours.load(Path(folder) / "c").run_tensors


def stock(chain: Chain) -> Any:
    """The chain in TVM's default pipeline."""
    import tvm
    from tvm.relax.frontend.onnx import from_onnx

    from rmsnorm_deploy.tvm.targets.resolve import resolve

    target = resolve("llvm")
    return tvm.relax.VirtualMachine(tvm.compile(from_onnx(stock_model(chain)), target=target), tvm.cpu())["main"]


def bare(chain: Chain) -> BareContestant:
    """The kernel of one norm."""
    import tvm

    from rmsnorm_deploy.tvm.schedules.norm import Norm
    from rmsnorm_deploy.tvm.schedules.registry import schedules_for
    from rmsnorm_deploy.tvm.targets.resolve import resolve

    target = resolve("llvm")
    data_type, numpy_type = DTYPES[chain.dtype]
    norm = Norm(NormParameters(Op(chain.form), data_type, epsilon=EPSILON, scale_type=1), chain.dtype, chain.size)
    schedules = schedules_for(target)
    kernel = schedules.kernel(norm, schedules.default(norm)).with_attr("global_symbol", "norm")
    module = tvm.compile(tvm.IRModule({"norm": kernel}), target=target).mod
    rng = np.random.default_rng(0)
    tensors = 2 if chain.residual else 1
    shapes = [(chain.rows, chain.size)] * tensors + [(chain.size,)] + [(chain.rows, chain.size)] * tensors
    return BareContestant(module, [tvm.runtime.tensor(rng.standard_normal(s).astype(numpy_type)) for s in shapes])


def measure(op: Op, rows: int, size: int, dtype: str, threads: int, seconds: float) -> list[dict[str, Any]]:
    """One cell: a record for each pair of a form of ours and a baseline."""
    residual = op is Op.ADD_RMS_NORM
    buffers = Buffers(rows, size, dtype, tensors=2 if residual else 1)
    length = CHAIN_LENGTH if rows * size <= CHAIN_ELEMENTS else 1
    chain = Chain(op.value, rows, size, dtype, length, residual)
    theirs = Chain(FUSED[op], rows, size, dtype, length, residual)
    kind = buffers.size_class
    several = {"warm_us": WAKE_US, "pause_us": PAUSE_US}
    timing: dict[str, Any] = several if threads > 1 else {"warm_us": 0.0 if kind == "beyond" else 1.0}

    def contestant(runs: Sequence[Callable[[], object]]) -> Contestant:
        return Contestant(runs, length, threads=threads, round_us=ROUND_US[kind], **timing)

    found: dict[str, Any] = {
        OURS: contestant(_tvm_runs(compiled(chain), buffers, chain)),
        FUSED[op]: contestant(buffers.bind(session(theirs, threads), theirs)),
        STOCK: contestant(_tvm_runs(stock(chain), buffers, chain)),
        LIBRARY: contestant(buffers.bind(session(chain, threads), chain)),
        BARE: bare(chain),
    }
    neighbours = Neighbours()
    alternate(list(found.values()), judged=4, most_rounds=60, seconds=seconds, precision=0.005)
    others = neighbours.share()
    pairs = [(OURS, FUSED[op]), (OURS, STOCK), (OURS, LIBRARY), (BARE, FUSED[op])]
    return [
        {
            "case": f"{op.value} {rows}x{size}",
            "op": op.value,
            "rows": rows,
            "size": size,
            "dtype": dtype,
            "threads": threads,
            "ours": ours,
            "ours_us": round(median(found[ours].rounds), 3),
            "baseline": baseline,
            "baseline_us": round(median(found[baseline].rounds), 3),
            "ratio": round(median(ratios(found[ours], found[baseline])), 4),
            "ratio_spread": [round(q, 4) for q in quartiles(ratios(found[ours], found[baseline]))],
            "class": kind,
            "others": None if others is None else round(others, 3),
            "machine": machine(),
            **versions(),
        }
        for ours, baseline in pairs
    ]


@functools.cache
def versions() -> dict[str, str]:
    """Of both sides."""
    import onnxruntime
    import tvm

    return {"onnxruntime": onnxruntime.__version__, "tvm": tvm.__version__}


def table(records: Sequence[dict[str, Any]], *, markdown: bool) -> str:
    """How many times as fast as the baseline: geometric means, and the smallest in cache and beyond."""
    rows = []
    groups = summary.grouped(records, lambda r: (r["op"], r["ours"], r["baseline"], r["dtype"], r["threads"]))
    for (op, ours, baseline, dtype, threads), members in groups.items():
        cells = [f"{summary.geometric_mean([r['ratio'] for r in members]):.2f}"]
        for wanted in (True, False):
            part = [r for r in members if (r["class"] != "beyond") is wanted]
            worst = min(part, key=lambda r: float(r["ratio"]), default=None)
            cells.append("-" if worst is None else f"{worst['ratio']:.2f} ({worst['rows']}x{worst['size']})")
        rows.append([f"{op}: {ours}", baseline, dtype, str(threads), *cells])
    header = ["ours", "against", "type", "threads", "times as fast", "smallest in cache", "smallest beyond"]
    return summary.table(header, rows, markdown=markdown)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    only = "an operator's name, or text that the case contains: '512x896'"
    parser = record_files.parser_of("tvm_cpu", __doc__, only)
    parser.add_argument("--threads", type=int, default=1, help="of both sides (default: 1)")
    parser.add_argument("--rows", type=numbers, default=ROWS, help="default: 1,16,512")
    parser.add_argument("--sizes", type=numbers, default=SIZES, help="features; default: 128,896,4096")
    parser.add_argument("--seconds", type=float, default=1.5, help="for a cell, about, at most (default: 1.5)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or summarise; print the summary."""
    chosen = parse(arguments)
    if chosen.summary:
        print(table(record_files.read(chosen.summary), markdown=chosen.markdown))
        return 0
    os.environ["TVM_NUM_THREADS"] = str(chosen.threads)  # TVM reads it when it starts
    records = []
    with pinned(chosen.threads):
        for dtype in chosen.dtype:
            for op in FUSED:
                for rows in chosen.rows:
                    for size in chosen.sizes:
                        case = f"{op.value} {rows}x{size}"
                        if chosen.only not in (op.value, "") and chosen.only not in case:
                            continue
                        made = measure(op, rows, size, dtype, chosen.threads, chosen.seconds)
                        records += made
                        if chosen.json:
                            chosen.json.write_text(json.dumps(records, indent=1) + "\n")
                        others = made[0]["others"] or 0.0
                        print(
                            f"{case} {dtype} {chosen.threads}: {made[0]['ours_us']:.3f} us, "
                            f"the function alone {made[-1]['ours_us']:.3f}; "
                            + ", ".join(f"{r['ratio']:.2f} times as fast as {r['baseline']}" for r in made)
                            + (f"; DISTURBED: other processes used {others:.0%}" if others > DISTURBED else ""),
                            file=sys.stderr,
                        )
    if not records:
        print("no case matches", file=sys.stderr)
        return 1
    print(table(records, markdown=chosen.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
