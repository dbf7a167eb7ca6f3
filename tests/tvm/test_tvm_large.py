"""Large models: weights are once in memory while a model is compiled, and mapped, not read, where it runs."""

import json
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

from rmsnorm_deploy import tvm
from rmsnorm_deploy.errors import ModelError, UsageError
from rmsnorm_deploy.tvm.artefact import description as describing

HEADS = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def with_weights(folder, weights, *, location="w.bin", dtype=np.float32, extra=()):
    """A model that adds up its weights, each in the file beside it, and gives the last one's rows by number."""
    folder.mkdir(parents=True, exist_ok=True)
    info, number = helper.make_tensor_value_info, helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes, tensors, last = [], [], "x"
    with (folder / location).open("wb") as file:
        for i, weight in enumerate(weights):
            nodes.append(helper.make_node("Add", [last, f"w{i}"], [f"s{i}"]))
            last = f"s{i}"
            tensor = TensorProto(name=f"w{i}", data_type=number, dims=weight.shape)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", location), ("offset", file.tell()), ("length", weight.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            file.write(weight.tobytes())
            tensors.append(tensor)
    nodes += [helper.make_node("Identity", [last], ["y"]), *extra]
    graph = helper.make_graph(
        nodes, "g", [info("x", number, weights[0].shape)], [info("y", number, weights[0].shape)], tensors
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(proto, folder / "m.onnx")
    return proto


@pytest.mark.parametrize("dtype", HEADS)
def test_weights_come_from_their_files_bit_by_bit(tmp_path, dtype):
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((40, 64)).astype(HEADS[dtype]) for _ in range(3)]
    with_weights(tmp_path, weights, dtype=HEADS[dtype])
    tvm.compile(tmp_path / "m.onnx", output=tmp_path / "c")
    got = tvm.load(tmp_path / "c")({"x": np.zeros((40, 64), HEADS[dtype])})["y"]
    wanted = sum(w.astype(float) for w in weights)  # TVM may round between them, or not
    np.testing.assert_allclose(got.astype(float), wanted, atol=0.1 if dtype == "bfloat16" else 1e-2)
    kept = (tmp_path / "c" / "model.params").read_bytes()
    assert all(w.tobytes() in kept for w in weights)
    assert len(kept) < sum(w.nbytes for w in weights) + 4 * 64


def test_weights_inside_the_model_and_of_objects(tmp_path):
    weights = [np.arange(2560, dtype=np.float32).reshape(40, 64)] * 2
    with_weights(tmp_path / "outside", weights)
    inside = onnx.load(tmp_path / "outside" / "m.onnx")
    before = inside.SerializeToString()
    for name, model in (("inside", inside), ("path", tmp_path / "outside" / "m.onnx")):
        tvm.compile(model, output=tmp_path / name)
        got = tvm.load(tmp_path / name)({"x": np.ones((40, 64), np.float32)})["y"]
        np.testing.assert_array_equal(got, 1 + 2 * weights[0])
    assert inside.SerializeToString() == before
    with pytest.raises(UsageError, match="unknown folder"):
        tvm.compile(onnx.load(tmp_path / "outside" / "m.onnx", load_external_data=False), output=tmp_path / "none")


def test_an_initializer_that_is_an_input_and_an_output_too(tmp_path):
    """As before IR version 4 each had to be an input; it is none of the compiled model."""
    weight = np.arange(2560, dtype=np.float32).reshape(40, 64)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [info("x", 1, (40, 64)), info("w", 1, (40, 64))],
        [info("y", 1, (40, 64)), info("w", 1, (40, 64))],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=3)
    tvm.compile(made, output=tmp_path / "c")
    got = tvm.load(tmp_path / "c")({"x": np.ones((40, 64), np.float32)})
    np.testing.assert_array_equal(got["w"], weight)
    np.testing.assert_array_equal(got["y"], weight + 1)
    got["w"][...] = 0  # a copy of what is mapped
    np.testing.assert_array_equal(tvm.load(tmp_path / "c")({"x": np.ones((40, 64), np.float32)})["w"], weight)


def test_weights_that_only_a_branch_uses(tmp_path):
    info, weight = helper.make_tensor_value_info, np.arange(2560, dtype=np.float32).reshape(40, 64)
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, ["x", "w"], [name])], name, [], [info(name, 1, (40, 64))]
        )
        for name, op in (("then", "Add"), ("else", "Sub"))
    }
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], **branches)],
        "g",
        [info("c", TensorProto.BOOL, ()), info("x", 1, (40, 64))],
        [info("y", 1, (40, 64))],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    tvm.compile(made, output=tmp_path / "c")
    f, x = tvm.load(tmp_path / "c"), np.ones((40, 64), np.float32)
    np.testing.assert_array_equal(f({"c": np.array(True), "x": x})["y"], 1 + weight)
    np.testing.assert_array_equal(f({"c": np.array(False), "x": x})["y"], 1 - weight)


@pytest.mark.parametrize("change", ["missing", "short", "outside", "link", "inside short"])
def test_weights_that_cannot_be_read_are_refused(tmp_path, change):
    weights = [np.ones((40, 64), np.float32)] * 2
    proto = with_weights(tmp_path / "m", weights)
    file = tmp_path / "m" / "w.bin"
    if change == "missing":
        file.unlink()
    elif change == "short":
        file.write_bytes(file.read_bytes()[:-1])
    elif change == "link":
        file.rename(tmp_path / "other.bin")
        file.symlink_to(tmp_path / "other.bin")
    elif change == "outside":
        file.rename(tmp_path / "w.bin")
        for tensor in proto.graph.initializer:
            tensor.external_data[0].value = "../w.bin"
        onnx.save(proto, tmp_path / "m" / "m.onnx")
    else:
        inside = onnx.load(tmp_path / "m" / "m.onnx")
        inside.graph.initializer[0].raw_data = inside.graph.initializer[0].raw_data[:-4]
        onnx.save(inside, tmp_path / "m" / "m.onnx")
    with pytest.raises(ModelError, match="w"):
        tvm.compile(tmp_path / "m" / "m.onnx", output=tmp_path / "c")
    assert not (tmp_path / "c").exists()


COMPILES = """
import sys
from rmsnorm_deploy import tvm
tvm.compile  # TVM is loaded
peak = lambda: int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
before = peak()
tvm.compile(sys.argv[1], output=sys.argv[2])
print(before, peak())
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")  # noqa: PTH110
def test_compiling_takes_the_weights_once(tmp_path):
    """What else it takes, 100 MB or so, does not depend on them."""
    peaks = {}
    for rows in (1 << 10, 1 << 14):
        folder = tmp_path / str(rows)
        with_weights(folder, [np.full((rows, 256), i, np.float32) for i in range(6)])
        command = [sys.executable, "-c", COMPILES, folder / "m.onnx", folder / "c"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[rows * 256 * 4 * 6] = int(done.stdout.split()[1])
    (small, a), (large, b) = peaks.items()
    assert large - small > 90e6
    assert b - a < 1.3 * (large - small)


RUNS = """
import sys, numpy as np
from rmsnorm_deploy import tvm
f = tvm.load(sys.argv[1])
x = np.zeros((1 << 14, 256), np.float32)
y = f({"x": x})["y"]
assert (y == 15).all()
print("ready", flush=True)
sys.stdin.readline()
"""


def kilobytes_of(process, file, *kinds):
    """Of the pages of a process that are of a file, from the system's list."""
    total, inside = dict.fromkeys(kinds, 0), False
    with open(f"/proc/{process}/smaps") as lines:  # noqa: PTH123
        for line in lines:
            key = line.split()[0]
            if not key.endswith(":"):
                inside = line.rstrip().endswith(file)
            elif inside and key[:-1] in kinds:
                total[key[:-1]] += int(line.split()[1])
    return total


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="needs /proc")  # noqa: PTH110
def test_processes_share_the_pages_of_weights(tmp_path):
    with_weights(tmp_path, [np.full((1 << 14, 256), i, np.float32) for i in range(6)])
    tvm.compile(tmp_path / "m.onnx", output=tmp_path / "c")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RUNS, tmp_path / "c"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        assert [p.stdout.readline() for p in processes] == ["ready\n"] * 2
        for process in processes:
            found = kilobytes_of(process.pid, "model.params", "Rss", "Pss", "Private_Dirty")
            assert found["Rss"] > 90_000
            assert found["Pss"] < 0.6 * found["Rss"]
            assert found["Private_Dirty"] == 0
    finally:
        for process in processes:
            process.communicate("\n")


def grown(folder, size):
    """The folder's weights made ``size`` bytes large, by a hole and a weight that lies in it."""
    said = describing.read(folder)
    with (folder / "model.params").open("r+b") as file:
        file.truncate(size)
    del said["sha256"]
    said["weights"]["bytes"] = size
    describing.write(folder, said)


def test_many_weights_are_loaded_without_reading_them(tmp_path):
    """8 GB, more than any machine of the tests reads in time; most of it is a hole."""
    with_weights(tmp_path, [np.full((64, 256), i, np.float32) for i in range(6)])
    tvm.compile(tmp_path / "m.onnx", output=tmp_path / "c")
    grown(tmp_path / "c", 8_000_000_000)
    x = np.zeros((64, 256), np.float32)
    np.testing.assert_array_equal(tvm.load(tmp_path / "c")({"x": x})["y"], np.full((64, 256), 15))
    grown(tmp_path / "c", 1_000_000)
    with pytest.raises(ModelError, match="other bytes"):  # small enough to be compared with the hash
        tvm.load(tmp_path / "c")
    np.testing.assert_array_equal(tvm.load(tmp_path / "c", verify_weights=False)({"x": x})["y"], x + 15)


@pytest.mark.parametrize(
    "tensor",
    [[[64, 256], "float32", 2**40], [[2**40, 256], "float32", 64], [[64, 256], "float77", 64], [[64], "object", 64]],
    ids=["place", "shape", "type", "no numbers"],
)
def test_a_description_of_weights_that_are_not_there(tmp_path, tensor):
    with_weights(tmp_path, [np.ones((64, 256), np.float32)])
    tvm.compile(tmp_path / "m.onnx", output=tmp_path / "c")
    said = json.loads((tmp_path / "c" / "model.json").read_text())
    del said["sha256"]
    said["weights"]["tensors"] = [tensor]
    describing.write(tmp_path / "c", said)
    with pytest.raises(ModelError):
        tvm.load(tmp_path / "c")
