"""Sessions that come and go: ``python -m tests.support.sessions COUNT ours|override alone|threads``.

Prints by how many bytes the process has grown since half of them, for each session and in all.
"""

import gc
import resource
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

import rmsnorm_deploy


def resident():
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main(count, library, threads):
    override = library == "override"
    norm = "SimplifiedLayerNormalization" if override else "RMSNorm"
    domain = "" if override else "rmsnorm_deploy"
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
    before = 0
    for k in range(count):
        if k == count // 2:
            gc.collect()
            before = resident()
        options = ort.SessionOptions()
        options.intra_op_num_threads = 2 if threads == "threads" else 1
        opened = rmsnorm_deploy.session(data, options, override_builtin=override)
        assert np.allclose(opened.run(None, {"x": x})[0], 1, atol=1e-4)
    del opened, options
    gc.collect()
    grown = resident() - before
    sys.stdout.write(f"{grown / (count - count // 2)} {grown}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
