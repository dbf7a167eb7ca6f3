"""Weights of products that lie in panels: every float type and number of rows, against NumPy in float64."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")
pytest.importorskip("scipy_openblas32", reason="scipy-openblas32 is not installed: pip install '.[tvm]'")

from rmsnorm_deploy import tvm
from rmsnorm_deploy.tvm.schedules.products import panels
from rmsnorm_deploy.tvm.schedules.products.weight import Laid, Weight
from tests.support.tvm.dumped import compile_and_dump

KINDS = {
    "float32": (np.float32, TensorProto.FLOAT, 3e-6),
    "float16": (np.float16, TensorProto.FLOAT16, 6e-4),
    "bfloat16": (ml_dtypes.bfloat16, TensorProto.BFLOAT16, 5e-3),
}


def random(*shape, kind="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(KINDS[kind][0])


def model_of(nodes, weights, x, kind="float32", y=None):
    """A model of one input ``x`` and one output ``y``."""
    number = KINDS[kind][1]
    graph = helper.make_graph(
        [helper.make_node(op, list(read), list(made.split()), **more) for op, read, made, more in nodes],
        "g",
        [helper.make_tensor_value_info("x", number, x)],
        [helper.make_tensor_value_info(name, number, None) for name in (y or ["y"])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def compiled(model, folder):
    onnx.save(model, folder / "m.onnx")
    compile_and_dump(folder, "products_by_blas")
    return tvm.load(folder / "c")


def by_panels(folder):
    (path,) = (folder / "ir").glob("*_products_by_blas.py")
    return "_panels" in path.read_text()


def error(got, want):
    return float(np.max(np.abs(got.astype(np.float64) - want)) / np.max(np.abs(want)))


PLAIN = [("MatMul", ("x", "w"), "y", {})]
TRANSPOSED = [("Transpose", ("w",), "t", {"perm": [1, 0]}), ("MatMul", ("x", "t"), "y", {})]
GEMM = [("Gemm", ("x", "w"), "y", {"transB": 1})]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [48, 64, 130, 1000])
def test_every_number_of_rows(tmp_path, kind, columns):
    w = random(700, columns, kind=kind, seed=1)
    runs = compiled(model_of(PLAIN, {"w": w}, (2, "n", 700), kind), tmp_path)
    assert by_panels(tmp_path)
    for rows in (0, 1, 2, 17, 90):
        x = random(2, rows, 700, kind=kind)
        want = x.astype(np.float64) @ w.astype(np.float64)
        got = runs({"x": x})["y"]
        assert got.shape == want.shape
        assert rows == 0 or error(got, want) < KINDS[kind][2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [(), (1,), (3,), (1, 1), (700,)])
def test_sizes_that_are_known(tmp_path, kind, rows):
    w = random(449, 96, kind=kind, seed=1)
    x = random(*rows, 449, kind=kind)
    got = compiled(model_of(PLAIN, {"w": w}, x.shape, kind), tmp_path)({"x": x})["y"]
    want = x.astype(np.float64) @ w.astype(np.float64)
    assert got.shape == want.shape
    assert error(got, want) < KINDS[kind][2]
    assert by_panels(tmp_path) or rows == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nodes", [TRANSPOSED, GEMM])
def test_columns_that_are_rows_in_the_model(tmp_path, kind, nodes):
    w, x = random(200, 300, kind=kind, seed=1), random(5, 300, kind=kind)
    runs = compiled(model_of(nodes, {"w": w}, ("n", 300), kind), tmp_path)
    assert by_panels(tmp_path)
    for rows in (1, 5):
        want = x[:rows].astype(np.float64) @ w.astype(np.float64).T
        assert error(runs({"x": x[:rows]})["y"], want) < KINDS[kind][2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_is_in_the_folder_once(tmp_path, kind):
    w = random(512, 320, kind=kind, seed=1)
    nodes = [("MatMul", ("x", "w"), "a", {}), ("Neg", ("x",), "m", {}), ("MatMul", ("m", "w"), "b", {})]
    nodes.append(("Sub", ("a", "b"), "y", {}))
    runs = compiled(model_of(nodes, {"w": w}, ("n", 512), kind), tmp_path)
    assert by_panels(tmp_path)
    assert w.nbytes <= (tmp_path / "c" / "model.params").stat().st_size < 1.1 * w.nbytes
    x = random(3, 512, kind=kind)
    assert error(runs({"x": x})["y"], 2 * (x.astype(np.float64) @ w.astype(np.float64))) < 2 * KINDS[kind][2]


TIED = {
    "product": [("Gather", ("w", "x"), "e", {}), *TRANSPOSED[:1], ("MatMul", ("e", "t"), "y", {})],
    "general product": [("Gather", ("w", "x"), "e", {}), ("Gemm", ("e", "w"), "y", {"transB": 1})],
}


@pytest.mark.parametrize(("form", "kind"), [(f, k) for k in ("float16", "bfloat16") for f in TIED])
def test_rows_are_taken_from_panels(tmp_path, capfd, form, kind):
    """Tied embeddings of 16 bits: one copy, of which nothing is widened but the pieces that are multiplied."""
    w = random(130, 96, kind=kind, seed=1)
    model = model_of(TIED[form], {"w": w}, ("n",), kind)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    runs = compiled(model, tmp_path)
    assert by_panels(tmp_path)
    assert (tmp_path / "c" / "model.params").stat().st_size < 1.6 * w.nbytes  # 130 columns lie in 3 panels
    for x in ([5], [0, 64, 129, -1, -130, 63], list(range(130))):
        got, wide = runs({"x": np.array(x)})["y"], w.astype(np.float64)
        assert error(got, wide[x] @ wide.T) < KINDS[kind][2]
    assert not capfd.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_that_something_else_reads_stays_as_it_is(tmp_path, kind):
    w = random(512, 64, kind=kind, seed=1)
    nodes = [*PLAIN, ("ReduceSum", ("w",), "z", {"keepdims": 0})]
    runs = compiled(model_of(nodes, {"w": w}, ("n", 512), kind, ["y", "z"]), tmp_path)
    assert not by_panels(tmp_path)
    assert w.nbytes <= (tmp_path / "c" / "model.params").stat().st_size < 1.1 * w.nbytes
    x = random(3, 512, kind=kind)
    assert error(runs({"x": x})["y"], x.astype(np.float64) @ w.astype(np.float64)) < KINDS[kind][2]


def test_16_bits_are_rounded_once(tmp_path):
    """Sums that float16 cannot hold on the way: 2048 + 1 + 1 is 2050 only if it is not rounded between."""
    w = np.ones((66, 64), np.float16)
    x = np.ones((2, 66), np.float16)
    x[:, 0] = 2048
    got = compiled(model_of(PLAIN, {"w": w}, ("n", 66), "float16"), tmp_path)
    for rows in (1, 2):
        np.testing.assert_array_equal(got({"x": x[:rows]})["y"], np.full((rows, 64), np.float16(2048 + 65)))


@pytest.mark.parametrize("small", [True, False])
def test_the_library_may_or_may_not_take_pieces_as_they_lie(tmp_path, monkeypatch, small):
    original = panels.kernel
    seen = []

    def kernel(product, prefix):
        seen.append(product)
        changed = panels.PanelProduct(product.rows, product.weight, product.dtype, small)
        return original(changed, prefix)

    monkeypatch.setattr(panels, "kernel", kernel)
    w, x = random(900, 200, seed=1), random(70, 900)
    got = compiled(model_of(PLAIN, {"w": w}, ("n", 900)), tmp_path)({"x": x})["y"]
    assert seen
    assert error(got, x.astype(np.float64) @ w.astype(np.float64)) < 3e-6


RUN = """
import sys
import ml_dtypes
import numpy as np
from rmsnorm_deploy import tvm
for folder, kind in zip(sys.argv[1::2], sys.argv[2::2]):
    runs = tvm.load(folder)
    for rows in (1, 5, 70):
        x = np.random.default_rng(rows).standard_normal((rows, 900)).astype(kind)
        sys.stdout.buffer.write(runs({"x": x})["y"].tobytes())
"""


def test_every_number_of_threads_gives_the_same_bits(tmp_path):
    """Of rows of 900 values."""
    folders = []
    for kind in KINDS:
        folder = tmp_path / kind
        folder.mkdir()
        compiled(model_of(PLAIN, {"w": random(900, 1000, kind=kind, seed=1)}, ("n", 900), kind), folder)
        assert by_panels(folder), kind
        folders += [folder / "c", kind]
    found = []
    for threads in ("1", "2", "3"):  # each for all types: a process takes longer to start than to compute
        environment = {"TVM_NUM_THREADS": threads, "PATH": "", "OPENBLAS_NUM_THREADS": "4"}
        command = [sys.executable, "-c", RUN, *folders]
        found.append(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)
    begin = 0
    for kind, (dtype, *_) in KINDS.items():
        end = begin + 76 * 1000 * np.dtype(dtype).itemsize
        assert len({of_all[begin:end] for of_all in found}) == 1, kind
        begin = end
    assert {len(of_all) for of_all in found} == {begin}


def test_a_panel_is_64_columns_with_zeros_behind_the_last():
    values = np.arange(3 * 70, dtype=np.int16).reshape(3, 70)
    weight = Weight("int16", 3, 70)
    laid = Laid(False, 0, False, weight.shape, "int16").of(values)
    assert laid.shape == (2, 3, 64)
    np.testing.assert_array_equal(laid[0], values[:, :64])
    np.testing.assert_array_equal(laid[1, :, :6], values[:, 64:])
    assert not laid[1, :, 6:].any()
    np.testing.assert_array_equal(Laid(False, 0, True, weight.shape, "int16").of(values.T), laid)
