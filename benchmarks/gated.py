"""GatedRMSNorm beside onnxruntime's nodes for the same norm and gate: ``python -m benchmarks.gated``.

Three sessions on one thread, in turn, in one process: the model as exporters write it; ours; and our RMSNorm with the
gate left to onnxruntime. Each number says how many times as fast GatedRMSNorm is.
"""

import argparse
import sys
import time

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_deploy

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


def session(given, *, ours):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if ours:
        rmsnorm_deploy.register(options)
    return ort.InferenceSession(given.SerializeToString(), options, providers=["CPUExecutionProvider"])


def bound(made, feeds, y):
    binding = made.io_binding()
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("y", y)
    return lambda: made.run_with_iobinding(binding)


def seconds(calls, repeats):
    """The least time of each call, taken in turn."""
    least = [float("inf")] * len(calls)
    for _ in range(repeats):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            for _ in range(8):
                call()
            least[i] = min(least[i], time.perf_counter() - start)
    return least


def main(repeats):
    for place in (0, 2):
        for kind in TYPES:
            found = []
            for size in SIZES:
                given = model(size, kind, place)
                fused, _ = rmsnorm_deploy.fuse(given, also=["gates"])
                sessions = [session(given, ours=False), session(fused, ours=True)]
                sessions.append(session(rmsnorm_deploy.fuse(given)[0], ours=True))
                for rows in ROWS:
                    shape, dtype = (rows, size), np.float32 if kind == "float32" else np.float16
                    data = {n: np.random.default_rng(0).standard_normal(shape).astype(dtype) for n in "xz"}
                    values = {n: ort.OrtValue.ortvalue_from_numpy(v) for n, v in data.items()}
                    y = ort.OrtValue.ortvalue_from_numpy(np.empty(shape, dtype))
                    calls = [bound(s, values, y) for s in sessions]
                    theirs, own, beside = seconds(calls, max(5, repeats // (1 + rows * size // 65536)))
                    found.append((theirs / own, beside / own))
                    sys.stdout.write(
                        f"place {place} {kind} {rows} x {size}: {theirs / own:.2f} times as fast as onnxruntime's, "
                        f"{beside / own:.2f} as our RMSNorm and its gate\n"
                    )
            means = np.exp(np.log(found).mean(axis=0))
            sys.stdout.write(f"place {place} {kind}, geometric mean: {means[0]:.2f}, {means[1]:.2f}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    main(**vars(parser.parse_args()))
