"""Models larger than memory: only the graph is read, and the weight file is shared."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import rmsnorm_deploy
from rmsnorm_deploy.errors import ModelError
from tests.support.graphs import chain
from tests.support.spellings.graph import F, Graph, V

GIB = 2**30


def external(name, dims, location, offset, length):
    tensor = TensorProto(name=name, data_type=F, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": offset, "length": length}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def large_model(folder, layers=32, hidden=8192, size=16 * GIB):
    """A language model's skeleton whose weights are holes of a sparse file: 16 GiB that occupy no disk."""
    g = Graph()
    x = g.input("x", F, ("n", "s", hidden))
    each = size // layers
    rows = each // (4 * hidden) - 1
    for i in range(layers):
        g.initializers.append(external(f"norm{i}", [hidden], "weights.bin", i * each, 4 * hidden))
        g.initializers.append(
            external(f"up{i}", [hidden, rows], "weights.bin", i * each + 4 * hidden, 4 * hidden * rows)
        )
        y = chain(g, x, V(g, f"norm{i}", F))["y"]
        y = g.op("MatMul", y, V(g, f"up{i}", F))
        y = g.op("MatMul", y, g.op("Transpose", V(g, f"up{i}", F), perm=[1, 0]))
        x = x + y
    g.output(x, "y", ("n", "s", hidden))
    with (folder / "weights.bin").open("wb") as f:
        f.truncate(size)
    onnx.save(g.model(), folder / "m.onnx")
    return folder / "m.onnx"


PROGRAM = """
import json, sys, time
import rmsnorm_deploy
start = time.perf_counter()
fused, report = rmsnorm_deploy.fuse(sys.argv[1])
rmsnorm_deploy.save(fused, sys.argv[2], source=sys.argv[1])
seconds = time.perf_counter() - start
# getrusage would count the memory of the process that this one was forked from
mib = int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM:")).split()[1]) / 1024
print(json.dumps({"seconds": seconds, "mib": mib, "fused": len(report.fused)}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory as Linux tells it")
def test_16_gib_of_weights_are_neither_read_nor_copied(tmp_path):
    path = large_model(tmp_path)
    weights = tmp_path / "weights.bin"
    before = weights.stat()
    assert before.st_size == 16 * GIB
    out = tmp_path / "fused.onnx"
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, path, out], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    result = json.loads(run.stdout)
    assert result["fused"] == 32
    assert 20 < result["mib"] < 300
    assert result["seconds"] < 5
    after = weights.stat()
    assert (after.st_mtime_ns, after.st_size, after.st_blocks) == (before.st_mtime_ns, before.st_size, before.st_blocks)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fused.onnx", "m.onnx", "weights.bin"]
    proto = onnx.load(out, load_external_data=False)
    places = {e.value for t in proto.graph.initializer for e in t.external_data if e.key == "location"}
    assert places == {"weights.bin"}
    onnx.checker.check_model(str(out))


def test_a_model_in_one_file_over_2_gib_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "big.onnx"
    with path.open("wb") as f:
        f.write(b"\x08\x08")
        f.truncate(2 * GIB + 1)
    with pytest.raises(ModelError, match=r"2\.0 GiB in one file"):
        rmsnorm_deploy.fuse(path)


def test_a_graph_of_ten_thousand_nodes_takes_seconds():
    g = Graph()
    x = g.input("x", F, ("n", 64))
    w = g.weight(np.ones(64), F, "w")
    for _ in range(1250):
        x = chain(g, x, w)["y"]
    g.output(x, "y", ("n", 64))
    model = g.model()
    assert len(model.graph.node) == 8750
    start = time.process_time()
    fused, report = rmsnorm_deploy.fuse(model)
    assert len(report.fused) == 1250
    assert time.process_time() - start < 30
    assert len(fused.graph.node) == 1250
