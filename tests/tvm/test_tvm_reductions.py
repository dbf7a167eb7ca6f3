"""Reductions of CPU models by kernels of ours: as exact as onnxruntime, with the same special values."""

import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

from rmsnorm_deploy import tvm
from tests.support.tvm.dumped import compile_and_dump

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
    compile_and_dump(folder, "name_functions")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    others = dict(zip((o.name for o in session.get_outputs()), session.run(None, feeds), strict=True))
    (last,) = (folder / "ir").glob("*_name_functions.py")
    return tvm.load(folder / "c")(feeds), others, last.read_text()


def assert_as_exact(got, other, exact):
    """``got`` is as near to the exact values as ``other`` is, or within two units of its last digit."""
    assert got.shape == exact.shape
    assert got.dtype == other.dtype
    with np.errstate(over="ignore"):
        finite = np.isfinite(exact.astype(got.dtype))
    np.testing.assert_array_equal(np.isfinite(got), finite)
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


# sizes of whole vectors, with a rest, and of less than one
SHAPES = [
    *(((3, 7, 131), -1), ((5, 1), 1), ((4, 33), 0), ((2, 7, 70), 1), ((70, 999), -1), ((0, 4), 1)),
    *(((2, 64), -1), ((3, 16), 1), ((3, 8), 1), ((2, 128), -1), ((3, 64), 0)),
]


@pytest.mark.parametrize(("kind", "known"), [("float32", True), ("float32", False), ("float16", True)])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax(tmp_path, op, kind, known):
    # a kernel for any size takes several times as long to compile
    shapes = SHAPES if known else SHAPES[:6]
    nodes = [(op, [f"x{i}"], f"y{i}", {"axis": axis}) for i, (_, axis) in enumerate(shapes)]
    feeds = {f"x{i}": random(*shape, kind=kind, seed=i) for i, (shape, _) in enumerate(shapes)}
    sizes = {name: x.shape if known else [f"{name}_{i}" for i in range(x.ndim)] for name, x in feeds.items()}
    results = [f"y{i}" for i in range(len(shapes))]
    got, others, text = computed(model_of(nodes, sizes, kind=kind, results=results), tmp_path, feeds)
    for i, (_, axis) in enumerate(shapes):
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


# -- sums, means and extremes -----------------------------------------------------------------------------------------

EXACT = {
    "ReduceSum": lambda x, axes: x.sum(axes, keepdims=True),
    "ReduceMean": lambda x, axes: x.mean(axes, keepdims=True),
    "ReduceSumSquare": lambda x, axes: (x * x).sum(axes, keepdims=True),
    "ReduceL2": lambda x, axes: np.sqrt((x * x).sum(axes, keepdims=True)),
    "ReduceMax": lambda x, axes: x.max(axes, keepdims=True, initial=-np.inf),
    "ReduceMin": lambda x, axes: x.min(axes, keepdims=True, initial=np.inf),
}
FOLDED = [
    ((3, 5, 200), (2,)),
    ((3, 5, 40), (1,)),
    ((2, 3, 70), (0, 1)),
    ((3, 4, 50), None),
    ((2, 9000), (-1,)),
    ((4, 7, 3), (1,)),
    ((3, 64), (1,)),
    ((64, 64), (0,)),
    ((2, 3, 4), (0, 2)),  # not neighbours: left to TVM
]


@pytest.mark.parametrize(("kind", "known"), [("float32", True), ("float32", False), ("float16", True)])
@pytest.mark.parametrize("ops", [list(EXACT)[:3], list(EXACT)[3:]])
def test_sums_and_extremes(tmp_path, ops, kind, known):
    nodes, feeds, weights, exact = [], {}, {}, {}
    cases = FOLDED if known else FOLDED[1::2]  # a kernel for any size takes several times as long to compile
    for i, (op, (shape, axes)) in enumerate((op, case) for op in ops for case in cases):
        feeds[f"x{i}"] = random(*shape, kind=kind, seed=i) + np.asarray(1, kind)
        weights[f"a{i}"] = np.asarray(axes or (), np.int64)
        nodes.append((op, [f"x{i}", f"a{i}"], f"y{i}", {"keepdims": i % 2}))
        value = EXACT[op](feeds[f"x{i}"].astype(np.float64), axes)
        exact[f"y{i}"] = value if i % 2 else value.squeeze(axes)
    sizes = {name: x.shape if known else [f"{name}_{i}" for i in range(x.ndim)] for name, x in feeds.items()}
    model = model_of(nodes, sizes, weights, kind=kind, results=tuple(exact))
    got, others, text = computed(model, tmp_path, feeds)
    for name, value in exact.items():
        assert_as_exact(got[name], others[name], value)
    assert ("def max_" in text and "def min_" in text) or ("def sum_of_squares_" in text and "def mean_" in text)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("last", [0, 1])
def test_the_place_of_an_extreme(tmp_path, axis, last):
    x = np.random.default_rng(5).integers(-3, 4, (40, 77)).astype("float32")  # many equal ones
    x[0], x[:, 0], x[2, 5], x[3, 1:] = np.nan, -np.inf, np.nan, np.nan
    nodes = [(op, ["x"], op, {"axis": axis, "select_last_index": last}) for op in ("ArgMax", "ArgMin")]
    model = model_of(nodes, {"x": x.shape}, results=("ArgMax", "ArgMin"), result=TensorProto.INT64)
    got, _, text = computed(model, tmp_path, {"x": x})
    assert "def argmax_" in text
    assert "def argmin_" in text
    rows = x if axis else x.T
    rows = rows[:, ::-1] if last else rows
    for op, y in got.items():
        filled = np.where(np.isnan(rows), -np.inf if op == "ArgMax" else np.inf, rows)
        want = filled.argmax(1) if op == "ArgMax" else filled.argmin(1)
        some = ~np.isnan(np.take_along_axis(rows, want[:, None], 1)[:, 0])
        assert some.sum() > 30
        want = rows.shape[1] - 1 - want if last else want
        np.testing.assert_array_equal(y.ravel()[some], want[some])


def test_special_values_in_sums_and_extremes(tmp_path):
    x = random(6, 70)
    x[0, 1], x[1, -1], x[2], x[3], x[4], x[5, 0] = np.nan, np.nan, np.nan, -np.inf, np.inf, np.nan
    ops = [(op, axis) for op in ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean") for axis in (0, 1)]
    nodes = [(op, ["x" if axis else "t", f"a{axis}"], f"{op}{axis}", {}) for op, axis in ops]
    weights = {"a0": np.array([0]), "a1": np.array([1])}
    model = model_of(nodes, {"x": x.shape, "t": x.T.shape}, weights, results=[n[2] for n in nodes])
    got, others, _ = computed(model, tmp_path, {"x": x, "t": np.ascontiguousarray(x.T)})
    for name, y in got.items():
        # onnxruntime loses some values beside what is no number: only where that stands in front does it stay
        extreme = {"ReduceMax": np.fmax, "ReduceMin": np.fmin}.get(name[:-1])
        want = others[name] if extreme is None else extreme.reduce(x, axis=1).reshape(y.shape)
        np.testing.assert_allclose(y, want, rtol=1e-5)


def test_sums_keep_what_float32_loses(tmp_path):
    x = np.full((2, 100001), 0.1, "float32")
    x[:, ::2] *= -1
    x[:, 0] = 3e7
    nodes = [("ReduceSum", ["x", "a"], "y", {})]
    got, _, _ = computed(model_of(nodes, {"x": x.shape}, {"a": np.array([1])}), tmp_path, {"x": x})
    np.testing.assert_array_equal(got["y"], x.astype(np.float64).sum(1, keepdims=True).astype("float32"))


# -- norms with a mean ------------------------------------------------------------------------------------------------


def centred(x, axes, epsilon=1e-5):
    x = x.astype(np.float64)
    x = x - x.mean(axes, keepdims=True)
    return x / np.sqrt((x * x).mean(axes, keepdims=True) + epsilon)


@pytest.mark.parametrize(("kind", "known"), [("float32", True), ("float32", False), ("float16", True)])
def test_layer_norm(tmp_path, kind, known):
    cases = [((3, 5, 64), (64,)), ((2, 3, 5), (5,)), ((40, 999), (999,)), ((2, 6, 40), (1, 40)), ((2, 6, 40), ())]
    nodes, feeds, weights, exact = [], {}, {}, {}
    for i, (shape, of_scale) in enumerate(cases):
        feeds[f"x{i}"] = random(*shape, kind=kind, seed=i) + np.asarray(20, kind)
        weights[f"w{i}"], weights[f"b{i}"] = (random(*of_scale, kind=kind, seed=i + n) for n in (10, 20))
        nodes.append(("LayerNormalization", [f"x{i}", f"w{i}", *([f"b{i}"] if i else [])], f"y{i}", {"axis": -1}))
        exact[f"y{i}"] = centred(feeds[f"x{i}"], -1) * weights[f"w{i}"] + (weights[f"b{i}"] if i else 0)
    sizes = {name: x.shape if known else ["n", *x.shape[1:]] for name, x in feeds.items()}
    if not known:
        sizes = {name: [f"{name}_{i}" for i in range(len(s) - 1)] + [s[-1]] for name, s in sizes.items()}
    model = model_of(nodes, sizes, weights, kind=kind, results=tuple(exact))
    got, others, text = computed(model, tmp_path, feeds)
    for name, value in exact.items():
        assert_as_exact(got[name], others[name], value)
    assert text.count("def layer_norm_") == 4  # two cases are the same
    assert "rsqrt" not in text


@pytest.mark.parametrize(("kind", "known"), [("float32", True), ("float32", False), ("float16", True)])
def test_norms_of_channels(tmp_path, kind, known):
    x, z = random(2, 6, 5, 7, kind=kind), random(3, 6, 64, kind=kind, seed=1)
    weights = {"w": random(6, kind=kind, seed=2), "b": random(6, kind=kind, seed=3)}
    nodes = [("InstanceNormalization", ["x", "w", "b"], "y0", {}), ("InstanceNormalization", ["z", "w", "b"], "y1", {})]
    nodes += [("GroupNormalization", ["x", "w", "b"], "y2", {"num_groups": 2})]
    sizes = {"x": x.shape, "z": z.shape} if known else {"x": ("n", 6, "h", "w"), "z": ("m", 6, "l")}
    model = model_of(nodes, sizes, weights, kind=kind, opset=21, results=("y0", "y1", "y2"))
    got, others, text = computed(model, tmp_path, {"x": x, "z": z})
    w, b = (weights[n].astype(np.float64) for n in "wb")
    exact = {
        "y0": centred(x, (2, 3)) * w[:, None, None] + b[:, None, None],
        "y1": centred(z, 2) * w[:, None] + b[:, None],
        "y2": centred(x.reshape(2, 2, 3, 5, 7), (2, 3, 4)).reshape(x.shape) * w[:, None, None] + b[:, None, None],
    }
    for name, value in exact.items():
        assert_as_exact(got[name], others[name], value)
    assert text.count("def group_norm_") == 3


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
    nodes = [("Softmax", ["x"], "s", {"axis": 1}), ("Softmax", ["s"], "t", {"axis": 0})]
    nodes += [
        ("ReduceSum", ["t", "a"], "u", {}),
        ("Sub", ["t", "u"], "v", {}),
        ("LayerNormalization", ["v", "w"], "y", {}),
    ]
    weights = {"a": np.array([0]), "w": random(700)}
    got, _, text = computed(model_of(nodes, {"x": x.shape}, weights), tmp_path, {"x": x})
    assert "parallel" in text
    np.save(tmp_path / "x.npy", x)
    found = {got["y"].tobytes()}
    for threads in ("1", "3"):
        command = [sys.executable, "-c", RUN, tmp_path / "c", tmp_path / "x.npy"]
        environment = {"TVM_NUM_THREADS": threads, "PATH": ""}
        found.add(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)
    assert len(found) == 1
