"""Which products of a model cuBLAS computes and in which types, whole models, and how the library is found."""

import ctypes
import dataclasses
import json
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

from tvm import tirx

from benchmarks.models import decoder as decoders
from benchmarks.models.encoders import vit, whisper
from rmsnorm_deploy import tvm
from rmsnorm_deploy.errors import MissingEnvironment, UsageError
from rmsnorm_deploy.tvm import compiling
from rmsnorm_deploy.tvm.artefact import carried
from rmsnorm_deploy.tvm.importer.convert import import_prepared
from rmsnorm_deploy.tvm.importer.prepare import prepared
from rmsnorm_deploy.tvm.passes import pipeline
from rmsnorm_deploy.tvm.passes.by_cublas import functions_of, lower_products_by_cublas
from rmsnorm_deploy.tvm.targets import cublas
from rmsnorm_deploy.tvm.targets.cublas import Cublas
from rmsnorm_deploy.tvm.targets.resolve import resolve, triple_of
from tests.support.native import compiler
from tests.support.tvm.cublas_cases import CASES, PLAIN, model_of

LLAMA = Path(__file__).parents[2] / "samples" / "models" / "llama_float16.onnx"


def lowered(nodes, inputs, weights=()):
    """The types of factors and results, as kernels' names have them, and the module."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, list(read), [out], **attributes) for op, read, out, attributes in nodes],
        "g",
        [info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [info("y", TensorProto.UNDEFINED, None)],
        list(weights),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    module = lower_products_by_cublas(import_prepared(prepared(model)))
    names = [v.name_hint for v in module.get_global_vars() if v.name_hint.startswith("product_")]
    return [name.split("_", 2)[2] for name in names], module


F16, F32, BF16 = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.BFLOAT16


@pytest.mark.parametrize(
    ("kind", "name"), [(F32, "float32"), (F16, "float16"), (BF16, "bfloat16"), (TensorProto.DOUBLE, "float64")]
)
def test_a_result_is_rounded_where_it_is_made(kind, name):
    assert lowered(PLAIN, {"x": (kind, ("n", 8)), "v": (kind, (8, 4))})[0] == [name]


def test_a_sum_that_is_read_before_it_is_rounded_stays_wide():
    nodes = [("Gemm", ("x", "v", "c"), "y", {})]
    inputs = {"x": (F16, ("n", 8)), "v": (F16, (8, 4)), "c": (F16, (4,))}
    assert lowered(nodes, inputs)[0] == ["float16_float32"]


def test_values_that_were_widened_are_multiplied_as_they_were():
    widened = [("Cast", (n,), n + "w", {"to": F32}) for n in "xv"]
    nodes = [*widened, ("MatMul", ("xw", "vw"), "y", {})]
    assert lowered(nodes, {"x": (BF16, (5, 8)), "v": (BF16, (8, 4))})[0] == ["bfloat16_float32"]
    assert lowered(nodes, {"x": (BF16, (5, 8)), "v": (F16, (8, 4))})[0] == ["float32"]
    nodes = [widened[0], ("MatMul", ("xw", "v"), "y", {})]
    assert lowered(nodes, {"x": (F16, (5, 8)), "v": (F32, (8, 4))})[0] == ["float32"]


def test_whole_numbers_and_sums_of_nothing_stay_tvms():
    eight = {"x": (TensorProto.UINT8, (5, 8)), "v": (TensorProto.INT8, (8, 4))}
    names, module = lowered([("MatMulInteger", ("x", "v"), "y", {})], eight)
    assert names == []
    assert "R.matmul" in module.script()
    assert lowered(PLAIN, {"x": (F32, (5, 0)), "v": (F32, (0, 4))})[0] == []


def test_equal_products_share_a_kernel_and_others_have_functions_of_their_own():
    nodes = [
        ("MatMul", ("x", "v"), "a", {}),
        ("MatMul", ("a", "v"), "b", {}),
        ("Transpose", ("v",), "t", {}),
        ("MatMul", ("b", "t"), "y", {}),
    ]
    names, module = lowered(nodes, {"x": (F32, (8, 8)), "v": (F32, (8, 8))})
    assert sorted(names) == ["float32", "float32_2"]
    assert len(set(functions_of(module))) == 2


# -- whole models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "products"),
    [
        (lambda: decoders.decoder("float16", past=True), 7),
        (lambda: whisper("float32", 1), 7),
        (lambda: vit("float16", 1), 6),
    ],
    ids=["llama", "whisper", "vit"],
)
def test_no_product_of_a_model_is_left_to_tvm(make, products, monkeypatch):
    monkeypatch.setattr(decoders, "LAYERS", 1)
    target = resolve("cuda")
    passes = pipeline.passes(target, cublas=True)
    passes = passes[: [name for name, _ in passes].index("schedule_rest")]
    module = pipeline.through(passes, import_prepared(prepared(make())), target)
    kernels = [v.name_hint for v, f in module.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert not [name for name in kernels if "matmul" in name or "conv" in name]
    assert len([name for name in kernels if name.startswith("product_")]) == len(functions_of(module)) == products


def test_without_cublas_they_are():
    target = resolve("cuda")
    made = import_prepared(prepared(model_of(CASES["matrix"], "float32")))
    module = pipeline.through(pipeline.passes(target), made, target)
    assert [v.name_hint for v in module.get_global_vars() if "matmul" in v.name_hint]


@pytest.fixture
def by_fake(fake, monkeypatch):
    """Models compiled for a CPU as for a GPU whose memory is the host's: the stand-in's products, and TVM's rest."""
    real = carried.linked

    def with_fake(*arguments):
        found = real(*arguments)
        return dataclasses.replace(found, source=fake.instead(found.source))

    monkeypatch.setattr(carried, "linked", with_fake)
    monkeypatch.setattr(compiling, "_library_for", lambda *_: (Cublas((str(fake.path),)), ""))
    fake.taken()
    return fake


def test_a_model_computes_what_onnxruntime_does(by_fake, tmp_path):
    made = tvm.compile(LLAMA, output=tmp_path / "c")
    assert made.blas == by_fake.path.name
    said = json.loads((tmp_path / "c" / "model.json").read_text())["blas"]
    assert said == {"name": by_fake.path.name, "version": "", "file": None}
    feeds = {"x": np.arange(8, dtype=np.int64)[None]}
    (got,) = tvm.load(tmp_path / "c")(feeds).values()
    assert len(by_fake.taken()) == 19
    (want,) = ort.InferenceSession(LLAMA).run(None, feeds)
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=0, atol=4e-3 * abs(want).max())


CONVOLUTIONS = {
    # sizes of x and of the weight, attributes, and how many products
    "patches": ((1, 3, 16, 12), (5, 3, 4, 4), {"strides": [4, 4]}, 1),
    "frames": ((2, 4, "n"), (6, 4, 3), {"pads": [1, 1]}, 1),
    "frames, every other": ((1, 4, 21), (6, 4, 3), {"pads": [1, 0], "strides": [2]}, 1),
    "places": (("b", 4, 5, 7), (6, 4, 1, 1), {}, 1),
    "places, every other": ((2, 4, 5, 7), (6, 4, 1, 1), {"strides": [1, 2]}, 1),
    "apart": ((1, 4, 9, 11), (6, 4, 2, 2), {"dilations": [2, 3], "pads": [2, 1, 0, 3]}, 1),
    "volume": ((1, 2, 4, 6, 8), (3, 2, 2, 2, 2), {"strides": [2, 2, 2]}, 1),
    "many copies": ((1, 4, 9, 9), (6, 4, 3, 3), {}, 0),
    "groups": ((1, 4, 9), (6, 2, 2), {"group": 2}, 0),
}
VARYING = {"n": 13, "b": 3}


@pytest.mark.parametrize(("kind", "names"), [(F32, list(CONVOLUTIONS)), (F16, ["patches", "frames"])])
def test_convolutions_that_copy_little_are_products(by_fake, tmp_path, kind, names):
    dtype, random = helper.tensor_dtype_to_np_dtype(kind), np.random.default_rng(2)
    nodes, inputs, weights, feeds = [], [], [], {}
    for i, (x, w, attributes, _) in enumerate(CONVOLUTIONS[name] for name in names):
        feeds[f"x{i}"] = random.standard_normal([VARYING.get(n, n) for n in x]).astype(dtype)
        inputs.append(helper.make_tensor_value_info(f"x{i}", kind, x))
        weights.append(numpy_helper.from_array(random.standard_normal(w).astype(dtype), f"w{i}"))
        weights.append(numpy_helper.from_array(random.standard_normal(w[0]).astype(dtype), f"b{i}"))
        nodes.append(helper.make_node("Conv", [f"x{i}", f"w{i}", f"b{i}"], [f"y{i}"], **attributes))
    outputs = [helper.make_tensor_value_info(f"y{i}", kind, None) for i in range(len(nodes))]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    tvm.compile(model, output=tmp_path / "c")
    found = tvm.load(tmp_path / "c")(feeds)
    calls = by_fake.taken()
    assert len(calls) == sum(CONVOLUTIONS[name][-1] for name in names)
    assert {call.a.type for call in calls} == {0 if kind == F32 else 2}
    for name, want in zip(found, ort.InferenceSession(model.SerializeToString()).run(None, feeds), strict=True):
        assert found[name].shape == want.shape
        most = (1e-5 if kind == F32 else 4e-3) * abs(want).max()
        np.testing.assert_allclose(found[name].astype(np.float32), want.astype(np.float32), rtol=0, atol=most)


# -- the library ------------------------------------------------------------------------------------------------------


def test_loading_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(cublas, "_PLACES", (("libnone_at_all.so.13", "nothing.at_all"),))
    with pytest.raises(MissingEnvironment, match=r"(?s)libnone_at_all\.so\.13.*pip install nvidia-cublas"):
        carried.open_beforehand({"blas": {"name": "cublas", "version": "", "file": None}})
    for blas in (None, {"name": "libcublas.so", "version": "", "file": None}):
        carried.open_beforehand({"blas": blas})


def test_pips_library_is_found_by_its_name(monkeypatch, tmp_path):
    name = "libfake_cublas_of_pip.so.13"
    folder = tmp_path / "fake_nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    (tmp_path / "empty.cpp").write_text("")
    command = [*compiler(), "-shared", "-fPIC", f"-Wl,-soname,{name}", tmp_path / "empty.cpp", "-o", folder / name]
    subprocess.run(command, check=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(cublas, "_PLACES", ((name, "fake_nvidia.cu13"),))
    with pytest.raises(OSError, match=name):
        ctypes.CDLL(name)
    cublas.open_installed()
    ctypes.CDLL(name)


def test_the_choice(fake, tmp_path):
    assert cublas.find("none") is None
    assert cublas.find("cublas").names == ("libcublas.so.13", "libcublas.so.12")
    assert cublas.find(str(fake.path)).names == (str(fake.path),)
    (tmp_path / "text.so").write_text("x")
    for choice, said in ((tmp_path / "nowhere.so", "there is no library"), (tmp_path / "text.so", "is not a cuBLAS")):
        with pytest.raises(UsageError, match=said):
            cublas.find(str(choice))


def test_targets_have_their_own_libraries():
    choose, triple = compiling._library_for, triple_of(resolve("llvm"))
    assert choose("cuda", None, triple) == (Cublas(), "--blas none")
    assert choose("cuda", "none", triple) == (None, "--blas none")
    with pytest.raises(UsageError, match="there is no library openblas"):
        choose("cuda", "openblas", triple)
    with pytest.raises(UsageError, match="there is no BLAS library cublas"):
        choose("llvm", "cublas", triple)
    assert choose("opencl", None, triple)[0] is choose("opencl", "none", triple)[0] is None
    with pytest.raises(UsageError, match="there is no library of products for target 'opencl'"):
        choose("opencl", "cublas", triple)
