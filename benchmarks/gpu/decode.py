"""Whole decoding steps in onnxruntime: as exported, and with our norms; each with and without CUDA graphs.

    python -m benchmarks.gpu.decode LIBRARY --json decode.json

The model is one token of a decoder with norms of its queries and keys, its attention over the past left out, so that
norms and what surrounds them are what there is. Weights are random, and everybody has the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.steps import save

MISSING = 4
CUDA = "CUDAExecutionProvider"
ROUNDS, RUNS = 15, 20
MOST_DIFFERENCE = 0.05  # of the largest output: float16 through all layers


@dataclasses.dataclass(frozen=True)
class Size:
    """Of the decoder: features, layers, heads, features of a head, and of the part between."""

    hidden: int
    layers: int
    heads: int
    head: int
    between: int


FULL, SMALL = Size(1024, 8, 8, 128, 3072), Size(64, 2, 2, 32, 128)


def decoder(size: Size, dtype: str) -> Any:
    """The step as an exporter writes it: norms in float32, of standard operators."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    kind = {"float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT}[dtype]
    rng = np.random.default_rng(0)
    nodes: list[Any] = []
    weights: list[Any] = []

    def constant(values: Any) -> str:
        name = f"w{len(weights)}"
        weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def op(kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    two, epsilon, last = constant(np.float32(2)), constant(np.float32(1e-6)), constant(np.int64([-1]))

    def norm(x: str, features: int) -> str:
        scale = constant(rng.uniform(0.5, 1.5, features).astype(dtype))
        wide = op("Cast", x, to=TensorProto.FLOAT)
        mean = op("ReduceMean", op("Pow", wide, two), last, keepdims=1)
        normal = op("Div", wide, op("Sqrt", op("Add", mean, epsilon)))
        return op("Mul", scale, op("Cast", normal, to=kind))

    def matrix(x: str, rows: int, columns: int) -> str:
        return op("MatMul", x, constant((rng.standard_normal((rows, columns)) / rows**0.5).astype(dtype)))

    def heads(x: str) -> str:
        shaped = op("Reshape", x, constant(np.int64([1, size.heads, size.head])))
        return op("Reshape", norm(shaped, size.head), constant(np.int64([1, size.heads * size.head])))

    x, width = "x", size.heads * size.head
    for _ in range(size.layers):
        given = norm(x, size.hidden)
        queries, keys, values = (matrix(given, size.hidden, width) for _ in range(3))
        mixed = op("Mul", op("Sigmoid", op("Mul", heads(queries), heads(keys))), values)
        x = op("Add", x, matrix(mixed, width, size.hidden))
        given = norm(x, size.hidden)
        gate = op("Sigmoid", matrix(given, size.hidden, size.between))
        x = op("Add", x, matrix(op("Mul", gate, matrix(given, size.hidden, size.between)), size.between, size.hidden))
    nodes.append(helper.make_node("Identity", [norm(x, size.hidden)], ["y"], name="y"))
    ends = [[helper.make_tensor_value_info(name, kind, [1, size.hidden])] for name in ("x", "y")]
    graph = helper.make_graph(nodes, "step", *ends, initializer=weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return model


class Step:
    """One session of one model, on the device's memory."""

    def __init__(self, name: str, session: Any, x: np.ndarray, provider: str) -> None:
        ort = importlib.import_module("onnxruntime")
        self.name, self.session = name, session
        device = "cuda" if provider == CUDA else "cpu"
        self.x, self.y = (ort.OrtValue.ortvalue_from_numpy(np.array(a), device, 0) for a in (x, np.zeros_like(x)))
        self.binding = session.io_binding()
        self.binding.bind_ortvalue_input("x", self.x)
        self.binding.bind_ortvalue_output("y", self.y)
        self.samples: list[float] = []
        for _ in range(3):  # a graph is captured in one of them
            session.run_with_iobinding(self.binding)

    def sample(self) -> None:
        start = time.perf_counter()
        for _ in range(RUNS):
            self.session.run_with_iobinding(self.binding)
        self.samples.append((time.perf_counter() - start) * 1e6 / RUNS)


def sessions(provider: str, original: bytes, fused: bytes, x: np.ndarray) -> tuple[list[Step], list[str]]:
    """Those that can be opened, and a sentence for each that cannot."""
    ort = importlib.import_module("onnxruntime")
    ours = importlib.import_module("rmsnorm_deploy")
    found, notes = [], []
    for graph in (False, True) if provider == CUDA else (False,):
        options = [{"enable_cuda_graph": "1"} if graph else {}]
        behind = ", CUDA graph" if graph else ""
        for name, open_ in (
            ("as exported", lambda o: ort.InferenceSession(original, providers=[provider], provider_options=o)),
            ("our norms", lambda o: ours.session(fused, providers=[provider], provider_options=o)),
        ):
            try:
                found.append(Step(name + behind, open_(options), x, provider))
            except Exception as error:  # whatever onnxruntime raises
                notes.append(f"{name}{behind}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:300])
    return found, notes


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)  # which the environment names too
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--provider", default=CUDA)
    parser.add_argument("--quick", action="store_true", help="a small model")
    given = parser.parse_args(arguments)
    end = time.monotonic() + given.seconds
    for package in ("onnxruntime", "onnx", "onnx_ir", "ml_dtypes"):
        try:
            importlib.import_module(package)
        except ImportError:
            print(f"{package} is not installed")
            return MISSING
    if given.provider not in importlib.import_module("onnxruntime").get_available_providers():
        print("this onnxruntime has no CUDA provider; install onnxruntime-gpu")
        return MISSING
    from rmsnorm_deploy import fuse

    ort = importlib.import_module("onnxruntime")
    if given.provider == CUDA and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()  # CUDA's libraries from where pip has put them, PyTorch's too
    dtype = "float16" if given.provider == CUDA else "float32"
    model = decoder(SMALL if given.quick else FULL, dtype)
    fused, report = fuse(model)
    features = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    x = np.random.default_rng(1).standard_normal((1, features)).astype(dtype)
    steps, notes = sessions(given.provider, model.SerializeToString(), fused.SerializeToString(), x)
    if not steps:
        print(f"no session opens: {'; '.join(notes)}")
        return 1
    rounds = 0
    while rounds < 3 or (rounds < ROUNDS and time.monotonic() < end):
        for step in steps[rounds % len(steps) :] + steps[: rounds % len(steps)]:
            step.sample()
        rounds += 1
    truth = steps[0].y.numpy().astype(np.float64)
    records = []
    for step in steps:
        off = float(np.abs(step.y.numpy().astype(np.float64) - truth).max() / np.abs(truth).max())
        us = statistics.median(step.samples)
        records.append(
            {"name": step.name, "us": us, "spread_us": statistics.quantiles(step.samples, n=4)[::2], "off": off}
        )
    fused_norms = len(report.fused)
    save(
        given.json,
        {"norms": fused_norms, "dtype": dtype, "provider": given.provider, "records": records, "notes": notes},
    )
    for note in notes:
        print(note)
    wrong = [r["name"] for r in records if not r["off"] <= MOST_DIFFERENCE]
    if wrong:
        print(f"other numbers than as exported: {', '.join(wrong)}")
        return 1
    print(f"{fused_norms} norms; " + ", ".join(f"{r['name']} {r['us']:.0f} us" for r in records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
