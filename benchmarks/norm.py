"""One norm: our operators against onnxruntime's own fused ones, in one process, turn and turn about.

    python -m benchmarks.norm --json norm.json

For every case two sessions are made that differ in the node alone, and are timed alternately for many rounds, so that a
machine that becomes slower meanwhile slows both. Small tensors run through a chain of nodes, which divides the cost of
one call among them. With one thread the clock is the thread's own CPU time; with more it is the wall clock.

`ratio` is the median over rounds of baseline / ours: above 1, ours is faster. `floor_us` is the time of plain copies
that move as many bytes as the norm reads and writes at least.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from rmsnorm_deploy import op, runtime

SHAPES = [(1, 896), (1, 4096), (16, 128), (16, 896), (16, 4096), (512, 128), (512, 896), (512, 4096)]
DTYPES = {"float32": (TensorProto.FLOAT, np.float32), "float16": (TensorProto.FLOAT16, np.float16)}
BASELINES = {op.Op.RMS_NORM: "SimplifiedLayerNormalization", op.Op.ADD_RMS_NORM: "SkipSimplifiedLayerNormalization"}
EPSILON = 1e-6
CHAIN = 16
CHAIN_ELEMENTS = 65536  # tensors up to this size run in a chain
MICROSECONDS_A_ROUND = 2000


def make_node(kind: op.Op, ours: bool, data_type: int, previous: str, index: int) -> Any:
    """A node of the chain. onnxruntime's operators apply the scale in float32, so ours do here too."""
    outputs = [f"y{index}", f"s{index}"]
    inputs = [previous, "scale"] if kind is op.Op.RMS_NORM else [previous, "residual", "scale"]
    if ours:
        parameters = op.NormParameters(kind, data_type, epsilon=EPSILON, scale_type=TensorProto.FLOAT)
        outputs = outputs[: len(kind.outputs)]
        return helper.make_node(kind.value, inputs, outputs, domain=op.DOMAIN, **parameters.to_attributes())
    if kind is op.Op.RMS_NORM:
        return helper.make_node(BASELINES[kind], inputs, outputs[:1], axis=-1, epsilon=EPSILON, stash_type=1)
    names = [outputs[0], "", "", outputs[1]]
    return helper.make_node(BASELINES[kind], inputs, names, domain="com.microsoft", epsilon=EPSILON)


def make_session(
    kind: op.Op, ours: bool, shape: tuple[int, int], dtype: str, length: int, threads: int
) -> tuple[Any, Any]:
    """A session of a chain of ``length`` nodes, and a binding with its inputs in place."""
    data_type, numpy_type = DTYPES[dtype]
    rng = np.random.default_rng(0)
    nodes, previous = [], "X"
    for i in range(length):
        nodes.append(make_node(kind, ours, data_type, previous, i))
        previous = f"y{i}"
    scale = (rng.random(shape[1]) + 0.5).astype(numpy_type)
    names = ["X"] if kind is op.Op.RMS_NORM else ["X", "residual"]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info(name, data_type, shape) for name in names],
        [helper.make_tensor_value_info(previous, data_type, shape)],
        [helper.make_tensor("scale", data_type, [shape[1]], scale.tobytes(), raw=True)],
    )
    opsets = [helper.make_opsetid(d, v) for d, v in (("", 18), (op.DOMAIN, op.VERSION), ("com.microsoft", 1))]
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    if ours:
        runtime.register(options)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name in names:
        binding.bind_cpu_input(name, rng.standard_normal(shape).astype(numpy_type))
    binding.bind_output(previous)
    return session, binding


class Timed:
    """Something to run, with the time of each round."""

    def __init__(self, run: Any, nodes: int, threads: int) -> None:
        self.run, self.nodes = run, nodes
        self.clock = time.thread_time_ns if threads == 1 else time.perf_counter_ns
        self.rounds: list[float] = []
        self.calls = 1
        for _ in range(3):
            self.round()
        self.calls = max(1, int(MICROSECONDS_A_ROUND / max(0.1, self.rounds[-1] * nodes)))
        self.rounds.clear()

    def round(self) -> None:
        start = self.clock()
        for _ in range(self.calls):
            self.run()
        self.rounds.append((self.clock() - start) / 1000 / self.calls / self.nodes)


def spread(values: list[float]) -> list[float]:
    """The quartiles that the median lies between."""
    return [round(float(q), 3) for q in np.quantile(values, [0.25, 0.75])]


def measure(kind: op.Op, shape: tuple[int, int], dtype: str, threads: int, rounds: int) -> dict[str, Any]:
    """One record: ours and the baseline alternately, then the floor."""
    length = CHAIN if shape[0] * shape[1] <= CHAIN_ELEMENTS else 1
    timed = []
    for ours in (True, False):
        session, binding = make_session(kind, ours, shape, dtype, length, threads)
        timed.append(Timed(lambda s=session, b=binding: s.run_with_iobinding(b), length, threads))
    source = np.ones((len(kind.outputs), *shape), DTYPES[dtype][1])
    target = np.empty_like(source)
    timed.append(Timed(lambda: np.copyto(target, source), 1, threads))
    for i in range(rounds):
        for one in timed if i % 2 else reversed(timed):
            one.round()
    ours, baseline, floor = (one.rounds for one in timed)
    if len(ours) != rounds:
        raise AssertionError("rounds were lost")
    ratios = [b / a for a, b in zip(ours, baseline, strict=True)]
    return {
        "case": f"{kind.value} {shape[0]}x{shape[1]}",
        "dtype": dtype,
        "threads": threads,
        "ours_us": round(float(np.median(ours)), 3),
        "ours_spread_us": spread(ours),
        "baseline": BASELINES[kind],
        "baseline_us": round(float(np.median(baseline)), 3),
        "baseline_spread_us": spread(baseline),
        "ratio": round(float(np.median(ratios)), 3),
        "ratio_spread": spread(ratios),
        "floor_us": round(float(np.median(floor)), 3),
    }


def main() -> int:
    """Measure every case; print a table, and write the records where asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.norm", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the records to this file")
    parser.add_argument("--rounds", type=int, default=60, help="rounds for each case (default: 60)")
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads of both sessions (default: 1)")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    arguments = parser.parse_args()
    records = []
    print(f"onnxruntime {ort.__version__}, {platform.machine()}", file=sys.stderr)
    print(f"{'case':22} {'dtype':8} {'ours us':>9} {'theirs us':>9} {'ratio':>6} {'quartiles':>14} {'floor us':>9}")
    for kind in BASELINES:
        for dtype in DTYPES:
            for shape in SHAPES:
                if arguments.only not in f"{kind.value} {shape[0]}x{shape[1]}":
                    continue
                record = measure(kind, shape, dtype, arguments.threads, arguments.rounds)
                records.append(record)
                low, high = record["ratio_spread"]
                print(
                    f"{record['case']:22} {dtype:8} {record['ours_us']:9.2f} {record['baseline_us']:9.2f} "
                    f"{record['ratio']:6.2f} {low:6.2f} - {high:4.2f} {record['floor_us']:9.2f}",
                    flush=True,
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(records, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
