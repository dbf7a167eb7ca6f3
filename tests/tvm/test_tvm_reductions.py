"""Reductions of CPU models by kernels of ours: as exact as onnxruntime, with the same special values."""

import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install 'rmsnorm-deploy[tvm]'")

from rmsnorm_deploy import tvm

KINDS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


def model_of(nodes, inputs, weights=(), kind="float32", opset=18, results=("y",), result=None):
    """A model of ``nodes`` with some of their results."""
    info = helper.make_tensor_value_info
    number = KINDS[kind]
    graph = helper.make_graph(
        [helper.make_node(op, list(read), [name], **attributes) for op, read, name, attributes in nodes],
        "g",
        [info(name, number, shape) for name, shape in inputs.items()],
        [info(name, result or number, None) for name in results],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in dict(weights).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def random(*shape, kind="float32", seed=0, scale=3.0):
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(kind)


def computed(model, folder, feeds):
    """What the compiled model gives, what onnxruntime gives, by name; and the compiled functions as text."""
    onnx.save(model, folder / "m.onnx")
    tvm.compile(folder / "m.onnx", output=folder / "c", dump_ir=folder / "ir")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    others = dict(zip((o.name for o in session.get_outputs()), session.run(None, feeds), strict=True))
    (last,) = (folder / "ir").glob("*_name_functions.py")
    return tvm.load(folder / "c")(feeds), others, last.read_text()


def assert_as_exact(got, other, exact):
    """``got`` is as near to the exact values as ``other`` is, or within two units of its last digit."""
    assert got.shape == exact.shape
    assert got.dtype == other.dtype
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(exact))
    finite = np.isfinite(exact)
    unit = np.spacing(np.abs(exact[finite]).astype(got.dtype)).astype(np.float64)
    error = np.abs(got[finite].astype(np.float64) - exact[finite])
    others = np.abs(other[finite].astype(np.float64) - exact[finite])
    assert np.all(error <= np.maximum(2 * unit, 1.5 * others.max(initial=0)))


def symbolic(shape):
    return [f"d{i}" for i in range(len(shape))]


# -- softmax ----------------------------------------------------------------------------------------------------------


def softmax(x, axis, log):
    x = x.astype(np.float64)
    with np.errstate(all="ignore"):
        x = x - x.max(axis, keepdims=True)
        total = np.exp(x).sum(axis, keepdims=True)
        return x - np.log(total) if log else np.exp(x) / total


SHAPES = [((3, 7, 131), -1), ((5, 1), 1), ((4, 33), 0), ((2, 7, 70), 1), ((2, 3, 5), -1), ((70, 999), -1), ((0, 4), 1)]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax(tmp_path, op, kind, known):
    nodes = [(op, [f"x{i}"], f"y{i}", {"axis": axis}) for i, (_, axis) in enumerate(SHAPES)]
    feeds = {f"x{i}": random(*shape, kind=kind, seed=i) for i, (shape, _) in enumerate(SHAPES)}
    sizes = {name: x.shape if known else [f"{name}_{i}" for i in range(x.ndim)] for name, x in feeds.items()}
    results = [f"y{i}" for i in range(len(SHAPES))]
    got, others, text = computed(model_of(nodes, sizes, kind=kind, results=results), tmp_path, feeds)
    for i, (_, axis) in enumerate(SHAPES):
        assert_as_exact(got[f"y{i}"], others[f"y{i}"], softmax(feeds[f"x{i}"], axis, op == "LogSoftmax"))
    assert text.count("softmax_") >= 2
    assert "cast" not in text  # the kernels read and write 16 bits themselves


MASKED = [
    ("Mul", ["x", "factor"], "scaled", {}),
    ("Add", ["scaled", "mask"], "masked", {}),
    ("Softmax", ["masked"], "y", {"axis": -1}),
]


MASKS = [((1, 1, 5, 37), False), ((2, 1, 1, 37), False), ((5, 37), True), ((37,), True), ((2, 3, 5, 37), False)]


@pytest.mark.parametrize(("mask", "known"), MASKS)
def test_a_factor_and_a_mask_in_front_are_part_of_the_kernel(tmp_path, mask, known):
    divides = len(mask) == 2
    nodes = [("Div", *MASKED[0][1:]), ("Add", ["mask", "scaled"], "masked", {}), MASKED[2]] if divides else MASKED
    names = ("b", "h", "q", "k")
    sizes = {"x": (2, 3, 5, 37), "mask": mask} if known else {"x": names, "mask": names[4 - len(mask) :]}
    if not known and len(mask) == 4:
        sizes["mask"] = [1 if n == 1 else name for n, name in zip(mask, names, strict=True)]
    feeds = {"x": random(2, 3, 5, 37), "mask": np.where(random(*mask, seed=1) > 2, -np.inf, 0).astype("float32")}
    model = model_of(nodes, sizes, {"factor": np.float32(0.25)})
    got, others, text = computed(model, tmp_path, feeds)
    scaled = feeds["x"].astype(np.float64) * (4 if divides else 0.25)
    assert_as_exact(got["y"], others["y"], softmax(scaled + feeds["mask"], -1, log=False))
    assert "masked_softmax_" in text
    assert not any(name in text for name in ("add", "multiply", "divide"))


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_special_values_are_those_of_onnxruntime(tmp_path, op, kind):
    most = float(np.finfo(kind).max)
    x = random(8, 40, kind=kind)
    x[0, 3], x[1, 38], x[2, 0] = np.nan, np.inf, -np.inf
    x[3], x[4], x[5], x[6, 20] = -np.inf, most, -most, most
    x[7, 1:] = -np.inf
    nodes = [(op, ["x"], "rows", {"axis": 1}), (op, ["t"], "columns", {"axis": 0})]
    model = model_of(nodes, {"x": x.shape, "t": x.T.shape}, kind=kind, results=("rows", "columns"))
    got, others, _ = computed(model, tmp_path, {"x": x, "t": np.ascontiguousarray(x.T)})
    for name, y in got.items():
        other = others[name]
        np.testing.assert_array_equal(np.isnan(y), np.isnan(other))
        np.testing.assert_array_equal(y == -np.inf, other == -np.inf)
        np.testing.assert_allclose(y.astype(np.float32), other.astype(np.float32), rtol=1e-3, atol=1e-6)
        assert np.isnan(y).any()


# -- threads ----------------------------------------------------------------------------------------------------------

RUN = """
import sys
import numpy as np
from rmsnorm_deploy import tvm
x = np.load(sys.argv[2])
sys.stdout.buffer.write(tvm.load(sys.argv[1])({"x": x})["y"].tobytes())
"""


def test_every_number_of_threads_gives_the_same_bits(tmp_path):
    x = random(301, 700)
    nodes = [("Softmax", ["x"], "s", {"axis": 1}), ("Softmax", ["s"], "y", {"axis": 0})]
    got, _, text = computed(model_of(nodes, {"x": x.shape}), tmp_path, {"x": x})
    assert "parallel" in text
    np.save(tmp_path / "x.npy", x)
    found = {got["y"].tobytes()}
    for threads in ("1", "3"):
        command = [sys.executable, "-c", RUN, tmp_path / "c", tmp_path / "x.npy"]
        environment = {"TVM_NUM_THREADS": threads, "PATH": ""}
        found.add(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)
    assert len(found) == 1
