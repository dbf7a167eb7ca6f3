"""What a call with arrays costs beside one with TVM's own tensors, and how long a folder takes to load.

    python -m benchmarks.tvm_calls [--inputs 1,4,57] [--weights 2.4] [--json OUT]

A call: a model that gives each of its inputs back as a copy, so that nearly all of the time is the call. Each number of
inputs is run with 8 values in each, in turns: `f({name: array})`, `run_tensors`, and `f.tensors` with tensors.
Microseconds, the median of the quickest fifth.

--weights also makes and loads a folder with so many GB of weights, of which the file is sparse where the file system
can: seconds to load it, and the memory that this process and then a second one need for it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tvm as apache_tvm
from onnx import TensorProto, helper

from rmsnorm_deploy import tvm
from rmsnorm_deploy.tvm.artefact import description as describing

CALLS, ROUNDS = 50, 200
LOADED = """
import sys, time
import tvm.relax
from rmsnorm_deploy import tvm
tvm.load
start = time.perf_counter()
f = tvm.load(sys.argv[1])
taken = time.perf_counter() - start
said = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(taken, said["RssAnon"].split()[0], said["RssFile"].split()[0])
"""


def copies(count: int) -> Any:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Neg", [f"x{i}"], [f"y{i}"]) for i in range(count)],
        "g",
        [info(f"x{i}", TensorProto.FLOAT, (1, 2, "n", 2)) for i in range(count)],
        [info(f"y{i}", TensorProto.FLOAT, None) for i in range(count)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def calls(count: int, folder: Path) -> dict[str, Any]:
    tvm.compile(copies(count), output=folder)
    f = tvm.load(folder)
    arrays = {f"x{i}": np.ones((1, 2, 2, 2), np.float32) for i in range(count)}
    tensors = {name: apache_tvm.runtime.tensor(a) for name, a in arrays.items()}
    ways: dict[str, Callable[[], Any]] = {
        "arrays": lambda: f(arrays),
        "run_tensors": lambda: f.run_tensors(*tensors.values()),
        "tensors": lambda: f.tensors(tensors),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, call in ways.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - start) / CALLS * 1e6)
    best = {name: statistics.median(sorted(t)[: ROUNDS // 5]) for name, t in times.items()}
    return {"inputs": count, **best, "more": best["arrays"] - best["run_tensors"]}


def loading(gigabytes: float, folder: Path) -> dict[str, Any]:
    """A folder whose weights are mostly holes, as large as asked for."""
    info = helper.make_tensor_value_info
    value = np.ones((256, 256), np.float32)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [info("x", TensorProto.FLOAT, (256, 256))],
        [info("y", TensorProto.FLOAT, (256, 256))],
        [helper.make_tensor("w", TensorProto.FLOAT, value.shape, value.tobytes(), raw=True)],
    )
    tvm.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), output=folder)
    said = describing.read(folder)
    said["weights"]["tensors"].append([[int(gigabytes * 1e9) - 300000], "uint8", 300000])
    with (folder / describing.WEIGHTS).open("r+b") as file:
        file.truncate(int(gigabytes * 1e9))
    del said["sha256"]
    said["weights"]["bytes"] = int(gigabytes * 1e9)
    describing.write(folder, said)
    result: dict[str, Any] = {"gigabytes": gigabytes}
    for which in ("first", "second"):
        done = subprocess.run([sys.executable, "-c", LOADED, folder], capture_output=True, text=True, check=True)
        seconds, anonymous, mapped = map(float, done.stdout.split())
        result[which] = {"seconds": seconds, "own MB": anonymous / 1e3, "mapped MB": mapped / 1e3}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", default="1,4,57", help="numbers of inputs")
    parser.add_argument("--weights", type=float, help="GB of weights of a folder to load")
    parser.add_argument("--json", type=Path, help="write the results there")
    options = parser.parse_args()
    results: dict[str, Any] = {"calls": []}
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'inputs':>6} {'arrays':>8} {'run_tensors':>12} {'tensors':>8} {'more':>6}   microseconds")
        for count in map(int, options.inputs.split(",")):
            found = calls(count, Path(folder) / str(count))
            results["calls"].append(found)
            print(
                f"{count:6} {found['arrays']:8.1f} {found['run_tensors']:12.1f} {found['tensors']:8.1f} "
                f"{found['more']:6.1f}"
            )
        if options.weights:
            results["loading"] = loading(options.weights, Path(folder) / "large")
            print(json.dumps(results["loading"], indent=1))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
