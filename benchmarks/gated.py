"""GatedRMSNorm beside onnxruntime's nodes for the same norm and gate: ``python -m benchmarks.gated``.

Three sessions on one thread, in turn, in one process: ours; the model as exporters write it; and our RMSNorm with the
gate left to onnxruntime. Each number says how many times as fast GatedRMSNorm is.
"""

import argparse
import sys

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_deploy
from benchmarks.placed import contestant, cpu_session
from benchmarks.timing import alternate, median, quartiles, ratios

ROWS, SIZES = (1, 16, 512), (128, 1024, 4096)
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


def model(size, kind, place):
    """Mamba2's norm (place 0), or Qwen3-Next's (place 2), as torch's exporter writes them."""
    constants = {"two": np.float32(2), "epsilon": np.float32(1e-5), "axes": np.array([-1])}
    weight = np.linspace(0.5, 2, size).astype(np.float32 if kind == "float32" else np.float16)
    nodes = []

    def op(name, *inputs, **attributes):
        nodes.append(helper.make_node(name, inputs, [f"v{len(nodes)}"], name=f"n{len(nodes)}", **attributes))
        return nodes[-1].output[0]

    def cast(value, to):
        return value if kind == "float32" else op("Cast", value, to=to)

    x, z = cast("x", TensorProto.FLOAT), cast("z", TensorProto.FLOAT)
    gate = op("Mul", z, op("Sigmoid", z))
    if place == 0:
        x = op("Mul", x, gate)
    mean = op("ReduceMean", op("Pow", x, "two"), "axes")
    y = op("Mul", x, op("Reciprocal", op("Sqrt", op("Add", mean, "epsilon"))))
    y = op("Mul", "w", cast(y, TYPES[kind]))
    if place == 2:
        y = cast(op("Mul", cast(y, TensorProto.FLOAT), gate), TYPES[kind])
    op("Identity", y)
    nodes[-1].output[0] = "y"
    infos = [helper.make_tensor_value_info(n, TYPES[kind], ["n", size]) for n in "xzy"]
    weights = [numpy_helper.from_array(np.asarray(v), n) for n, v in {**constants, "w": weight}.items()]
    graph = helper.make_graph(nodes, "g", infos[:2], infos[2:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def main(rounds, seconds):
    for place in (0, 2):
        for kind in TYPES:
            found = []
            for size in SIZES:
                given = model(size, kind, place)
                models = [rmsnorm_deploy.fuse(given, also=["gates"])[0], given, rmsnorm_deploy.fuse(given)[0]]
                sessions = [cpu_session(each, ours=each is not given) for each in models]
                for rows in ROWS:
                    three = [contestant(each, rows, size, 1) for each in sessions]
                    alternate(three, judged=3, most_rounds=rounds, seconds=seconds, precision=0.005)
                    theirs, beside = (ratios(three[0], other) for other in three[1:])
                    found.append((median(theirs), median(beside)))
                    sys.stdout.write(
                        f"place {place} {kind} {rows} x {size}: {_with_quartiles(theirs)} times as fast as "
                        f"onnxruntime's, {_with_quartiles(beside)} as our RMSNorm and its gate\n"
                    )
                    sys.stdout.flush()
            means = np.exp(np.log(found).mean(axis=0))
            sys.stdout.write(f"place {place} {kind}, geometric mean: {means[0]:.2f}, {means[1]:.2f}\n")


def _with_quartiles(values):
    low, high = quartiles(values)
    return f"{median(values):.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="rounds of a case at most (default 60)")
    parser.add_argument("--seconds", type=float, default=1.0, help="for a case, about, at most (default 1)")
    main(**vars(parser.parse_args()))
