"""How much memory `bench` and `verify` take, as a multiple of a model's weights: python -m benchmarks.memory [MIB]"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

WIDTH = 2048

CHILD = """
import sys, onnxruntime, rmsnorm_deploy
rmsnorm_deploy.fuse
def most():
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith("VmHWM"))
what, path, fused, weights = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
before = most()
shapes = {"x": (1, int(sys.argv[5]))}
if what == "bench":
    rmsnorm_deploy.bench(path, shapes=shapes, seconds=0.5)
else:
    rmsnorm_deploy.verify(path, fused, shapes=shapes)
print(f"{what}: {(most() - before) / weights:.2f} times the weights")
"""


def model(layers):
    """Norms with a square matrix behind each."""
    rng = np.random.default_rng(0)
    tensors = [numpy_helper.from_array(np.float32(v), n) for n, v in (("two", 2), ("eps", 1e-5))]
    nodes = []
    for i in range(layers):
        weight = (rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
        tensors += [numpy_helper.from_array(weight, f"w{i}"), numpy_helper.from_array(np.ones(WIDTH, "f"), f"g{i}")]
        nodes += [
            helper.make_node("Pow", [f"x{i}" if i else "x", "two"], [f"s{i}"]),
            helper.make_node("ReduceMean", [f"s{i}"], [f"m{i}"], axes=[-1]),
            helper.make_node("Add", [f"m{i}", "eps"], [f"a{i}"]),
            helper.make_node("Sqrt", [f"a{i}"], [f"r{i}"]),
            helper.make_node("Div", [f"x{i}" if i else "x", f"r{i}"], [f"d{i}"]),
            helper.make_node("Mul", [f"d{i}", f"g{i}"], [f"n{i}"]),
            helper.make_node("MatMul", [f"n{i}", f"w{i}"], [f"x{i + 1}"]),
        ]
    value = helper.make_tensor_value_info
    ends = [value("x", 1, ["n", WIDTH])], [value(f"x{layers}", 1, ["n", WIDTH])]
    graph = helper.make_graph(nodes, "layers", *ends, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def main():
    import rmsnorm_deploy

    layers = max(int(sys.argv[1]) if len(sys.argv) > 1 else 384, 16) // 16
    with tempfile.TemporaryDirectory() as folder:
        path, fused = Path(folder) / "m.onnx", Path(folder) / "f.onnx"
        onnx.save(model(layers), path, save_as_external_data=True, location="m.data")
        rmsnorm_deploy.save(rmsnorm_deploy.fuse(path)[0], fused, source=path)
        for what in ("bench", "verify"):
            size = str((Path(folder) / "m.data").stat().st_size)
            subprocess.run([sys.executable, "-c", CHILD, what, path, fused, size, str(WIDTH)], check=True)


if __name__ == "__main__":
    main()
