"""Whole models compiled by TVM for a GPU: products by cuBLAS against TVM's own, and both against onnxruntime's results.

    python -m benchmarks.gpu.models [--dtype float16,float32] [--only llama] [--seconds 2] [--json OUT]

Needs a GPU, TVM, nvcc, cuBLAS, onnx and onnxruntime (for a CPU is enough). The models are those of
``benchmarks.tvm_models``. With ``--target llvm`` the same runs on a CPU, OpenBLAS in place of cuBLAS.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

MISSING = 4
MOST_OFF = {"float32": 1e-3, "float16": 2e-2}
"""Of the largest value of an output."""


def milliseconds(run: Callable[[], None], seconds: float) -> float:
    """The median of calls, each to its end."""
    run()
    times: list[float] = []
    stop = time.perf_counter() + seconds
    while not times or time.perf_counter() < stop:
        started = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


def difference(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest, of the largest value of its output; no number is infinitely far off."""
    parts = [
        float(np.max(np.abs(f.astype(float) - w)) / max(1e-9, np.max(np.abs(w.astype(float)))))
        for f, w in zip(found, wanted, strict=True)
    ]
    return max(math.inf if math.isnan(part) else part for part in parts)


def measured(path: Path, cells: Sequence[str], dtype: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Each cell of one model, with each library."""
    import onnxruntime as ort
    import tvm

    from benchmarks.tvm_models import feeds_of
    from rmsnorm_deploy.tvm import compile as compile_model
    from rmsnorm_deploy.tvm import load

    device = tvm.runtime.device("cpu" if given.target == "llvm" else given.target)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    records = []
    for blas in (None, "none"):
        folder = path.parent / f"compiled-{blas}"
        made = compile_model(path, given.target, output=folder, blas=blas, arch=given.arch)
        compiled = load(folder)
        for cell in cells:
            feeds = feeds_of(cell, dtype)
            inputs = [tvm.runtime.tensor(feeds[i["name"]], device) for i in compiled.description["inputs"]]
            found = [value.numpy() for value in compiled.run_tensors(*inputs)]

            def run(compiled: Any = compiled, inputs: Any = inputs) -> None:
                compiled.run_tensors(*inputs)
                device.sync()

            ms = milliseconds(run, given.seconds)
            off = difference(found, session.run(None, feeds))
            records.append({"cell": cell, "dtype": dtype, "products": made.blas, "ms": ms, "difference": off})
            print(f"{cell} {dtype}, products by {made.blas}: {ms:.3f} ms, difference {off:.1e}", flush=True)
    return records


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float16,float32")
    parser.add_argument("--only", default="", help="text that the cell contains: 'llama', '32 of', 'vit'")
    parser.add_argument("--seconds", type=float, default=2.0, help="for a cell")
    parser.add_argument("--target", default="cuda", choices=("cuda", "llvm"))
    parser.add_argument("--arch", help="the GPU, as in sm_90, which saves time")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the records there, too")
    given = parser.parse_args(arguments)
    import onnx

    from benchmarks.tvm_models import models
    from rmsnorm_deploy.errors import MissingEnvironment
    from rmsnorm_deploy.tvm.targets.device import device_for

    try:
        device_for(given.target)
        records = []
        for dtype in given.dtype.split(","):
            for make, cells in models(dtype, given.only).values():
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "model.onnx"
                    onnx.save(make(), path)
                    records += measured(path, cells, dtype, given)
    except MissingEnvironment as error:
        print(error, file=sys.stderr)
        return MISSING
    if given.json:
        given.json.write_text(json.dumps(records, indent=1) + "\n")
    wrong = [r for r in records if not r["difference"] <= MOST_OFF[r["dtype"]]]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
