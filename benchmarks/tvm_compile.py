"""What compiling with TVM takes: this project's path, TVM's own on the same unfused model, and what the norms add.

    python -m benchmarks.tvm_compile [MODEL...] [--repeat 3] [--json OUT]

    norm        a model of one norm (4096 features, any number of rows), from the file to the folder
    ours        `rmsnorm_deploy.tvm.compile`: fusing, importing, compiling and linking
    without     the same model with each norm replaced by a product with its scale
    stock       `from_onnx`, TVM's default pipeline for the target, compiling and linking; the model is not fused

Seconds are wall clock, the median of --repeat, in turns, in one process that has TVM loaded and warmed up. Nothing else
should run meanwhile. Without MODEL the samples are taken.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import tvm
from onnx import ModelProto, TensorProto, helper
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

import rmsnorm_deploy
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.tvm import compile as compile_model
from rmsnorm_deploy.tvm.targets.resolve import resolve, this_cpu

SAMPLES = Path(__file__).parent.parent / "samples" / "models"


def one_norm() -> ModelProto:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("RMSNormalization", ["x", "w"], ["y"], epsilon=1e-6)],
        "one_norm",
        [info("x", TensorProto.FLOAT, ("rows", 4096)), info("w", TensorProto.FLOAT, (4096,))],
        [info("y", TensorProto.FLOAT, ("rows", 4096))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def without_norms(path: Path) -> ModelProto:
    """The model fused, each norm then replaced by a product with its scale; wrong, but as large."""
    model, _ = rmsnorm_deploy.fuse(path)
    nodes = []
    for i, node in enumerate(model.graph.node):
        scale = f"benchmark_scale_{i}"
        if node.domain != DOMAIN:
            nodes.append(node)
            continue
        nodes.append(helper.make_node("CastLike", [node.input[len(node.output)], node.input[0]], [scale]))
        if node.op_type == "AddRMSNorm":
            nodes.append(helper.make_node("Add", node.input[:2], [node.output[1]]))
            nodes.append(helper.make_node("Mul", [node.output[1], scale], [node.output[0]]))
        else:
            nodes.append(helper.make_node("Mul", [node.input[0], scale], node.output[:1]))
    del model.graph.node[:], model.functions[:]
    model.graph.node.extend(nodes)
    return model


def ours(model: Any, folder: Path) -> None:
    compile_model(model, output=folder / "compiled")


def stock(path: Path, folder: Path) -> None:
    target = resolve("llvm")
    with target, warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        module = from_onnx(onnx.load(path))
        relax.build(module, target=target, relax_pipeline=relax.get_default_pipeline(target)).export_library(
            str(folder / "stock.so")
        )


def seconds(work: Callable[[Path], None]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        work(Path(folder))
        return time.perf_counter() - started


def medians(works: dict[str, Callable[[Path], None]], repeat: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeat):
        for name, work in works.items():
            taken[name].append(seconds(work))
    return {name: round(statistics.median(values), 3) for name, values in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds that compiling with TVM takes.")
    parser.add_argument("models", nargs="*", type=Path, help="ONNX files; the samples by default")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the numbers there")
    arguments = parser.parse_args()
    norm = one_norm()
    seconds(lambda folder: ours(norm, folder))  # the first compilation of a process pays for TVM's own start
    single = medians({"norm": lambda folder: ours(norm, folder)}, arguments.repeat)["norm"]
    print(f"TVM {tvm.__version__}, {this_cpu()}; one norm: {single:.2f} s")
    print(f"{'model':40} {'ours':>6} {'without':>8} {'norms add':>10} {'stock':>6} {'times as fast':>13}")
    rows = []
    for path in arguments.models or sorted(SAMPLES.glob("*.onnx")):
        bare = without_norms(path)
        found = medians(
            {
                "ours": lambda folder, path=path: ours(path, folder),
                "without": lambda folder, bare=bare: ours(bare, folder),
                "stock": lambda folder, path=path: stock(path, folder),
            },
            arguments.repeat,
        )
        rows.append({"model": path.stem, **found})
        added = found["ours"] / found["without"] - 1
        print(
            f"{path.stem:40} {found['ours']:6.2f} {found['without']:8.2f} {added:10.1%} {found['stock']:6.2f} "
            f"{found['stock'] / found['ours']:13.2f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"norm": single, "models": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
