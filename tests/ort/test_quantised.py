"""Norms that end in 8 bits in onnxruntime: bit for bit what the norm and onnxruntime's own operator give."""

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_deploy
from rmsnorm_deploy.op.quantising import dynamic_quantize_linear, quantize_linear
from tests.support.graphs import chain
from tests.support.quantised import DYNAMIC, F8, I8, U8, F, feeds_of, initializer, pair
from tests.support.run import run
from tests.support.spellings.graph import Graph

ALSO = ["quantizers"]

H, B = TensorProto.FLOAT16, TensorProto.BFLOAT16
SHAPES = [(1, 1), (5,), (3, 7), (1, 130), (70, 64), (2, 9, 640), (3, 4100)]


def fused(model):
    result, _ = rmsnorm_deploy.fuse(model, also=ALSO)
    assert not any(n.op_type.endswith("QuantizeLinear") and not n.domain for n in result.graph.node)
    return result


def by_library(model, feeds, threads=1):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    rmsnorm_deploy.register(options)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def same(model, feeds, threads=1):
    """The pair and the one operator, both by the library."""
    for a, b in zip(by_library(model, feeds), by_library(fused(model), feeds, threads), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("quantised", "zero"), [(DYNAMIC, 0), (I8, 5), (U8, 128), (I8, -128)])
def test_every_byte_is_that_of_the_pair(quantised, zero, residual, keep):
    for seed, shape in enumerate(SHAPES):
        model = pair(shape, quantised, residual=residual, keep=keep, zero=zero, scale=0.013)
        same(model, feeds_of(model, seed), 1 + seed % 2)


@pytest.mark.parametrize("quantised", [DYNAMIC, I8])
def test_rows_that_outgrow_the_caches_and_go_to_threads(quantised):
    """Beyond 2^20 values y is not kept between the two passes."""
    for residual in (False, True):
        model = pair((1100, 1000), quantised, residual=residual, keep=False)
        same(model, feeds_of(model), 2)


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 3e-7, 0.0078125, 1 / 3, 3.0, 1e30, 3e38])
def test_scales_from_tiny_to_huge(scale):
    model = pair((4, 96), I8, scale=scale)
    same(model, feeds_of(model))


@pytest.mark.parametrize("quantised", [I8, U8])
@pytest.mark.parametrize("scale", [0.25, 0.1, 0.02])
def test_ties_and_their_neighbours(scale, quantised):
    """The one row is normalised by 1, so that y is the weight."""
    ties = ((np.arange(-300, 300) + 0.5) * scale).astype(np.float32)
    weight = np.concatenate([ties, *(np.nextafter(ties, np.float32(d)) for d in (-np.inf, np.inf))])
    model = pair((2, weight.size), quantised, scale=scale, zero=3, weight=weight, epsilon=0.0)
    feeds = {"x": np.ones((2, weight.size), np.float32)}
    feeds["x"][1] = -1
    same(model, feeds)
    q, y = by_library(fused(model), feeds)
    np.testing.assert_array_equal(y[0], weight)
    np.testing.assert_array_equal(q, quantize_linear(y, np.float32(scale), np.array(3, q.dtype)))


@pytest.mark.parametrize("size", [5, 16, 64, 200, 1030])
@pytest.mark.parametrize("residual", [False, True])
def test_ranges_of_rows_that_differ_widely(size, residual):
    """Which row has the ends of the range is estimated first: rows of any magnitude, equal ones, and signed weights."""
    rng = np.random.default_rng(size)
    for trial, rows in enumerate((1, 2, 3, 16, 17, 40, 130)):
        for spread in (0, 2, 30, 90):
            weight = rng.standard_normal(size) * 2.0 ** rng.integers(-spread // 3, spread // 3 + 1, size)
            epsilon = (1e-12, 1e-6, 1e-30)[(trial + spread) % 3]
            model = pair((rows, size), DYNAMIC, residual=residual, weight=weight.astype(np.float32), epsilon=epsilon)
            x = rng.standard_normal((rows, size)) * 2.0 ** rng.integers(-spread, spread + 1, (rows, 1))
            x[rng.integers(0, rows)] = 0
            x[-1] = x[0]
            feeds = {"x": x.astype(np.float32)} | ({"r": np.zeros(x.shape, np.float32)} if residual else {})
            same(model, feeds, 1 + trial % 2)


@pytest.mark.parametrize("size", [16, 130, 1100, 2500])
@pytest.mark.parametrize("residual", [False, True])
def test_ends_that_are_near_to_each_other(size, residual):
    """Every row, and every piece of a long one, may hold the ends: by estimates, some of them do that do not."""
    rng = np.random.default_rng(size)
    for trial in range(12):
        rows = int(rng.integers(1, 24))
        weight = np.float32(1) + rng.uniform(-1e-3, 1e-3, size).astype(np.float32) * (trial % 2)
        model = pair((rows, size), DYNAMIC, residual=residual, weight=weight * np.ones(size, np.float32))
        x = rng.uniform(1, 1 + 2.0 ** -rng.integers(5, 20), (rows, size)) * rng.uniform(1, 2, (rows, 1))
        signs = rng.choice([-1, 1], x.shape) if trial % 3 else 1  # zero is an end where all are of one
        feeds = {"x": (x * signs).astype(np.float32)}
        same(model, feeds | ({"r": np.zeros(x.shape, np.float32)} if residual else {}), 1 + trial % 2)


@pytest.mark.parametrize("at", [0, 511, 512, 1024, 2048, 2049])
def test_ends_and_what_is_no_number_in_any_piece_of_a_row(at):
    for rows in (1, 3):
        x = np.random.default_rng(at).standard_normal((rows, 2050)).astype(np.float32)
        x[-1, at], x[-1, -1 - at] = 9, -11
        same(pair(x.shape, DYNAMIC), {"x": x})
        for wrong in (np.nan, -np.nan):
            x[0, 700] = wrong
            q, scale, zero, y = by_library(fused(pair(x.shape, DYNAMIC)), {"x": x})
            for got, due in zip((q, scale, zero), dynamic_quantize_linear(y), strict=True):
                np.testing.assert_array_equal(got, due)


def test_a_range_of_one_side_and_rows_of_zeros():
    for low, high in ((0.0, 1.0), (-1.0, 0.0), (0.0, 0.0), (1e-30, 2e-30)):
        model = pair((3, 40), DYNAMIC)
        x = np.linspace(low, high, 120).reshape(3, 40).astype(np.float32)
        same(model, {"x": x})
        q, scale, zero, y = by_library(fused(model), {"x": x})
        for got, due in zip((q, scale, zero), dynamic_quantize_linear(y), strict=True):
            np.testing.assert_array_equal(got, due)


@pytest.mark.parametrize("where", [0, 17, 39])
def test_what_is_no_number_has_no_part_in_the_range(where):
    """onnxruntime's own extremes depend on where the NaN stands; these do not."""
    x = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
    x[1, where] = np.nan
    q, scale, zero, y = by_library(fused(pair((3, 40), DYNAMIC)), {"x": x})
    assert np.isnan(y[1]).all()
    assert np.isfinite(scale)
    for got, due in zip((q, scale, zero), dynamic_quantize_linear(y), strict=True):
        np.testing.assert_array_equal(got, due)
    model = pair((3, 40), I8)
    same(model, {"x": x})
    x[1, where] = np.inf
    same(model, {"x": x})


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("quantised", [I8, U8, F8])
@pytest.mark.parametrize(
    ("kind", "scale_type", "precision"),
    [(F, F, None), (H, H, None), (H, H, F), (H, F, None), (B, B, None), (B, F, None)],
)
def test_every_type_by_the_definition(kind, scale_type, precision, quantised, residual):
    """Opset 23 says in which type the quotient is; onnxruntime, which divides in float32, is no judge of 16 bits."""
    attributes = {} if precision is None else {"precision": precision}
    model = pair(
        (5, 72),
        quantised,
        kind,
        residual=residual,
        zero=0 if quantised == F8 else 3,
        scale_type=scale_type,
        opset=23,
        **attributes,
    )
    feeds = feeds_of(model)
    one = fused(model)
    q, y, *_ = run(one, feeds, True, rmsnorm_deploy.register) if quantised != F8 else _float8(one, feeds)
    scale = next(t for t in model.graph.initializer if t.name == "s")
    zero = next(t for t in model.graph.initializer if t.name == "z")
    due = quantize_linear(y, *(_array(t) for t in (scale, zero)), precision or scale_type)
    np.testing.assert_array_equal(q.view(np.uint8), due.view(np.uint8))
    norm = pair((5, 72), I8, kind, residual=residual)
    del norm.graph.node[1:], norm.graph.output[0]
    for a, b in zip(run(norm, feeds, True, rmsnorm_deploy.register), [y, *_], strict=True):
        np.testing.assert_array_equal(a, b)


def _array(tensor):
    return np.asarray(numpy_helper.to_array(tensor))


def _float8(model, feeds):
    """onnxruntime's Python has no float8: its bits leave the model as float32 values, which hold them."""
    model.graph.output[0].name = "wide"
    model.graph.output[0].type.tensor_type.elem_type = F
    model.graph.node.append(helper.make_node("Cast", ["q"], ["wide"], to=F))
    wide, *rest = run(model, feeds, True, rmsnorm_deploy.register)
    return wide.astype(ml_dtypes.float8_e4m3fn), *rest


@pytest.mark.parametrize("quantised", [DYNAMIC, I8])
def test_no_rows_and_no_dimensions_in_front(quantised):
    model = fused(pair((0, 8), quantised, residual=True))
    feeds = {name: np.zeros((0, 8), np.float32) for name in "xr"}
    got = by_library(model, feeds)
    assert [g.shape for g in got] == [(0, 8), *([(), ()] if quantised is DYNAMIC else []), (0, 8), (0, 8)]


def test_equal_bytes_for_any_number_of_threads():
    model = fused(pair((257, 777), DYNAMIC, residual=True))
    feeds = feeds_of(model)
    first = by_library(model, feeds)
    for threads in (2, 3, 5):
        for a, b in zip(first, by_library(model, feeds, threads), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_wrong_scale_is_named():
    model = fused(pair((4, 8), I8))
    for tensor in model.graph.initializer:
        if tensor.name in "sz":
            one = 0.5 if tensor.name == "s" else 1
            tensor.CopyFrom(initializer(np.full(3, one), tensor.data_type, tensor.name))
    with pytest.raises(Exception, match=r"y_scale of shape .* must have one value"):
        by_library(model, feeds_of(model))


def test_the_body_gives_the_same_without_the_library():
    for quantised in (DYNAMIC, I8):
        model = fused(pair((6, 64), quantised, residual=True))
        feeds = feeds_of(model)
        for a, b in zip(run(model, feeds, True), by_library(model, feeds), strict=True):
            slack = 1 if a.dtype.kind in "iu" else 1e-5
            assert np.abs(a.astype(np.float64) - b.astype(np.float64)).max() <= slack


class Calibration:
    """What onnxruntime's quantiser reads its ranges from."""

    def __init__(self, model):
        self.left = [feeds_of(model, seed) for seed in range(3)]

    def get_next(self):
        return self.left.pop() if self.left else None

    def set_range(self, *_):
        """It reads all at once."""


@pytest.mark.parametrize("fused_before", [False, True])
@pytest.mark.parametrize("way", ["dynamic", "QDQ", "QOperator"])
def test_files_of_onnxruntimes_quantisers(way, fused_before, tmp_path):
    """Two products of one norm, quantised before the norm was fused and after it."""
    from onnxruntime import quantization

    g = Graph(18)
    x, rng = g.input("x", F, (4, 32)) + g.input("r", F, (4, 32)), np.random.default_rng(0)
    y = chain(g, x, g.weight(np.linspace(0.5, 2, 32), F, "w"))["y"]
    for name, size in (("a", 48), ("b", 16)):
        g.output(g.op("MatMul", y, g.weight(rng.standard_normal((32, size)), F, f"w{name}")), name, (4, size))
    g.output(g.op("Neg", x), "n", (4, 32))
    model = g.model()
    onnx.save(rmsnorm_deploy.fuse(model, also=ALSO)[0] if fused_before else model, tmp_path / "m.onnx")
    given, to, only = tmp_path / "m.onnx", tmp_path / "q.onnx", ["MatMul"]
    if way == "dynamic":
        quantization.quantize_dynamic(given, to, op_types_to_quantize=only)
    else:
        quantization.quantize_static(
            given,
            to,
            Calibration(model),
            quant_format=quantization.QuantFormat[way],
            op_types_to_quantize=only,
            activation_type=quantization.QuantType.QUInt8,
        )
    quantised = onnx.load(to)
    result, _ = rmsnorm_deploy.fuse(quantised, also=ALSO)
    name = f"AddRMSNorm{'Dynamic' if way == 'dynamic' else ''}QuantizeLinear"
    assert [n.op_type for n in result.graph.node if n.domain] == [f.name for f in result.functions] == [name]
    rmsnorm_deploy.verify(quantised, result).require()
    assert rmsnorm_deploy.fuse(result, also=ALSO)[1].already == 1
