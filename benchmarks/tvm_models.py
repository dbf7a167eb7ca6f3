"""Whole models compiled by TVM for the CPU, against onnxruntime on the same file.

    python -m benchmarks.tvm_models [--threads 1,2] [--dtype float32,float16] [--only llama] [--json OUT]
    python -m benchmarks.tvm_models --summary FILE... [--markdown]

benchmarks/README.md says what is compared and how. TVM makes its threads once in a process, so each number of threads
has a process of its own.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import record_files, summary
from benchmarks.cpu import numbers
from benchmarks.neighbours import Neighbours
from benchmarks.placement import onnxruntime_affinities, pinned
from benchmarks.timing import Contestant, alternate, median, quartiles, ratios

PAST = 256
"""Tokens before, in the cells that have some."""
DISTURBED = 0.05
ROUND_US, WARM_US, PAUSE_US = 30_000.0, 1_000.0, 0.0
CELLS = [(f"llama {tokens} of {tokens + past}", tokens, past) for past in (0, PAST) for tokens in (1, 32, 128)]
OTHERS = ["whisper", "vit"]


def feeds_of(cell: str, dtype: str) -> dict[str, Any]:
    """The inputs of a cell."""
    random = np.random.default_rng(5)
    if cell == "whisper":
        return {"features": random.standard_normal((1, 80, 3000)).astype(dtype)}
    if cell == "vit":
        return {"image": random.standard_normal((1, 3, 224, 224)).astype(dtype)}
    from benchmarks.models.decoder import GROUPS, LAYERS, SIZE, VOCABULARY

    tokens, past = next((t, p) for name, t, p in CELLS if name == cell)
    feeds: dict[str, Any] = {
        "input_ids": random.integers(0, VOCABULARY, (1, tokens)),
        "position_ids": np.arange(past, past + tokens)[None],
    }
    if past:
        names = [f"past_{i}_{kind}" for i in range(LAYERS) for kind in "kv"]
        feeds |= {n: random.standard_normal((1, GROUPS, past, SIZE)).astype(dtype) for n in names}
    return feeds


def models(dtype: str, only: str) -> dict[str, tuple[Any, list[str]]]:
    """Each model that ``only`` does not leave out, as a function that makes it, with its cells."""
    from benchmarks.models.decoder import decoder
    from benchmarks.models.encoders import vit, whisper

    found: dict[str, tuple[Any, list[str]]] = {
        "llama": (lambda: decoder(dtype, past=False), [name for name, _, past in CELLS if not past]),
        "llama with past": (lambda: decoder(dtype, past=True), [name for name, _, past in CELLS if past]),
        "whisper": (lambda: whisper(dtype), ["whisper"]),
        "vit": (lambda: vit(dtype), ["vit"]),
    }
    kept = {name: (make, [c for c in cells if only in c]) for name, (make, cells) in found.items()}
    return {name: (make, cells) for name, (make, cells) in kept.items() if cells}


def measure(path: Path, cells: Sequence[str], dtype: str, threads: int, seconds: float, folder: Path) -> list[Any]:
    """Every cell of one model."""
    import onnxruntime as ort
    import tvm

    from rmsnorm_deploy.tvm import compile as compile_model
    from rmsnorm_deploy.tvm import load

    started = time.perf_counter()
    compile_model(path, output=folder)
    compiling = time.perf_counter() - started
    compiled = load(folder)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    if onnxruntime_affinities(threads):
        options.add_session_config_entry("session.intra_op_thread_affinities", onnxruntime_affinities(threads))
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    records = []
    for cell in cells:
        feeds = feeds_of(cell, dtype)
        inputs = [tvm.runtime.tensor(feeds[i["name"]]) for i in compiled.description["inputs"]]
        wanted = session.run(None, feeds)
        found = [value.numpy() for value in compiled.run_tensors(*inputs)]
        difference = max(
            float(np.max(np.abs(f.astype(float) - w)) / max(1e-9, np.max(np.abs(w.astype(float)))))
            for f, w in zip(found, wanted, strict=True)
        )
        binding = session.io_binding()
        for name, value in feeds.items():
            binding.bind_cpu_input(name, value)
        for output, value in zip(session.get_outputs(), wanted, strict=True):
            binding.bind_ortvalue_output(output.name, ort.OrtValue.ortvalue_from_numpy(value))
        neighbours = Neighbours()
        timing: dict[str, Any] = {"threads": threads, "round_us": ROUND_US, "warm_us": WARM_US, "pause_us": PAUSE_US}
        ours = Contestant([lambda inputs=inputs: compiled.run_tensors(*inputs)], 1, **timing)
        other = Contestant([lambda binding=binding: session.run_with_iobinding(binding)], 1, **timing)
        alternate([ours, other], judged=2, most_rounds=400, seconds=seconds, precision=0.01)
        times = [o / b for o, b in zip(ours.rounds, other.rounds, strict=True)]
        records.append(
            {
                "cell": cell,
                "dtype": dtype,
                "threads": threads,
                "ours_us": median(ours.rounds),
                "onnxruntime_us": median(other.rounds),
                "ratio": median(ratios(ours, other)),
                "time": median(times),
                "quartiles": quartiles(times),
                "difference": difference,
                "compiling_s": compiling,
                "others": neighbours.share(),
            }
        )
        print(line(records[-1]), file=sys.stderr, flush=True)
    return records


def line(r: dict[str, Any]) -> str:
    """One cell in words."""
    low, high = r["quartiles"]
    others = f"; DISTURBED: other processes used {r['others']:.0%}" if (r["others"] or 0) > DISTURBED else ""
    return (
        f"{r['cell']} {r['dtype']} {r['threads']}: {r['ours_us'] / 1000:.2f} ms, {r['time']:.2f} "
        f"({low:.2f} to {high:.2f}) times onnxruntime's {r['onnxruntime_us'] / 1000:.2f} ms; "
        f"difference {r['difference']:.1e}, compiled in {r['compiling_s']:.1f} s{others}"
    )


def table(records: Sequence[dict[str, Any]], *, markdown: bool) -> str:
    """How many times as fast as onnxruntime: by cell, and the geometric mean."""
    groups = collections.defaultdict(dict)
    for r in records:
        groups[r["dtype"], r["threads"]][r["cell"]] = r["ratio"]
    cells = list(dict.fromkeys(r["cell"] for r in records))
    header = ["times as fast", *(f"{dtype}, {threads} thread{'s' * (threads > 1)}" for dtype, threads in groups)]
    rows = [[c, *(f"{g[c]:.2f}" if c in g else "-" for g in groups.values())] for c in cells]
    rows.append(["geometric mean", *(f"{summary.geometric_mean(list(g.values())):.2f}" for g in groups.values())])
    return summary.table(header, rows, markdown=markdown)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = record_files.parser_of("tvm_models", __doc__, "text that the cell contains: 'llama', '32 of', 'vit'")
    parser.add_argument("--threads", type=numbers, default=[1, 2], help="of both sides (default: 1,2)")
    parser.add_argument("--seconds", type=float, default=8.0, help="for a cell, about, at most (default: 8)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or summarise; print the summary."""
    chosen = parse(arguments)
    if chosen.summary:
        print(table(record_files.read(chosen.summary), markdown=chosen.markdown))
        return 0
    if len(chosen.threads) > 1:
        records = []
        given = list(sys.argv[1:] if arguments is None else arguments)
        with tempfile.TemporaryDirectory() as folder:
            for threads in chosen.threads:
                part = Path(folder) / f"{threads}.json"
                command = [sys.executable, "-m", "benchmarks.tvm_models", *given]
                subprocess.run(
                    [*command, "--threads", str(threads), "--json", str(part)], check=True, stdout=sys.stderr
                )
                records += json.loads(part.read_text())
    else:
        records = measured(chosen)
    if chosen.json:
        chosen.json.write_text(json.dumps(records, indent=1) + "\n")
    print(table(records, markdown=chosen.markdown))
    return 0


def measured(chosen: argparse.Namespace) -> list[Any]:
    """The records of one number of threads."""
    import onnx

    (threads,) = chosen.threads
    os.environ["TVM_NUM_THREADS"] = str(threads)  # TVM reads it when it starts
    records = []
    with pinned(threads):
        for dtype in chosen.dtype:
            for make, cells in models(dtype, chosen.only).values():
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "model.onnx"
                    onnx.save(make(), path)
                    records += measure(path, cells, dtype, threads, chosen.seconds, Path(folder) / "compiled")
    return records


if __name__ == "__main__":
    sys.exit(main())
