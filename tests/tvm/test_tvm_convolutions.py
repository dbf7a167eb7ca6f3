"""Convolutions of CPU models by kernels of ours, against onnxruntime."""

import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")
pytest.importorskip("scipy_openblas32", reason="scipy-openblas32 is not installed: pip install '.[tvm]'")

from rmsnorm_deploy import tvm
from tests.support.tvm.dumped import compile_and_dump

KINDS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}

CASES = {
    "1-D": ((2, 4, 20), (6, 4, 3), {"pads": [1, 1]}),
    "1-D, every other": ((1, 4, 21), (6, 4, 3), {"pads": [1, 0], "strides": [2]}),
    "1-D, dilated": ((2, 4, 20), (6, 4, 3), {"pads": [3, 5], "dilations": [4], "strides": [2]}),
    "pads beyond the kernel": ((1, 2, 3), (3, 2, 2), {"pads": [5, 4], "strides": [3]}),
    "2-D": ((2, 4, 9, 11), (6, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    "2-D, uneven": ((1, 4, 9, 12), (6, 4, 3, 2), {"pads": [1, 0, 2, 3], "strides": [2, 1], "dilations": [1, 2]}),
    "SAME_UPPER": ((1, 3, 8, 9), (4, 3, 3, 2), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "SAME_LOWER": ((1, 3, 8, 9), (4, 3, 3, 2), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    "VALID": ((1, 3, 8, 9), (4, 3, 3, 2), {"auto_pad": "VALID"}),
    "patches": ((2, 3, 12, 16), (5, 3, 4, 4), {"strides": [4, 4]}),
    "wide steps": ((1, 3, 19, 23), (5, 3, 5, 5), {"strides": [3, 4]}),
    "one place": ((2, 8, 6, 5), (7, 8, 1, 1), {}),
    "one place of every other": ((2, 8, 6, 5), (7, 8, 1, 1), {"strides": [2, 2]}),
    "one place in groups": ((2, 8, 6, 5), (12, 4, 1, 1), {"group": 2}),
    "groups": ((2, 16, 9, 8), (16, 8, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    "3-D": ((1, 2, 5, 6, 7), (3, 2, 2, 3, 2), {"pads": [1, 0, 1, 0, 2, 1], "strides": [2, 1, 2]}),
    "long rows": ((1, 2, 3, 1500), (3, 2, 3, 3), {"pads": [1, 1, 1, 1]}),
    "no images": ((0, 2, 8), (3, 2, 3), {}),
}


def model_of(nodes, inputs, weights, kind="float32"):
    """A model of ``nodes`` whose results are all those whose names begin with y."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, list(read), [name], **attributes) for op, read, name, attributes in nodes],
        "g",
        [info(name, KINDS[kind], shape) for name, shape in inputs.items()],
        [info(name, KINDS[kind], None) for _, _, name, _ in nodes if name.startswith("y")],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def random(*shape, kind="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(kind)


def computed(model, folder, feeds, **options):
    """What the compiled model gives, what onnxruntime gives, by name; and the compiled functions as text."""
    onnx.save(model, folder / "m.onnx")
    compile_and_dump(folder, "name_functions", **options)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    others = dict(zip((o.name for o in session.get_outputs()), session.run(None, feeds), strict=True))
    (last,) = (folder / "ir").glob("*_name_functions.py")
    return tvm.load(folder / "c")(feeds), others, last.read_text()


def all_of(cases, op, biased=True, kind="float32", known=True):
    """A model with a node for each case, and what to feed it."""
    nodes, weights, feeds, sizes = [], {}, {}, {}
    for i, (x, w, attributes) in enumerate(cases.values()):
        feeds[f"x{i}"], weights[f"w{i}"] = random(*x, kind=kind, seed=i), random(*w, kind=kind, seed=100 + i)
        results = w[0] if op == "Conv" else w[1] * attributes.get("group", 1)
        weights[f"b{i}"] = random(results, kind=kind, seed=200 + i)
        sizes[f"x{i}"] = x if known else [f"n{i}", x[1], *(f"s{i}_{k}" for k in range(len(x) - 2))]
        nodes.append((op, [f"x{i}", f"w{i}", *([f"b{i}"] if biased else [])], f"y{i}", attributes))
    return model_of(nodes, sizes, weights, kind), feeds


def assert_same(got, others, cases, most):
    assert len(got) == len(cases)
    for i, name in enumerate(cases):
        y, other = got[f"y{i}"], others[f"y{i}"]
        assert y.shape == other.shape, name
        assert y.dtype == other.dtype
        scale = abs(other.astype(np.float32)).max(initial=1)
        assert abs(y.astype(np.float32) - other).max(initial=0) <= most * scale, name


DIRECT = {
    "causal": ((2, 6, 40), (6, 1, 4), {"group": 6, "pads": [3, 0]}),
    "causal, cut": ((2, 6, 40), (6, 1, 4), {"group": 6, "pads": [3, 3]}),
    "by depth": ((2, 5, 9, 70), (5, 1, 3, 3), {"group": 5, "pads": [1, 1, 1, 1]}),
    "by depth, every other": ((1, 5, 9, 12), (5, 1, 3, 3), {"group": 5, "pads": [1, 1, 0, 1], "strides": [2, 2]}),
    "dilated": ((1, 4, 9, 12), (8, 1, 3, 2), {"group": 4, "pads": [2, 1, 2, 0], "dilations": [2, 3]}),
    "small groups": ((1, 6, 9, 12), (4, 3, 3, 3), {"group": 2}),
    "3-D": ((1, 3, 4, 5, 20), (3, 1, 2, 3, 3), {"group": 3, "pads": [1, 1, 1, 0, 1, 1]}),
    "no images": ((0, 2, 8), (2, 1, 3), {"group": 2}),
}


@pytest.mark.parametrize(("kind", "known"), [("float32", True), ("float32", False), ("float16", True)])
def test_groups_of_few_channels(tmp_path, kind, known):
    model, feeds = all_of(DIRECT, "Conv", kind=kind, known=known)
    got, others, text = computed(model, tmp_path, feeds, blas="none")
    assert_same(got, others, DIRECT, 2e-6 if kind == "float32" else 2e-3)
    assert text.count("def convolution_") == len(DIRECT)


BACK = {
    "1-D": ((2, 6, 20), (6, 4, 3), {"strides": [2], "pads": [1, 0]}),
    "1-D, all": ((1, 6, 20), (6, 4, 3), {}),
    "enlarged": ((2, 6, 5, 7), (6, 4, 2, 2), {"strides": [2, 2]}),
    "2-D": ((1, 6, 5, 40), (6, 12, 3, 4), {"strides": [1, 1], "pads": [1, 2, 1, 0]}),
    "output_padding": ((2, 6, 5, 7), (6, 4, 3, 3), {"strides": [2, 3], "pads": [1, 1, 1, 1], "output_padding": [1, 2]}),
    "dilated": ((1, 6, 5, 7), (6, 4, 3, 2), {"dilations": [2, 3], "strides": [2, 1]}),
    "groups": ((2, 6, 5, 7), (6, 9, 3, 3), {"group": 2, "strides": [2, 2]}),
    "steps beyond the kernel": ((1, 2, 5), (2, 3, 2), {"strides": [3]}),
    "3-D": ((1, 2, 3, 4, 5), (2, 3, 2, 3, 2), {"strides": [2, 1, 2], "pads": [0, 1, 1, 1, 1, 0]}),
}


@pytest.mark.parametrize(("kind", "known"), [("float32", True), ("float32", False), ("float16", True)])
def test_transposed_convolutions(tmp_path, kind, known):
    model, feeds = all_of(BACK, "ConvTranspose", kind=kind, known=known)
    got, others, text = computed(model, tmp_path, feeds)
    assert_same(got, others, BACK, 2e-6 if kind == "float32" else 2e-3)
    assert text.count("def product_transposed_convolution_") == len(BACK)


FEW = {name: CASES[name] for name in ("1-D, every other", "2-D, uneven", "patches", "one place", "groups")}


@pytest.mark.parametrize(
    ("cases", "kind", "known"), [(CASES, "float32", True), (FEW, "float32", False), (FEW, "float16", True)]
)
def test_every_form_of_a_convolution(tmp_path, cases, kind, known):
    model, feeds = all_of(cases, "Conv", kind=kind, known=known)
    got, others, text = computed(model, tmp_path, feeds)
    assert_same(got, others, cases, 2e-6 if kind == "float32" else 2e-3)
    assert text.count("def product_convolution_") >= len(cases) - 2  # equal ones share a kernel
    assert not any(f"def {name}" in text for name in ("conv1d", "conv2d", "conv3d"))


def test_without_a_library_tvm_computes_them(tmp_path):
    cases = {"2-D": CASES["2-D"]}
    model, feeds = all_of(cases, "Conv", biased=False)
    got, others, text = computed(model, tmp_path, feeds, blas="none")
    assert_same(got, others, cases, 2e-6)
    assert "product_" not in text


def test_a_kernel_that_is_an_input(tmp_path):
    x, w = random(1, 4, 30), random(6, 4, 3, seed=1)
    nodes = [("Conv", ["x", "w"], "y0", {"pads": [1, 1]})]
    got, others, text = computed(model_of(nodes, {"x": x.shape, "w": w.shape}, {}), tmp_path, {"x": x, "w": w})
    assert_same(got, others, ["w"], 2e-6)
    assert "product_convolution_" in text


def test_what_is_no_number_stays_where_it_is(tmp_path):
    x = random(1, 3, 40)
    x[0, 1, 20], x[0, 2, 5] = np.nan, np.inf
    model, _ = all_of({"1": ((1, 3, 40), (4, 3, 3), {"pads": [1, 1]})}, "Conv")
    got, others, _ = computed(model, tmp_path, {"x0": x})
    np.testing.assert_array_equal(np.isnan(got["y0"]), np.isnan(others["y0"]))
    np.testing.assert_array_equal(np.isinf(got["y0"]), np.isinf(others["y0"]))
    assert np.isnan(got["y0"]).sum() == 12


RUN = """
import sys
import numpy as np
from rmsnorm_deploy import tvm
x = np.load(sys.argv[2])
sys.stdout.buffer.write(tvm.load(sys.argv[1])({"x0": x})["y0"].tobytes())
"""


def test_every_number_of_threads_gives_the_same_bits(tmp_path):
    model, feeds = all_of({"2-D": ((2, 8, 70, 71), (16, 8, 3, 3), {"pads": [1, 1, 1, 1]})}, "Conv")
    got, _, text = computed(model, tmp_path, feeds)
    assert "parallel" in text
    np.save(tmp_path / "x.npy", feeds["x0"])
    found = {got["y0"].tobytes()}
    for threads in ("1", "3"):
        command = [sys.executable, "-c", RUN, tmp_path / "c", tmp_path / "x.npy"]
        environment = {"TVM_NUM_THREADS": threads, "PATH": "", "OPENBLAS_NUM_THREADS": "4"}
        found.add(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)
    assert len(found) == 1
