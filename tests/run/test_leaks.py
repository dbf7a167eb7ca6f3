"""Sessions that come and go, as in a server that loads models on demand: nothing of them stays."""

import subprocess
import sys
from pathlib import Path

import pytest

SESSIONS = """
import gc, sys, numpy as np, onnx, onnxruntime as ort, rmsnorm_deploy
from onnx import TensorProto, helper
from tests.run.test_leaks import resident
count, override, many = int(sys.argv[1]), sys.argv[2] == "override", sys.argv[3] == "threads"
norm = "SimplifiedLayerNormalization" if override else "RMSNorm"
domain, version = ("", 17) if override else ("rmsnorm_deploy", 1)
graph = helper.make_graph(
    [helper.make_node(norm, ["x", "w"], ["y"], domain=domain, **({} if override else {"axes": [-1]}))],
    "g",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 64])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 64])],
    [helper.make_tensor("w", TensorProto.FLOAT, [64], [1.0] * 64)],
)
imports = [helper.make_opsetid("", 17), helper.make_opsetid("rmsnorm_deploy", 1)]
data = helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()
x = np.ones((2, 64), np.float32)

def once():
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2 if many else 1
    opened = rmsnorm_deploy.session(data, options, override_builtin=override)
    assert np.allclose(opened.run(None, {"x": x})[0], 1, atol=1e-4)

for k in range(count):
    if k == count // 2:
        before = resident()
    once()
gc.collect()
print((resident() - before) / (count - count // 2))
"""


def resident():
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    import resource

    return pages * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("count", "library", "threads", "most"),
    # a page now and then is the allocator's; the memory of threads that end is reused, but not at once
    [(3000, "ours", "alone", 2048), (3000, "override", "alone", 2048), (800, "override", "threads", 4096)],
)
def test_a_session_leaves_nothing_behind(count, library, threads, most):
    done = subprocess.run(
        [sys.executable, "-c", SESSIONS, str(count), library, threads],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) < most
