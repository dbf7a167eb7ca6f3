"""Products of matrices by a BLAS library: every way in which factors lie in memory, against NumPy in float64."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")
pytest.importorskip("scipy_openblas32", reason="scipy-openblas32 is not installed: pip install '.[tvm]'")

from rmsnorm_deploy import tvm
from rmsnorm_deploy.cli.app import main
from rmsnorm_deploy.errors import ModelError, UsageError
from rmsnorm_deploy.tvm.targets import blas

KINDS = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16}


def model_of(nodes, inputs, weights=(), kind="float32", opset=18):
    """A model of ``nodes`` whose last output is ``y``."""
    info = helper.make_tensor_value_info
    number = KINDS[kind]
    graph = helper.make_graph(
        [helper.make_node(op, list(read), [name], **attributes) for op, read, name, attributes in nodes],
        "g",
        [info(name, number, shape) for name, shape in inputs.items()],
        [info("y", number, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in dict(weights).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def random(*shape, kind="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(kind)


def compiled(model, folder, **options):
    onnx.save(model, folder / "m.onnx")
    return tvm.compile(folder / "m.onnx", output=folder / "c", **options)


def computed(model, folder, feeds, **options):
    compiled(model, folder, **options)
    return tvm.load(folder / "c")(feeds)["y"]


def libraries(folder):
    return [p.name for p in (folder / "c").iterdir() if "openblas" in p.name]


def exact(nodes, feeds, weights):
    """The same in float64."""
    known = {k: np.asarray(v) for k, v in {**feeds, **dict(weights)}.items()}
    known = {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in known.items()}
    for op, read, name, attributes in nodes:
        values = [known[r] for r in read]
        if op == "MatMul":
            known[name] = values[0] @ values[1]
        elif op == "Transpose":
            known[name] = np.transpose(values[0], attributes.get("perm"))
        elif op == "Reshape":
            known[name] = values[0].reshape([int(n) for n in values[1]])
        elif op == "Gemm":
            a = values[0].T if attributes.get("transA") else values[0]
            b = values[1].T if attributes.get("transB") else values[1]
            c = values[2] if len(values) > 2 else 0
            known[name] = attributes.get("alpha", 1) * (a @ b) + attributes.get("beta", 1) * c
    return known["y"]


PLAIN = [("MatMul", ("x", "v"), "y", {})]
BEHIND_X = [("Transpose", ("x",), "t", {"perm": [0, 2, 1]}), ("MatMul", ("t", "v"), "y", {})]
BEHIND_V = [("Transpose", ("v",), "t", {"perm": [0, 2, 1]}), ("MatMul", ("x", "t"), "y", {})]
HEADS = [
    ("Transpose", ("x",), "a", {"perm": [0, 2, 1, 3]}),
    ("Transpose", ("v",), "b", {"perm": [0, 2, 3, 1]}),
    ("MatMul", ("a", "b"), "y", {}),
]

CASES = {
    "matrix": (PLAIN, (7, 33), (33, 19)),
    "many tiles": (PLAIN, (1100, 40), (40, 1300)),
    "a row": (PLAIN, (1, 65), (65, 700)),
    "a column": (PLAIN, (37, 65), (65, 1)),
    "a number": (PLAIN, (1, 9), (9, 1)),
    "a vector in front": (PLAIN, (33,), (33, 19)),
    "a vector behind": (PLAIN, (7, 33), (33,)),
    "one term": (PLAIN, (5, 1), (1, 6)),
    "rows of a batch": (PLAIN, (2, 5, 33), (33, 19)),
    "batches": (PLAIN, (3, 2, 5, 7), (3, 2, 7, 4)),
    "a batch of one": (PLAIN, (3, 1, 5, 7), (1, 2, 7, 4)),
    "a batch in front only": (PLAIN, (2, 5, 7), (4, 2, 7, 3)),
    "x transposed": (BEHIND_X, (2, 7, 5), (2, 7, 4)),
    "v transposed": (BEHIND_V, (2, 5, 7), (2, 4, 7)),
    "heads": (HEADS, (2, 5, 3, 8), (2, 6, 3, 8)),
    "no rows": (PLAIN, (0, 33), (33, 19)),
    "no terms": (PLAIN, (4, 0), (0, 5)),
}


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES)
def test_the_product_is_the_exact_one(tmp_path, case, kind):
    nodes, x, v = CASES[case]
    feeds = {"x": random(*x, kind=kind), "v": random(*v, kind=kind, seed=1)}
    got = computed(model_of(nodes, {"x": x, "v": v}, kind=kind), tmp_path, feeds)
    want = exact(nodes, feeds, {})
    assert got.shape == want.shape
    assert got.dtype == kind
    limit = 64 * np.finfo(kind).eps * max(1, abs(want).max(initial=0))
    assert abs(got - want).max(initial=0) <= limit
    assert libraries(tmp_path) or case == "a vector behind"  # which TVM imports as a sum


@pytest.mark.parametrize(("a", "b"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_gemm(tmp_path, a, b):
    weights = {"v": random(*((11, 7) if b else (7, 11)), seed=1), "c": random(11, seed=2)}
    nodes = [("Gemm", ("x", "v", "c"), "y", {"transA": a, "transB": b, "alpha": 0.5, "beta": 2.0})]
    x = (7, 5) if a else (5, 7)
    feeds = {"x": random(*x)}
    got = computed(model_of(nodes, {"x": x}, weights), tmp_path, feeds)
    np.testing.assert_allclose(got, exact(nodes, feeds, weights), rtol=1e-5, atol=1e-5)


GEMMS = [
    (a, b, alpha, beta, c)
    for a, b, alpha, beta in ((0, 0, 1.0, 1.0), (1, 0, 0.5, 1.0), (0, 1, 1.0, 2.0), (1, 1, -0.25, 0.5))
    for c in ((11,), (1, 11), (5, 1), (1,), (5, 11), ())
]


def test_every_form_of_gemm(tmp_path):
    nodes, weights, feeds = [], {}, {"x": random(5, 7), "z": random(7, 5)}
    for i, (a, b, alpha, beta, c) in enumerate(GEMMS):
        weights |= {f"v{i}": random(*((11, 7) if b else (7, 11)), seed=i), f"c{i}": random(*c, seed=i + 50)}
        inputs = ["z" if a else "x", f"v{i}", *([f"c{i}"] if i % 7 else [])]
        attributes = {"transA": a, "transB": b, "alpha": alpha, "beta": beta}
        nodes.append(("Gemm", inputs, f"g{i}", attributes))
    nodes.append(("Concat", [f"g{i}" for i in range(len(GEMMS))], "y", {"axis": 0}))
    model = model_of(nodes, {"x": (5, 7), "z": (7, "n")}, weights)
    got = computed(model, tmp_path, feeds)
    want = ort.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert libraries(tmp_path)


FUSED = [
    ((2, 5, 7), (2, 7, 4), {"alpha": 0.5}),
    ((2, 7, 5), (2, 7, 4), {"transA": 1}),
    ((2, 5, 7), (4, 7), {"transB": 1, "alpha": -2.0}),
    ((7, 5), (4, 7), {"transA": 1, "transB": 1}),
    ((5, 2, 3, 7), (2, 3, 7, 4), {"transBatchA": 1}),
    ((2, 3, 5, 7), (7, 2, 3, 4), {"transBatchB": 1}),
    ((5, 2, 3, 7), (7, 2, 3, 4), {"transBatchA": 1, "transBatchB": 1}),
    ((7, 2, 3, 5), (4, 2, 3, 7), {"transBatchA": 1, "transA": 1, "transBatchB": 1, "transB": 1}),
]


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_products_fused_by_onnxruntime(tmp_path, kind):
    nodes, feeds, sizes = [], {}, {}
    for i, (a, b, attributes) in enumerate(FUSED):
        feeds |= {f"a{i}": random(*a, kind=kind, seed=i), f"b{i}": random(*b, kind=kind, seed=i + 9)}
        nodes.append(("FusedMatMul", [f"a{i}", f"b{i}"], f"f{i}", {**attributes, "domain": "com.microsoft"}))
        nodes.append(("Reshape", [f"f{i}", "flat"], f"r{i}", {}))
    nodes.append(("Concat", [f"r{i}" for i in range(len(FUSED))], "y", {"axis": 0}))
    sizes = {name: value.shape for name, value in feeds.items()}
    sizes |= {"a1": ("n", 7, "m"), "b1": ("n", 7, 4)}
    model = model_of(nodes, sizes, {"flat": np.array([-1])}, kind=kind)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    got = computed(model, tmp_path, feeds)
    if kind == "float32":  # onnxruntime has no other on CPUs
        want = ort.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    else:
        wide = {name: value.astype("float32") for name, value in feeds.items()}
        other = model_of(nodes, sizes, {"flat": np.array([-1])})
        other.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        want = ort.InferenceSession(other.SerializeToString()).run(None, wide)[0]
    np.testing.assert_allclose(got.astype("float32"), want, rtol=2e-3 if kind == "float16" else 1e-5, atol=1e-2)
    assert libraries(tmp_path) or kind == "float16"


@pytest.mark.parametrize("rows", [0, 1, 2, 700])
def test_sizes_that_are_known_at_run_time_only(tmp_path, rows):
    weights = {"v": random(48, 600, seed=1)}
    feeds = {"x": random(2, rows, 48)}
    got = computed(model_of(PLAIN, {"x": (2, "rows", 48)}, weights), tmp_path, feeds)
    np.testing.assert_allclose(got, exact(PLAIN, feeds, weights), rtol=1e-4, atol=1e-4)


def test_infinities_and_what_is_no_number_spread_as_in_numpy(tmp_path):
    x = random(3, 8)
    x[1, 2], x[2, 5] = np.inf, np.nan
    feeds = {"x": x, "v": random(8, 4, seed=1)}
    got = computed(model_of(PLAIN, {"x": (3, 8), "v": (8, 4)}), tmp_path, feeds)
    with np.errstate(invalid="ignore"):
        want = feeds["x"] @ feeds["v"]
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))


def test_float16_is_summed_in_float32(tmp_path):
    feeds = {"x": random(4, 300, kind="float16"), "v": random(300, 5, kind="float16", seed=1)}
    got = computed(model_of(PLAIN, {"x": (4, 300), "v": (300, 5)}, kind="float16"), tmp_path, feeds)
    want = exact(PLAIN, feeds, {}).astype(np.float16)
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=2e-3, atol=2e-3)


RUN = """
import sys
import numpy as np
from rmsnorm_deploy import tvm
x = np.load(sys.argv[2])
sys.stdout.buffer.write(tvm.load(sys.argv[1])({"x": x})["y"].tobytes())
"""


def test_every_number_of_threads_gives_the_same_bits(tmp_path):
    x = random(300, 257)
    compiled(model_of(PLAIN, {"x": x.shape}, {"v": random(257, 1200, seed=1)}), tmp_path)
    np.save(tmp_path / "x.npy", x)
    found = set()
    for threads in ("1", "2", "3"):
        command = [sys.executable, "-c", RUN, tmp_path / "c", tmp_path / "x.npy"]
        environment = {"TVM_NUM_THREADS": threads, "PATH": "", "OPENBLAS_NUM_THREADS": "4"}
        found.add(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)
    assert len(found) == 1
    assert len(found.pop()) == 300 * 1200 * 4


# -- the library ------------------------------------------------------------------------------------------------------


def test_the_folder_carries_the_library_and_its_licence(tmp_path):
    made = compiled(model_of(PLAIN, {"x": (3, 8), "v": (8, 4)}), tmp_path)
    assert made.blas.startswith("libscipy_openblas")
    assert any("LICENSE" in name for name in libraries(tmp_path))
    shutil.copytree(tmp_path / "c", tmp_path / "moved")
    shutil.rmtree(tmp_path / "c")
    feeds = {"x": random(3, 8), "v": random(8, 4, seed=1)}
    np.testing.assert_allclose(tvm.load(tmp_path / "moved")(feeds)["y"], feeds["x"] @ feeds["v"], rtol=1e-5, atol=1e-5)


def test_a_library_that_was_changed_is_refused(tmp_path):
    compiled(model_of(PLAIN, {"x": (3, 8), "v": (8, 4)}), tmp_path)
    (library,) = (p for p in (tmp_path / "c").iterdir() if p.suffix == ".so" and "openblas" in p.name)
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.write_bytes(bytes(data))
    with pytest.raises(ModelError, match="other bytes"):
        tvm.load(tmp_path / "c")


def test_none_leaves_products_to_tvm(tmp_path):
    feeds = {"x": random(3, 8), "v": random(8, 4, seed=1)}
    got = computed(model_of(PLAIN, {"x": (3, 8), "v": (8, 4)}), tmp_path, feeds, blas="none")
    np.testing.assert_allclose(got, feeds["x"] @ feeds["v"], rtol=1e-5, atol=1e-5)
    assert not libraries(tmp_path)


def test_a_model_without_products_carries_no_library(tmp_path):
    compiled(model_of([("Tanh", ("x",), "y", {})], {"x": (3, 8)}), tmp_path)
    assert not libraries(tmp_path)


def test_another_library_is_named_and_not_carried(tmp_path):
    feeds = {"x": random(3, 8), "v": random(8, 4, seed=1)}
    path = blas._installed()
    got = computed(model_of(PLAIN, {"x": (3, 8), "v": (8, 4)}), tmp_path, feeds, blas=str(path))
    np.testing.assert_allclose(got, feeds["x"] @ feeds["v"], rtol=1e-5, atol=1e-5)
    assert not libraries(tmp_path)


def test_what_is_no_such_library_is_refused(tmp_path):
    model = model_of(PLAIN, {"x": (3, 8), "v": (8, 4)})
    (tmp_path / "text.so").write_text("x")
    for choice, said in (
        (tmp_path / "none.so", "there is no BLAS library"),
        (tmp_path / "text.so", "is not a library"),
    ):
        with pytest.raises(UsageError, match=said):
            compiled(model, tmp_path, blas=str(choice))
    assert not (tmp_path / "c").exists()


def test_without_the_package_the_result_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(blas, "_installed", lambda: None)
    made = compiled(model_of(PLAIN, {"x": (3, 8), "v": (8, 4)}), tmp_path)
    assert made.blas.startswith("none: scipy-openblas32 is not installed")
    assert not libraries(tmp_path)


def test_the_command_takes_a_choice_and_says_what_was_chosen(tmp_path, capfd):
    onnx.save(model_of(PLAIN, {"x": (3, 8), "v": (8, 4)}), tmp_path / "m.onnx")
    assert main(["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "c"), "--json", "--blas", "none"]) == 0
    assert json.loads(capfd.readouterr().out)["blas"] == "none: --blas none"
    assert not libraries(tmp_path)
    assert main(["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "d")]) == 0
    assert "products of matrices by libscipy_openblas" in capfd.readouterr().err
    assert (Path(tmp_path) / "d" / "model.so").exists()
