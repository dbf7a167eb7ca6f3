"""Norms that end in 8 bits: one operator beside our norm and onnxruntime's: ``python -m benchmarks.quantised``.

Three sessions on one thread, in turn, in one process: the operator that does both; our RMSNorm (or AddRMSNorm) followed
by onnxruntime's QuantizeLinear or DynamicQuantizeLinear; and that operator of onnxruntime alone, which is what would be
left if the norm took no time at all. A small model holds the norm 16 times, side by side, so that what a session costs
by itself counts little.

``--compare`` counts the bytes in which the first two differ instead, in so many values.
"""

import argparse
import sys

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_deploy
from benchmarks.placed import contestant, cpu_session
from benchmarks.timing import alternate, median, quartiles, ratios
from rmsnorm_deploy.op import DOMAIN, NormParameters, Op, function_body

ALSO = ["quantizers"]

ROWS, SIZES = (1, 16, 512), (128, 1024, 4096)
KINDS = ("DynamicQuantizeLinear", "QuantizeLinear")
F = TensorProto.FLOAT
SIDE_BY_SIDE, FEW_VALUES = 16, 65536
"""How many norms are in a model for rows of at most so many values together; else one."""


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


def feeds_of(given, rows, size, seed=0):
    rng = np.random.default_rng(seed)
    return {i.name: rng.standard_normal((rows, size)).astype(np.float32) for i in given.graph.input}


def alone(kind, size, times):
    """``times`` times onnxruntime's operator, of one Y."""
    given = model(kind, size, False, times)
    kept = [node for node in given.graph.node if node.op_type == kind]
    for node in kept:
        node.input[0] = "y"
    del given.graph.node[:], given.graph.input[:]
    unused = [each for each in given.graph.initializer if each.name == "w"]
    given.graph.initializer.remove(unused[0])
    given.graph.node.extend(kept)
    given.graph.input.append(helper.make_tensor_value_info("y", F, ["n", size]))
    return given


def measure(options):
    for kind in KINDS:
        found, least = [], []
        for residual in (False, True):
            for size in SIZES:
                for rows in ROWS:
                    times = SIDE_BY_SIDE if rows * size <= FEW_VALUES else 1
                    pair = model(kind, size, residual, times)
                    models = [rmsnorm_deploy.fuse(pair, also=ALSO)[0], pair, alone(kind, size, times)]
                    one, both, end = (contestant(cpu_session(each), rows, size, times) for each in models)
                    alternate(
                        [one, both, end], judged=2, most_rounds=options.rounds, seconds=options.seconds, precision=0.005
                    )
                    found.append(median(ratios(one, both)))
                    least.append(median(ratios(both, end)))
                    low, high = quartiles(ratios(one, both))
                    sys.stdout.write(
                        f"{'Add' * residual}RMSNorm and {kind}, {rows} x {size}: {found[-1]:.2f} ({low:.2f} to "
                        f"{high:.2f}) times as fast, {1 / found[-1]:.2f} of the time; {kind} alone {least[-1]:.2f} "
                        f"({median(one.rounds):.2f} us)\n"
                    )
                    sys.stdout.flush()
        mean, end = (float(np.exp(np.log(each).mean())) for each in (found, least))
        sys.stdout.write(
            f"{kind}, geometric mean: {mean:.2f} times as fast, {1 / mean:.2f} of the time; {kind} alone {end:.2f}\n"
        )


def compare(values):
    """Bytes that differ, of about so many values of each kind."""
    rows = 499
    for kind in KINDS:
        for residual in (False, True):
            differing = total = 0
            for size in SIZES:
                given = model(kind, size, residual, 1)
                sessions = [cpu_session(given), cpu_session(rmsnorm_deploy.fuse(given, also=ALSO)[0], threads=2)]
                for seed in range(1 + values // (rows * sum(SIZES))):
                    feeds = feeds_of(given, rows, size, seed)
                    (a, *_), (b, *_) = (s.run(None, feeds) for s in sessions)
                    differing += int(np.count_nonzero(a != b))
                    total += a.size
            sys.stdout.write(f"{'Add' * residual}RMSNorm and {kind}: {differing} of {total} bytes differ\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="rounds of a case at most (default 60)")
    parser.add_argument("--seconds", type=float, default=1.0, help="for a case, about, at most (default 1)")
    parser.add_argument("--compare", type=int, metavar="VALUES", help="such as 10000000")
    options = parser.parse_args()
    if options.compare:
        compare(options.compare)
    else:
        measure(options)
