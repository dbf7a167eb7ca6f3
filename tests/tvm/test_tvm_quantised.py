"""Quantised weights: every operator and way to store them, against the definition in float64 and onnxruntime."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")
pytest.importorskip("scipy_openblas32", reason="scipy-openblas32 is not installed: pip install '.[tvm]'")

from rmsnorm_deploy import tvm
from rmsnorm_deploy.errors import ModelError
from tests.support.tvm.dumped import compile_and_dump

FLOATS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
LIMIT = {"float32": 3e-6, "float16": 1e-3}


def model_of(nodes, weights, x, kind=TensorProto.FLOAT, y=TensorProto.FLOAT, opset=21):
    """A model of ``x`` and ``y``; a node is (operator, inputs, outputs, attributes), ``com.microsoft`` for its own."""
    graph = helper.make_graph(
        [helper.make_node(op, list(read), made.split(), **more) for op, read, made, more in nodes],
        "g",
        [helper.make_tensor_value_info("x", kind, x)],
        [helper.make_tensor_value_info("y", y, None)],
        [v if isinstance(v, TensorProto) else numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def together(models):
    """One model of several: it takes a moment to compile each."""
    merged = models[0]
    for i, model in enumerate(models):
        onnx.compose.add_prefix(model, f"{i}", inplace=True)
        if i:
            for field in ("node", "input", "output", "initializer"):
                getattr(merged.graph, field).extend(getattr(model.graph, field))
    return merged


def compiled(model, folder, **options):
    onnx.save(model, folder / "m.onnx")
    compile_and_dump(folder, "products_by_blas", **options)
    return tvm.load(folder / "c")


def by_onnxruntime(model, x):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})[0]


def by_panels(folder):
    (path,) = (folder / "ir").glob("*_products_by_blas.py")
    return "_panels" in path.read_text()


def weights_bytes(folder):
    return (folder / "c" / "model.params").stat().st_size


def error(got, want):
    return float(np.max(np.abs(got.astype(np.float64) - want)) / np.max(np.abs(want)))


def random(*shape, kind="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(kind)


def integers(low, high, *shape, seed=0):
    return np.random.default_rng(seed).integers(low, high, shape)


# -- DequantizeLinear in front of a product ----------------------------------------------------------------------------

K, N = 600, 136
LINEAR = {
    # axis, block, shape of scale for weights of (K, N)
    "tensor": (1, 0, ()),
    "one": (1, 0, (1,)),
    "columns": (1, 0, (N,)),
    "terms": (0, 0, (K,)),
    "blocks of terms": (0, 50, (12, N)),
    "blocks of columns": (1, 8, (K, N // 8)),
    "blocks with a shorter one": (0, 64, (10, N)),
}


def dequantised(q, scale, zero, axis, block):
    q, scale, zero = (np.asarray(v, np.float64) for v in (q, scale, zero))
    if block:
        scale, zero = (np.repeat(v, block, axis).take(range(q.shape[axis]), axis) for v in (scale, zero))
    elif scale.size > 1:
        shape = [1] * q.ndim
        shape[axis] = -1
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    else:
        scale, zero = scale.reshape(()), zero.reshape(())
    return (q - zero) * scale


def linear(how, stored, *, zeroed):
    """The model, and its weight in float64."""
    axis, block, shape = LINEAR[how]
    bits, signed = int(stored[-1]), stored[0] == "i"
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    q = integers(low, high, K, N, seed=1)
    scale = (1 + np.random.default_rng(2).random(shape)).astype(np.float32) / 100
    zero = np.asarray(integers(low, high, *shape, seed=3)) if zeroed else np.zeros(shape)
    kind = {"int8": np.int8, "uint8": np.uint8, "int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4}[stored]
    weights = {"w": q.astype(kind), "s": scale} | ({"z": zero.astype(kind)} if zeroed else {})
    nodes = [("DequantizeLinear", list(weights), "d", {"axis": axis, "block_size": block})]
    nodes.append(("MatMul", ("x", "d"), "y", {}))
    return model_of(nodes, weights, ("n", K)), dequantised(q, scale, zero, axis, block)


@pytest.mark.parametrize("stored", ["int8", "uint8", "int4", "uint4"])
def test_dequantize_linear(tmp_path, stored):
    cases = [(how, zeroed) for how in LINEAR for zeroed in (False, True)]
    models, exact = zip(*(linear(how, stored, zeroed=zeroed) for how, zeroed in cases), strict=True)
    runs = compiled(together(models), tmp_path)
    for rows in (1, 2, 40):
        x = random(rows, K)
        got = runs({f"{i}x": x for i in range(len(cases))})
        for i, case in enumerate(cases):
            assert error(got[f"{i}y"], x.astype(np.float64) @ exact[i]) < LIMIT["float32"], case


@pytest.mark.parametrize("how", ["tensor", "blocks of terms"])
def test_4_bits_stay_4_bits(tmp_path, how):
    model, _ = linear(how, "int4", zeroed=True)
    compiled(model, tmp_path)
    assert by_panels(tmp_path)
    # columns are filled up to 192, and each block has a scale of four bytes and a zero point
    assert weights_bytes(tmp_path) <= K * 192 / 2 + 192 * 5 * 12 + 1024


@pytest.mark.parametrize("kind", FLOATS)
def test_dequantized_weights_of_which_columns_are_rows(tmp_path, kind):
    q, scale = integers(-128, 128, 96, 300, seed=1).astype(np.int8), (random(96, kind=kind) / 100)
    zero = integers(-9, 9, 96, seed=2).astype(np.int8)
    nodes = [
        ("DequantizeLinear", ("w", "s", "z"), "d", {"axis": 0}),
        ("Transpose", ("d",), "t", {"perm": [1, 0]}),
        ("MatMul", ("x", "t"), "y", {}),
    ]
    number = FLOATS[kind]
    runs = compiled(model_of(nodes, {"w": q, "s": scale, "z": zero}, ("n", 300), number, number), tmp_path)
    assert by_panels(tmp_path)
    want = dequantised(q, scale, zero, 0, 0).T
    for rows in (1, 7):
        x = random(rows, 300, kind=kind)
        assert error(runs({"x": x})["y"], x.astype(np.float64) @ want) < LIMIT[kind]


def test_dequantized_values_that_no_product_reads(tmp_path):
    q, scale = integers(-128, 128, 4, 6, seed=1).astype(np.int8), random(6) / 100
    nodes = [("DequantizeLinear", ("w", "s"), "d", {"axis": 1}), ("Add", ("x", "d"), "y", {})]
    model, x = model_of(nodes, {"w": q, "s": scale}, (4, 6)), random(4, 6)
    np.testing.assert_array_equal(compiled(model, tmp_path)({"x": x})["y"], by_onnxruntime(model, x))


def test_weights_and_activations_that_are_quantized_by_nodes_around(tmp_path):
    q, scale = integers(-128, 128, 64, 96, seed=1).astype(np.int8), random(96, seed=2) / 100
    point, step = np.uint8(120), np.float32(0.03)
    weights = {"w": q, "s": scale, "step": step, "point": point}
    nodes = [
        ("QuantizeLinear", ("x", "step", "point"), "q", {}),
        ("DequantizeLinear", ("q", "step", "point"), "a", {}),
        ("DequantizeLinear", ("w", "s"), "d", {"axis": 1}),
        ("MatMul", ("a", "d"), "y", {}),
    ]
    model, x = model_of(nodes, weights, (5, 64)), random(5, 64)
    assert error(compiled(model, tmp_path)({"x": x})["y"], by_onnxruntime(model, x)) < 1e-5
    assert by_panels(tmp_path)


# -- MatMulNBits ------------------------------------------------------------------------------------------------------


def n_bits(k, n, block, bits, zeros, seed=0):
    """Weights for MatMulNBits, and the same in float64 as (K, N)."""
    blocks = -(-k // block)
    q = integers(0, 1 << bits, n, blocks * block, seed=seed)
    scale = (np.random.default_rng(seed + 1).random((n, blocks)) + 0.5).astype(np.float32) / 100
    weights = {"b": packed(q, bits).reshape(n, blocks, block * bits // 8), "s": scale.reshape(-1)}
    zero = np.full((n, blocks), 1 << bits - 1)
    if zeros == "packed":
        zero = integers(0, 1 << bits, n, blocks, seed=seed + 2)
        even = np.concatenate([zero, np.zeros((n, blocks % 2), int)], 1) if bits == 4 else zero
        weights["z"] = packed(even, bits).reshape(-1)
    elif zeros == "float":
        zero = np.random.default_rng(seed + 2).random((n, blocks)).astype(np.float32) * (1 << bits)
        weights["z"] = zero.reshape(-1) if zero.size % 2 else zero
    wide = (q - np.repeat(zero.astype(np.float64), block, 1)) * np.repeat(scale.astype(np.float64), block, 1)
    return weights, wide[:, :k].T


def packed(values, bits):
    values = values.astype(np.uint8)
    return values if bits == 8 else values[:, ::2] | values[:, 1::2] << 4


def n_bits_model(weights, k, n, block, bits, kind="float32", extra=(), bias=None):
    read = ["x", "b", "s", "z" if "z" in weights else ""]
    weights = (
        dict(weights)
        if kind == "float32"
        else {name: v.astype(kind) if v.dtype == np.float32 else v for name, v in weights.items()}
    )
    if bias is not None:
        read += ["", "bias"]
        weights["bias"] = bias
    attributes = {"K": k, "N": n, "block_size": block, "bits": bits, "domain": "com.microsoft"}
    nodes = [("MatMulNBits", [*read, *extra], "y", attributes)]
    return model_of(nodes, weights, ("m", "n", k), FLOATS[kind], FLOATS[kind])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", ["none", "packed", "float"])
def test_matmul_n_bits(tmp_path, bits, zeros):
    sizes = [(64, 16), (96, 32), (320, 64), (1000, 128), (600, 256)]
    weights, exact = zip(*(n_bits(k, 100, block, bits, zeros) for k, block in sizes), strict=True)
    models = [n_bits_model(w, k, 100, block, bits) for w, (k, block) in zip(weights, sizes, strict=True)]
    texts = [m.SerializeToString() for m in models]
    runs = compiled(together(models), tmp_path)
    assert by_panels(tmp_path)
    for rows in (1, 2, 33):
        feeds = {f"{i}x": random(2 if rows == 2 else 1, rows, k) for i, (k, _) in enumerate(sizes)}
        got = runs(feeds)
        for i, case in enumerate(sizes):
            assert error(got[f"{i}y"], feeds[f"{i}x"].astype(np.float64) @ exact[i]) < LIMIT["float32"], case
            if zeros != "float":
                other = by_onnxruntime(onnx.load_from_string(texts[i]), feeds[f"{i}x"])
                assert error(got[f"{i}y"], other) < 1e-3, case  # it may quantise x, too
    most = sum(
        128 * (k * bits / 8 + -(-k // block) * {"none": 4, "packed": 5, "float": 8}[zeros]) for k, block in sizes
    )
    assert weights_bytes(tmp_path) <= most + 4096


def test_matmul_n_bits_with_a_bias_and_in_float16(tmp_path):
    weights, exact = n_bits(192, 64, 32, 4, "packed")
    for kind in FLOATS:
        folder = tmp_path / kind
        folder.mkdir()
        bias = random(64, kind=kind)
        runs = compiled(n_bits_model(weights, 192, 64, 32, 4, kind, bias=bias), folder)
        for rows in (1, 5):
            x = random(1, rows, 192, kind=kind)
            got = runs({"x": x})["y"]
            assert got.dtype == kind
            assert error(got, x.astype(np.float64) @ exact + bias) < LIMIT[kind]


@pytest.mark.parametrize(("extra", "bits", "said"), [(["groups"], 4, "g_idx"), ([], 2, "2 bits")])
def test_what_matmul_n_bits_is_refused_for(tmp_path, extra, bits, said):
    weights, _ = n_bits(64, 64, 32, 4, "none")
    weights["groups"] = np.zeros(64, np.int32)
    with pytest.raises(ModelError, match=said):
        compiled(n_bits_model(weights, 64, 64, 32, bits, extra=extra), tmp_path)


def test_without_a_library_quantised_weights_are_right_too(tmp_path):
    weights, exact = n_bits(100, 70, 32, 4, "packed")
    x = random(1, 3, 100)
    got = compiled(n_bits_model(weights, 100, 70, 32, 4), tmp_path, blas="none")({"x": x})["y"]
    assert error(got, x.astype(np.float64) @ exact) < LIMIT["float32"]


# -- products of whole numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("a", ["int8", "uint8"])
@pytest.mark.parametrize("b", ["int8", "uint8"])
@pytest.mark.parametrize("zeros", ["none", "numbers", "columns"])
def test_matmul_integer_is_exact(tmp_path, a, b, zeros):
    k, n = 1100, 100
    x, w = (
        integers(*_range(kind), *shape, seed=len(shape)).astype(kind) for kind, shape in ((a, (40, k)), (b, (k, n)))
    )
    x[0], w[:, 0] = np.iinfo(a).max, np.iinfo(b).max  # the largest sums that there are
    a_zero = np.asarray(np.iinfo(a).min, a)
    b_zero = integers(*_range(b), *(() if zeros == "numbers" else (n,)), seed=5).astype(b)
    weights = {"w": w} | ({} if zeros == "none" else {"az": a_zero, "bz": b_zero})
    read = ("x", "w") if zeros == "none" else ("x", "w", "az", "bz")
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(a))
    model = model_of([("MatMulInteger", read, "y", {})], weights, ("n", k), kind, TensorProto.INT32)
    runs = compiled(model, tmp_path)
    assert by_panels(tmp_path)
    left, right = x.astype(np.int64), w.astype(np.int64)
    if zeros != "none":
        left, right = left - a_zero, right - b_zero
    for rows in (1, 2, 40):
        got = runs({"x": x[:rows]})["y"]
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, (left @ right)[:rows])


def _range(kind):
    return np.iinfo(kind).min, np.iinfo(kind).max + 1


@pytest.mark.parametrize("shape", [(40, 7), (2, 40, 7), (2, 300, 7)])
def test_matmul_integer_of_two_inputs_of_the_graph(tmp_path, shape):
    """The right factor is made in the model: no weight."""
    x = integers(-128, 128, *shape[:-2], 7, shape[-2], seed=1).astype(np.int8)
    perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    nodes = [("Transpose", ("x",), "t", {"perm": perm}), ("MatMulInteger", ("x", "t"), "y", {})]
    got = compiled(model_of(nodes, {}, x.shape, TensorProto.INT8, TensorProto.INT32), tmp_path)({"x": x})["y"]
    wide = x.astype(np.int64)
    np.testing.assert_array_equal(got, wide @ np.swapaxes(wide, -1, -2))


def test_dynamically_quantized_products(tmp_path):
    """What onnxruntime's dynamic quantization makes of a product; its own sums saturate on CPUs without VNNI."""
    w, scale = integers(-127, 128, 256, 96, seed=1).astype(np.int8), np.float32(0.01)
    nodes = [
        ("DynamicQuantizeLinear", ("x",), "q step point", {}),
        ("MatMulInteger", ("q", "w", "point", "wz"), "whole", {}),
        ("Cast", ("whole",), "f", {"to": TensorProto.FLOAT}),
        ("Mul", ("step", "s"), "factor", {}),
        ("Mul", ("f", "factor"), "y", {}),
    ]
    model = model_of(nodes, {"w": w, "wz": np.int8(3), "s": scale}, ("n", 256))
    runs = compiled(model, tmp_path)
    assert by_panels(tmp_path)
    standard = ReferenceEvaluator(model)
    for x in (random(1, 256), random(9, 256) + 3, np.zeros((2, 256), np.float32)):
        got, (want,) = runs({"x": x})["y"], standard.run(None, {"x": x})
        # a value halfway between two steps may go to either
        np.testing.assert_allclose(got, want, atol=2e-3 * max(1, abs(want).max()))


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("columns", [False, True])
def test_qlinear_matmul(tmp_path, kind, columns):
    k, n = 300, 96
    w = integers(*_range(kind), k, n, seed=1).astype(kind)
    shape, middle = (n,) if columns else (), 0 if kind == "int8" else 128
    weights = {
        **{
            "as": np.float32(0.02),
            "az": np.asarray(middle - 3, kind),
            "w": w,
            "ys": np.float32(0.9),
            "yz": np.asarray(middle + 7, kind),
        },
        "bs": (np.random.default_rng(2).random(shape) + 0.5).astype(np.float32) / 50,
        "bz": np.full(shape, middle + 5, kind),
    }
    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes = [("QLinearMatMul", ("x", "as", "az", "w", "bs", "bz", "ys", "yz"), "y", {})]
    model = model_of(nodes, weights, ("n", k), number, number)
    runs = compiled(model, tmp_path)
    assert by_panels(tmp_path)
    for rows in (1, 12):
        x = integers(*_range(kind), rows, k, seed=4).astype(kind)
        got, want = runs({"x": x})["y"], by_onnxruntime(model, x)
        assert got.dtype == kind
        difference = np.abs(got.astype(int) - want)
        assert difference.max() <= 1
        assert (difference > 0).mean() < 0.01
        assert len(np.unique(got)) > 5


# -- threads ----------------------------------------------------------------------------------------------------------

RUN = """
import sys
import numpy as np
from rmsnorm_deploy import tvm
for folder, kind in zip(sys.argv[1::2], sys.argv[2::2]):
    runs = tvm.load(folder)
    for rows in (1, 5, 70):
        x = np.random.default_rng(rows).standard_normal((1, rows, 512)) * 40
        sys.stdout.buffer.write(runs({"x": x.astype(kind)})["y"].tobytes())
"""


def model_for_threads(what):
    """The model, and the type of its input."""
    if what.endswith("bits"):
        weights, _ = n_bits(512, 1000, 32, int(what[0]), "packed")
        return n_bits_model(weights, 512, 1000, 32, int(what[0])), "float32"
    w = integers(-128, 128, 512, 1000, seed=1).astype(np.int8)
    if what == "integer":
        nodes = [("MatMulInteger", ("x", "w"), "y", {})]
        return model_of(nodes, {"w": w}, (1, "n", 512), TensorProto.INT8, TensorProto.INT32), "int8"
    nodes = [("DequantizeLinear", ("w", "s"), "d", {"axis": 1}), ("MatMul", ("x", "d"), "y", {})]
    return model_of(nodes, {"w": w, "s": random(1000) / 100}, (1, "n", 512)), "float32"


def test_every_number_of_threads_gives_the_same_bits(tmp_path):
    kinds, folders = ("4 bits", "8 bits", "linear", "integer"), []
    for what in kinds:
        folder = tmp_path / what
        folder.mkdir()
        model, kind = model_for_threads(what)
        compiled(model, folder)
        assert by_panels(folder), what
        folders += [folder / "c", kind]
    found = []
    for threads in ("1", "2", "3"):  # each for all models: a process takes longer to start than to compute
        environment = {"TVM_NUM_THREADS": threads, "PATH": "", "OPENBLAS_NUM_THREADS": "4"}
        command = [sys.executable, "-c", RUN, *folders]
        found.append(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)
    size = 76 * 1000 * 4
    for i, what in enumerate(kinds):
        assert len({of_all[i * size : (i + 1) * size] for of_all in found}) == 1, what
    assert {len(of_all) for of_all in found} == {len(kinds) * size}
