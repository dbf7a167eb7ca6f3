"""Norms that end in 8 bits: one operator beside our norm and onnxruntime's: ``python -m benchmarks.quantised``.

Two sessions on one thread, in turn, in one process: our RMSNorm (or AddRMSNorm) followed by onnxruntime's
QuantizeLinear or DynamicQuantizeLinear, and the operator that does both. A model holds the norm several times, side by
side, so that what a session costs by itself does not count. Each number says how many times as fast the one is.

``--compare`` counts the bytes in which the two differ instead, in so many values.
"""

import argparse
import sys
import time

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_deploy
from rmsnorm_deploy.op import DOMAIN, NormParameters, Op, function_body

ALSO = ["quantizers"]

ROWS, SIZES = (1, 16, 512), (128, 1024, 4096)
KINDS = ("DynamicQuantizeLinear", "QuantizeLinear")
F = TensorProto.FLOAT


def model(kind, size, residual, times):
    """``times`` norms of one X, each quantised."""
    op = Op.ADD_RMS_NORM if residual else Op.RMS_NORM
    attributes = NormParameters(op, F, epsilon=1e-6).to_attributes()
    given = ["x", "r", "w"] if residual else ["x", "w"]
    nodes, outputs = [], []
    for i in range(times):
        made = [f"y{i}", f"sum{i}"][: len(op.outputs)]
        nodes.append(helper.make_node(op.value, given, made, f"norm{i}", domain=DOMAIN, **attributes))
        to, into = TensorProto.INT8, [f"y{i}", "s", "z"]
        results = [f"q{i}"]
        if kind == KINDS[0]:
            to, into, results = TensorProto.UINT8, into[:1], [f"q{i}", f"s{i}", f"z{i}"]
        nodes.append(helper.make_node(kind, into, results, f"quantise{i}"))
        outputs.append(helper.make_tensor_value_info(f"q{i}", to, ["n", size]))
        outputs += [helper.make_tensor_value_info(name, F, ["n", size]) for name in made[1:]]
    weights = [numpy_helper.from_array(np.linspace(0.5, 2, size).astype(np.float32), "w")]
    if kind == KINDS[1]:
        weights.append(numpy_helper.from_array(np.array(0.02, np.float32), "s"))
        weights.append(numpy_helper.from_array(np.array(5, np.int8), "z"))
    inputs = [helper.make_tensor_value_info(name, F, ["n", size]) for name in given[:-1]]
    return helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, weights),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)],
        functions=[function_body(op, 18)],
        ir_version=9,
    )


def session(given, threads=1):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    rmsnorm_deploy.register(options)
    return ort.InferenceSession(given.SerializeToString(), options, providers=["CPUExecutionProvider"])


def feeds_of(given, rows, size, seed=0):
    rng = np.random.default_rng(seed)
    return {i.name: rng.standard_normal((rows, size)).astype(np.float32) for i in given.graph.input}


def bound(made, feeds):
    """A call of a session with all of its tensors in place."""
    binding = made.io_binding()
    rows = next(iter(feeds.values())).shape[0]
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(value))
    kinds = {"tensor(int8)": np.int8, "tensor(uint8)": np.uint8, "tensor(float)": np.float32}
    for output in made.get_outputs():
        value = np.empty((rows, output.shape[1]), kinds[output.type])
        binding.bind_ortvalue_output(output.name, ort.OrtValue.ortvalue_from_numpy(value))
    return lambda: made.run_with_iobinding(binding)


def seconds(calls, repeats):
    """The least time of each call, taken in turn."""
    least = [float("inf")] * len(calls)
    for _ in range(repeats):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            least[i] = min(least[i], time.perf_counter() - start)
    return least


def measure(repeats, times):
    for kind in KINDS:
        found = []
        for residual in (False, True):
            for size in SIZES:
                given = model(kind, size, residual, times)
                sessions = [session(given), session(rmsnorm_deploy.fuse(given, also=ALSO)[0])]
                for rows in ROWS:
                    feeds = feeds_of(given, rows, size)
                    calls = [bound(s, feeds) for s in sessions]
                    pair, one = seconds(calls, max(5, repeats // (1 + rows * size // 65536)))
                    found.append(pair / one)
                    sys.stdout.write(
                        f"{'Add' * residual}RMSNorm and {kind}, {rows} x {size}: {pair / one:.2f} times as fast "
                        f"({1e6 * one / times:.2f} us)\n"
                    )
        mean = float(np.exp(np.log(found).mean()))
        sys.stdout.write(f"{kind}, geometric mean: {mean:.2f} times as fast ({1 / mean:.2f} of the time)\n")


def compare(values):
    """Bytes that differ, of about so many values of each kind."""
    rows = 499
    for kind in KINDS:
        for residual in (False, True):
            differing = total = 0
            for size in SIZES:
                given = model(kind, size, residual, 1)
                sessions = [session(given), session(rmsnorm_deploy.fuse(given, also=ALSO)[0], 2)]
                for seed in range(1 + values // (rows * sum(SIZES))):
                    feeds = feeds_of(given, rows, size, seed)
                    (a, *_), (b, *_) = (s.run(None, feeds) for s in sessions)
                    differing += int(np.count_nonzero(a != b))
                    total += a.size
            sys.stdout.write(f"{'Add' * residual}RMSNorm and {kind}: {differing} of {total} bytes differ\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--times", type=int, default=8, help="norms in one model (default 8)")
    parser.add_argument("--compare", type=int, metavar="VALUES", help="such as 10000000")
    options = parser.parse_args()
    if options.compare:
        compare(options.compare)
    else:
        measure(options.repeats, options.times)
