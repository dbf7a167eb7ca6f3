"""What breaks fusers of norms, one named test for each: the rule that ours keeps."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_deploy
from rmsnorm_deploy.op import NormParameters
from rmsnorm_deploy.op.reference import rms_norm
from tests.support.graphs import chain, if_model, nodes_of, same_results
from tests.support.judge import rows, units
from tests.support.run import run
from tests.support.spellings.graph import I64, B, D, F, Graph, H, V
from tests.support.spellings.norms import Spelling, build

SHAPE = (2, 3, 8)


def fuse_of(g, y, shape=SHAPE, name="y"):
    g.output(y, name, shape)
    model = g.model()
    fused, report = rmsnorm_deploy.fuse(model)
    onnx.checker.check_model(fused, full_check=True)
    return model, fused, report


def x_of(g, shape=SHAPE, dtype=F):
    return g.input("x", dtype, shape)


def data(shape=SHAPE, dtype=np.float32):
    return {"x": rows(shape, dtype)}


def test_01_float16_squares_that_overflow_are_repaired_and_said_so():
    g = Graph()
    _, fused, report = fuse_of(g, chain(g, x_of(g, dtype=H), epsilon=1e-3)["y"])
    assert report.fused[0].rounding == "fewer"
    x = np.full(SHAPE, 1000, np.float16)
    np.testing.assert_array_equal(run(fused, {"x": x}, False)[0], np.ones(SHAPE, np.float16))


@pytest.mark.parametrize(("layout", "order"), [("llama16", H), ("gemma16", F), ("llamabf16", B), ("gemmabf16", F)])
def test_02_each_order_of_casts_keeps_its_roundings(layout, order):
    s = Spelling(layout=layout, shape=(4, 64), epsilon=1e-5)
    built = build(s)
    fused, report = rmsnorm_deploy.fuse(built.model)
    assert report.fused[0].attributes["scale_type"] == order
    assert report.fused[0].rounding == "same"
    x = rows(s.shape, {H: np.float16, B: __import__("ml_dtypes").bfloat16}[s.io_type])
    truth = rms_norm(x, built.scale, **{**built.meaning, "epsilon": report.fused[0].epsilon})[0]
    assert np.mean(run(fused, {"x": x}, False)[0] != truth) <= 0.02
    wrong = rms_norm(x, built.scale, **{**built.meaning, "scale_type": F if order != F else s.io_type})[0]
    assert np.mean(wrong != truth) > 0.05, "the two orders must differ on this data, or the test shows nothing"


def test_03_a_cast_that_narrows_stays_in_the_graph():
    g = Graph()
    x = g.cast(g.cast(x_of(g), H), F)
    model, fused, _ = fuse_of(g, chain(g, x)["y"])
    assert nodes_of(fused, "").count("Cast") == 2
    same_results(model, fused, data())


def test_04_statistics_in_double_stay_in_double():
    g = Graph()
    x = x_of(g)
    y = g.cast(chain(g, g.cast(x, D), epsilon=1e-3)["y"], F)
    model, fused, report = fuse_of(g, y)
    assert report.fused[0].attributes["stash_type"] == D
    same_results(model, fused, data(), slack=1)


@pytest.mark.parametrize("dtype", [F, H, D])
def test_05_epsilon_is_read_in_its_own_type(dtype):
    g = Graph()
    _, _, report = fuse_of(g, chain(g, x_of(g, dtype=dtype), epsilon=1e-6)["y"])
    written = float(np.float32({F: np.float32, H: np.float16, D: np.float64}[dtype](1e-6)))
    assert report.fused[0].epsilon == written


def test_05_an_absent_epsilon_is_zero_and_not_a_default():
    g = Graph()
    x = x_of(g)
    _, fused, report = fuse_of(g, x / g.op("Sqrt", g.reduce("ReduceMean", x * x, (-1,))))
    assert report.fused[0].epsilon == 0
    assert "epsilon" in report.fused[0].notes[0]
    assert np.isnan(run(fused, {"x": np.zeros(SHAPE, np.float32)}, False)[0]).all()


@pytest.mark.parametrize("how", ["inside", "outside", "clamped mean", "clamped norm"])
def test_06_the_place_of_epsilon_is_kept(how):
    g = Graph()
    x = x_of(g)
    mean = g.reduce("ReduceMean", x * x, (-1,))
    e = 1e-3
    root = {
        "inside": lambda: g.op("Sqrt", mean + e),
        "outside": lambda: g.op("Sqrt", mean) + e,
        "clamped mean": lambda: g.op("Sqrt", g.op("Max", mean, g.constant(e))),
        "clamped norm": lambda: g.op("Max", g.op("Sqrt", mean), g.constant(e)),
    }[how]()
    model, fused, report = fuse_of(g, x / root)
    assert report.fused
    tiny = {"x": (np.random.default_rng(0).standard_normal(SHAPE) * 1e-3).astype(np.float32)}
    same_results(model, fused, tiny)


@pytest.mark.parametrize("divisor", [7.0, 8.0, 9.0])
def test_07_a_sum_is_a_mean_only_with_the_correct_divisor(divisor):
    g = Graph()
    x = x_of(g)
    root = g.op("Sqrt", g.reduce("ReduceSum", x * x, (-1,)) / divisor + 1e-3)
    model, fused, report = fuse_of(g, x / root)
    p = NormParameters.from_node(next(n for n in fused.graph.node if n.op_type == "RMSNorm"), version=1)
    assert p.epsilon == pytest.approx(1e-3 * divisor / 8)
    assert report.fused
    same_results(model, fused, data())


@pytest.mark.parametrize("exponent", [2.0, 2.0000002, 3.0, 1.0])
def test_08_the_exponent_is_exactly_two(exponent):
    g = Graph()
    x = x_of(g)
    _, fused, _ = fuse_of(g, chain(g, x, square=x**exponent)["y"])
    assert bool(nodes_of(fused)) == (exponent == 2.0)


def test_08_an_integer_exponent_and_a_vector_of_twos_are_squares():
    for exponent, dtype in ((2, I64), ([2.0] * 8, F)):
        g = Graph()
        x = x_of(g)
        _, fused, _ = fuse_of(g, chain(g, x, square=g.op("Pow", x, g.constant(exponent, dtype)))["y"])
        assert nodes_of(fused) == ["RMSNorm"]


def test_09_a_product_is_a_square_only_of_one_value():
    g = Graph()
    x, z = x_of(g), g.input("z", F, SHAPE)
    _, fused, _ = fuse_of(g, chain(g, x, square=x * z)["y"])
    assert not nodes_of(fused)
    g = Graph()
    x = x_of(g)
    _, fused, _ = fuse_of(g, chain(g, x, square=g.op("Identity", x) * x)["y"])
    assert nodes_of(fused) == ["RMSNorm"]


@pytest.mark.parametrize(
    ("axes", "noop", "found"), [([-1], 0, True), ([2], 0, True), ([2, 1], 0, True), ([], 1, False), ([0, 2], 0, False)]
)
def test_10_axes_are_read_wherever_they_stand(axes, noop, found):
    g = Graph()
    x = x_of(g)
    mean = g.op("ReduceMean", x * x, g.constant(axes, I64, shape=(len(axes),)), keepdims=1, noop_with_empty_axes=noop)
    _, fused, _ = fuse_of(g, x / g.op("Sqrt", mean + 1e-3))
    assert bool(nodes_of(fused)) == found


def test_10_missing_axes_mean_all_of_them():
    g = Graph(17)
    x = x_of(g)
    model, fused, report = fuse_of(g, x / g.op("Sqrt", g.op("ReduceMean", x * x, keepdims=1) + 1e-3))
    assert report.fused[0].axes == (-3, -2, -1)
    got = run(fused, data(), False)[0]
    assert units(got, run(model, data(), False)[0], axis=(0, 1, 2)) <= 8


def test_11_a_middle_axis_is_that_axis():
    g = Graph()
    x = x_of(g, (2, 4, 3, 5))
    model, fused, report = fuse_of(g, chain(g, x, g.weight(np.ones((4, 1, 1)), F), axes=(1,))["y"], (2, 4, 3, 5))
    assert report.fused[0].axes == (1,)
    same_results(model, fused, data((2, 4, 3, 5)))


def test_12_without_keepdims_the_axis_must_come_back_in_its_place():
    for axis, found in ((-1, True), (1, False)):
        g = Graph()
        x = x_of(g, (8, 8))
        mean = (
            g.along("Unsqueeze", g.reduce("ReduceMean", x * x, (-1,), 0), (axis,))
            if axis == -1
            else g.reduce("ReduceMean", x * x, (-1,), 0)
        )
        _, fused, _ = fuse_of(g, x / g.op("Sqrt", mean + 1e-3), (8, 8))
        assert bool(nodes_of(fused)) == found


@pytest.mark.parametrize("shape", [(8,), (1, 8), (1, 1, 8), (), (1,), (3, 8), (3, 1)])
def test_13_scales_of_every_shape_that_broadcasts_into_x(shape):
    g = Graph()
    x = x_of(g)
    w = g.weight(np.random.default_rng(0).standard_normal(shape), F)
    model, fused, report = fuse_of(g, chain(g, x, w)["y"])
    assert report.fused[0].scale
    same_results(model, fused, data())


@pytest.mark.parametrize(("x_shape", "shape", "out"), [((3, 1), (2,), (3, 2)), ((3, 8), (2, 3, 8), (2, 3, 8))])
def test_13_a_scale_that_enlarges_x_is_not_taken(x_shape, shape, out):
    g = Graph()
    w = g.weight(np.random.default_rng(0).standard_normal(shape), F)
    model, fused, report = fuse_of(g, chain(g, x_of(g, x_shape), w)["y"], out)
    assert not report.fused[0].scale
    same_results(model, fused, data(x_shape))


def test_14_an_activation_is_not_a_scale():
    for shape in (SHAPE, (2, 1, 8)):
        g = Graph()
        gate = g.input("gate", F, shape)
        _, fused, report = fuse_of(g, chain(g, x_of(g), gate)["y"])
        assert not report.fused[0].scale
        assert nodes_of(fused, "") == ["Mul"]


@pytest.mark.parametrize("how", ["into_x", "into_inverse"])
def test_15_a_scale_applied_early_is_the_scale(how):
    fused, report = rmsnorm_deploy.fuse(build(Spelling(scale=how)).model)
    assert report.fused[0].scale
    assert nodes_of(fused, "") == []


def test_16_one_plus_w_is_found_folded_and_not():
    _, report = rmsnorm_deploy.fuse(build(Spelling(scale="one_plus")).model)
    assert report.fused[0].scale.startswith("add")
    g = Graph()
    w = g.input("w", F, (8,))
    model, fused, _ = fuse_of(g, chain(g, x_of(g), w + 1.0)["y"])
    assert nodes_of(fused, "") == ["Add"], "1 + w of a w from outside stays in the graph"
    same_results(model, fused, data() | {"w": np.linspace(-1, 1, 8, dtype=np.float32)})


def test_17_a_norm_without_scale_gets_ones_of_its_length_and_type():
    for dtype in (F, H, B):
        g = Graph()
        x = x_of(g, dtype=dtype)
        y = chain(g, g.cast(x, F) if dtype != F else x)["y"]
        _, fused, _ = fuse_of(g, g.cast(y, dtype) if dtype != F else y)
        (ones,) = fused.graph.initializer
        assert (list(ones.dims), ones.data_type) == ([8], dtype)
        assert (numpy_helper.to_array(ones) == 1).all()


def test_18_a_partial_norm_is_never_taken_for_a_full_one():
    model = build(Spelling(partial=3)).model
    fused, report = rmsnorm_deploy.fuse(model)
    assert report.fused[0].attributes["partial_size"] == [3]
    same_results(model, fused, data())


def test_19_group_norms_keep_their_reshapes():
    g = Graph()
    x = g.op("Reshape", x_of(g), g.constant([2, 3, 2, 4], I64))
    y = g.op("Reshape", chain(g, x)["y"], g.constant(list(SHAPE), I64)) * g.weight(np.linspace(1, 2, 8), F)
    model, fused, report = fuse_of(g, y)
    assert nodes_of(fused, "") == ["Reshape", "Reshape", "Mul"]
    assert not report.fused[0].scale
    same_results(model, fused, data())


def test_20_intermediates_that_something_else_reads_stay():
    g = Graph()
    v = chain(g, x_of(g), g.weight(np.ones(8), F))
    g.output(v["rms"], "rms", (2, 3, 1))
    model, fused, report = fuse_of(g, v["y"])
    assert len(report.fused[0].kept) == 4
    same_results(model, fused, data())


def test_21_norms_that_share_a_statistic_are_each_one_node():
    g = Graph()
    n = chain(g, x_of(g))["normalised"]
    g.output(n * g.weight(np.ones(8), F), "a", SHAPE)
    _, fused, _ = fuse_of(g, n * g.weight(np.full(8, 2), F))
    assert nodes_of(fused) == ["RMSNorm", "RMSNorm"]
    assert nodes_of(fused, "") == []


def test_22_a_value_of_the_chain_is_never_the_scale():
    for other in ("normalised", "x", "inverse"):
        g = Graph()
        v = chain(g, x_of(g))
        model, fused, report = fuse_of(g, v["normalised"] * v[other])
        assert all(not f.scale for f in report.fused)
        same_results(model, fused, data())


def test_23_what_is_squared_is_what_is_scaled():
    g = Graph()
    x = x_of(g, dtype=H)
    twice = g.cast(x, F), g.cast(x, F)
    y = twice[1] * g.op("Reciprocal", g.op("Sqrt", g.reduce("ReduceMean", twice[0] ** 2.0, (-1,)) + 1e-3))
    _, fused, report = fuse_of(g, g.cast(y, H))
    assert nodes_of(fused) == ["RMSNorm"], "two Casts of one value are one value"
    assert report.fused[0].x == "x"


def test_24_a_centred_norm_stays_a_layer_norm():
    g = Graph()
    x = x_of(g)
    _, fused, _ = fuse_of(g, chain(g, x - g.reduce("ReduceMean", x, (-1,)))["y"])
    assert not nodes_of(fused)


def test_25_a_residual_is_taken_in_only_with_equal_shapes_and_types():
    for shape, op in ((SHAPE, "AddRMSNorm"), ((3, 8), "RMSNorm"), ((1, 3, 8), "RMSNorm")):
        g = Graph()
        x, r = x_of(g), g.input("r", F, shape)
        model, fused, _ = fuse_of(g, chain(g, x + r, g.weight(np.ones(8), F))["y"])
        assert nodes_of(fused) == [op]
        same_results(model, fused, data() | {"r": rows(shape, np.float32, 3)})


def test_26_norms_in_every_body_are_found():
    assert len(rmsnorm_deploy.fuse(if_model())[1].fused) == 2
    inner = Graph()
    v = chain(inner, V(inner, "state", F), V(inner, "w", F))
    inner.nodes.append(helper.make_node("Identity", [v["y"].name], ["scanned"]))
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        inner.nodes, "body", [info("state", F, (3, 8)), info("row", F, (3, 8))],
        [info(v["y"].name, F, (3, 8)), info("scanned", F, (3, 8))], inner.initializers,
    )  # fmt: skip
    g = Graph()
    x, start = x_of(g), g.input("start", F, (3, 8))
    g.weight(np.ones(8), F, "w")
    g.nodes.append(helper.make_node("Scan", [start.name, x.name], ["last", "y"], body=body, num_scan_inputs=1))
    g.outputs.append(info("y", F, SHAPE))
    model = g.model()
    fused, report = rmsnorm_deploy.fuse(model)
    assert len(report.fused) == 1
    onnx.checker.check_model(fused, full_check=True)
    same_results(model, fused, data() | {"start": rows((3, 8), np.float32, 4)})


def test_27_the_form_onnx_raises_opset_and_ir_version():
    model = build(Spelling(opset=18)).model
    fused, report = rmsnorm_deploy.fuse(model, form="onnx")
    assert nodes_of(fused, "") == ["RMSNormalization"]
    assert [o.version for o in fused.opset_import if o.domain == ""] == [23]
    assert "raised" in report.warnings[0]
    onnx.checker.check_model(fused, full_check=True)
    same_results(model, fused, data())


def test_28_integers_are_never_a_norm():
    g = Graph()
    x = x_of(g, dtype=I64)
    _, fused, report = fuse_of(g, g.reduce("ReduceMean", x * x, (-1,)), (2, 3, 1))
    assert not nodes_of(fused)
    assert "INT64" in report.missed[0].reason


@pytest.mark.parametrize("what", ["epsilon", "exponent", "axes", "scale"])
def test_29_what_a_caller_can_override_is_not_baked_in(what):
    g = Graph()
    x = x_of(g)
    values = {
        "epsilon": (1e-3, F, ()),
        "exponent": (2.0, F, ()),
        "axes": ([-1], I64, (1,)),
        "scale": (np.ones(8), F, (8,)),
    }
    array, dtype, shape = values[what]
    given = g.weight(array, dtype, "given")
    g.inputs.append(helper.make_tensor_value_info("given", dtype, shape))
    square = g.op("Pow", x, given) if what == "exponent" else x * x
    axes = given if what == "axes" else g.constant([-1], I64)
    root = g.op("Sqrt", g.op("ReduceMean", square, axes, keepdims=1) + (given if what == "epsilon" else 1e-3))
    y = x / root
    model, fused, _ = fuse_of(g, y * given if what == "scale" else y)
    assert bool(nodes_of(fused)) == (what == "scale")
    assert "given" in [i.name for i in fused.graph.input]
    if what == "scale":
        same_results(model, fused, data() | {"given": np.linspace(1, 2, 8, dtype=np.float32)})


def test_30_a_shared_weight_is_neither_changed_nor_copied():
    g = Graph()
    x, w = x_of(g), g.weight(np.linspace(1, 2, 8), F, "w")
    y = chain(g, chain(g, x, w)["y"], w)["y"]
    g.output(x * w, "other", SHAPE)
    _, fused, _ = fuse_of(g, y)
    assert [t.name for t in fused.graph.initializer] == ["w"]


def test_31_weights_in_another_file_are_not_read(tmp_path):
    model = build(Spelling()).model
    for t in model.graph.initializer:
        if list(t.dims) == [8]:
            t.ClearField("raw_data")
            t.data_location = TensorProto.EXTERNAL
            t.external_data.add(key="location", value="weights.bin")
            t.external_data.add(key="length", value="32")
    (tmp_path / "weights.bin").write_bytes(bytes(32))
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "weights.bin").chmod(0)
    fused, report = rmsnorm_deploy.fuse(tmp_path / "m.onnx")
    assert len(report.fused) == 1
    kept = next(t for t in fused.graph.initializer if list(t.dims) == [8])
    assert {e.key: e.value for e in kept.external_data}["location"] == "weights.bin"


def test_32_new_names_avoid_those_of_every_scope():
    model = if_model()
    model.graph.node[0].name = "norm"
    for attribute in model.graph.node[0].attribute:
        attribute.g.node[-1].name = "last"
    model.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "last_rmsnorm"))
    fused, _ = rmsnorm_deploy.fuse(model)
    onnx.checker.check_model(fused, full_check=True)
    names = [n.name for a in fused.graph.node[0].attribute for n in a.g.node]
    assert "last_rmsnorm" not in names


def test_33_a_dequantised_weight_is_a_scale_and_a_quantised_product_is_not():
    g = Graph()
    q = g.weight(np.arange(8), F)  # placeholder for the int8 tensor
    g.initializers[-1].CopyFrom(numpy_helper.from_array(np.arange(8, dtype=np.int8), q.name))
    w = g.op("DequantizeLinear", q, g.constant(0.1), dtype=F)
    model, fused, report = fuse_of(g, chain(g, x_of(g), w)["y"])
    assert report.fused[0].scale == w.name
    same_results(model, fused, data())
    g = Graph()
    n = chain(g, x_of(g))["y"]
    step = g.constant(0.1)
    n = g.op("DequantizeLinear", g.op("QuantizeLinear", n, step), step)
    _, fused, report = fuse_of(g, n * g.weight(np.ones(8), F))
    assert not report.fused[0].scale


def test_34_a_reshape_or_transpose_before_the_scale_is_not_crossed():
    for op, extra in (("Reshape", lambda g: [g.constant([2, 3, 8], I64)]), ("Transpose", lambda g: [])):
        g = Graph()
        x = x_of(g, (2, 8, 3) if op == "Transpose" else (2, 3, 2, 4))
        n = g.op(op, chain(g, x)["y"], *extra(g), **({"perm": [0, 2, 1]} if op == "Transpose" else {}))
        _, fused, report = fuse_of(g, n * g.weight(np.ones(8), F))
        assert not report.fused[0].scale
        assert nodes_of(fused, "") == [op, "Mul"]


def test_35_an_unknown_hidden_size_gets_a_scale_of_one_element():
    g = Graph()
    _, fused, _ = fuse_of(g, chain(g, x_of(g, ("n", "h")))["y"], ("n", "h"))
    assert [list(t.dims) for t in fused.graph.initializer] == [[]]
    for h in (1, 5):
        x = rows((3, h), np.float32)
        assert (
            units(run(fused, {"x": x}, True)[0], rms_norm(x, np.ones(1, np.float32), epsilon=1e-6, exact=True)[0]) <= 6
        )


def test_35_a_divisor_taken_from_the_shape_is_the_size():
    for shape in (SHAPE, ("n", "s", "h")):
        g = Graph()
        x = x_of(g, shape)
        n = g.cast(g.op("Gather", g.op("Shape", x, dtype=I64), g.constant(-1, I64), dtype=I64), F)
        root = g.op("Sqrt", g.reduce("ReduceSum", x * x, (-1,)) / n + 1e-3)
        model, fused, report = fuse_of(g, x / root, shape)
        assert report.fused[0].epsilon == pytest.approx(1e-3)
        assert nodes_of(fused, "") == []
        same_results(model, fused, data())


@pytest.mark.parametrize("hook", [None, rmsnorm_deploy.register])
def test_36_zero_rows_give_zero_rows(hook):
    g = Graph()
    _, fused, _ = fuse_of(g, chain(g, x_of(g, ("n", 3, 8)), g.weight(np.ones(8), F))["y"], ("n", 3, 8))
    assert run(fused, {"x": np.zeros((0, 3, 8), np.float32)}, True, hook)[0].shape == (0, 3, 8)


@pytest.mark.parametrize("hook", [None, rmsnorm_deploy.register])
def test_37_nan_and_infinity_end_where_the_original_has_them(hook):
    g = Graph()
    model, fused, _ = fuse_of(g, chain(g, x_of(g), g.weight(np.ones(8), F))["y"])
    x = rows(SHAPE, np.float32)
    x[0, 0, 1], x[0, 1, 2], x[1, 0, 3], x[1, 1, :] = np.nan, np.inf, -np.inf, 1e30
    before, after = run(model, {"x": x}, False)[0], run(fused, {"x": x}, True, hook)[0]
    np.testing.assert_array_equal(np.isnan(after), np.isnan(before))
    np.testing.assert_allclose(after, before, rtol=1e-5)


@pytest.mark.parametrize("hook", [None, rmsnorm_deploy.register])
def test_38_without_epsilon_zero_rows_stay_nan(hook):
    g = Graph()
    x = x_of(g)
    _, fused, _ = fuse_of(g, x / g.op("Sqrt", g.reduce("ReduceMean", x * x, (-1,))))
    assert np.isnan(run(fused, {"x": np.zeros(SHAPE, np.float32)}, True, hook)[0]).all()


@pytest.mark.parametrize("at", ["x", "mean", "normalised", "y"])
@pytest.mark.parametrize("noise", ["identity", "cast", "times_one", "dropout"])
def test_39_noise_is_looked_through(noise, at):
    fused, report = rmsnorm_deploy.fuse(build(Spelling(noise=noise, noise_at=at)).model)
    assert len(report.fused) == 1
    assert len(nodes_of(fused, "")) <= (at == "x"), "what stands before x is not ours to remove"


def test_40_names_documentation_and_order_are_kept():
    g = Graph()
    v = chain(g, x_of(g), g.weight(np.ones(8), F))
    g.nodes[-1].doc_string = "the end"
    g.nodes[-1].metadata_props.add(key="pkg.torch.onnx.name", value="model.norm")
    g.value_info.append(helper.make_tensor_value_info(v["y"].name, F, SHAPE))
    model, fused, _ = fuse_of(g, g.op("Relu", v["y"]))
    norm = next(n for n in fused.graph.node if n.op_type == "RMSNorm")
    assert list(norm.output) == [v["y"].name]
    assert norm.doc_string == "the end"
    assert {p.key: p.value for p in norm.metadata_props}["pkg.torch.onnx.name"] == "model.norm"
    assert [i.name for i in fused.graph.value_info] == [i.name for i in model.graph.value_info]
    seen = {i.name for i in fused.graph.input} | {t.name for t in fused.graph.initializer}
    for node in fused.graph.node:
        assert set(node.input) <= seen
        seen |= set(node.output)


LP_SIZES = (1, 1e-17, 1e-19, 1e-20, 1e-23, 1e-30, 1e-40, 1e-60, 0)


@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("dtype", [F, D])
@pytest.mark.parametrize("size", [4, 64])
def test_41_rows_divided_by_their_norm_have_length_one_or_are_zero(dtype, size, axis):
    rng = np.random.default_rng(0)
    x = np.stack([rng.standard_normal(size) * f for f in LP_SIZES]).astype({F: np.float32, D: np.float64}[dtype])
    shape = ["rows", size] if axis == -1 else [size, "rows"]
    g = Graph()
    _, fused, report = fuse_of(g, g.op("LpNormalization", g.input("x", dtype, shape), axis=axis, p=2), shape)
    assert bool(report.fused) == (dtype == F), "float64 rows may be smaller than any least RMS that float32 can hold"
    assert [m.site.op_type for m in report.near_misses] == ([] if dtype == F else ["LpNormalization"])
    feeds = x if axis == -1 else np.ascontiguousarray(x.T)
    got = [run(fused, {"x": feeds}, o, h)[0] for o in (False, True) for h in (None, rmsnorm_deploy.register)]
    got = [np.asarray(y if axis == -1 else y.T, np.float64) for y in got]
    for y in got:
        length = np.linalg.norm(y, axis=-1)
        mean = (x.astype(np.float64) ** 2).mean(-1)
        np.testing.assert_allclose(length[mean >= np.finfo(x.dtype).tiny], 1, rtol=1e-5)
        # squares lose bits there, one after the other
        np.testing.assert_allclose(length[mean >= 2.0**11 * np.finfo(x.dtype).smallest_subnormal], 1, rtol=5e-4)
        assert (length < 1.001).all()
        assert length[-1] == 0
        np.testing.assert_allclose(y, got[0], atol=5e-4)


@pytest.mark.parametrize("to", [H, B])
def test_41_rows_of_16_bits_divided_by_their_norm(to):
    g = Graph()
    x = g.cast(x_of(g, ("n", 64)), to)
    y = g.cast(g.op("LpNormalization", g.cast(x, F), axis=-1, p=2), to)
    _, fused, report = fuse_of(g, g.cast(y, F), ("n", 64))
    assert report.fused[0].type == {H: "FLOAT16", B: "BFLOAT16"}[to]
    rows_ = np.random.default_rng(0).standard_normal((4, 64)) * np.array([1, 1e-6, 1e-30, 0])[:, None]
    for hook in (None, rmsnorm_deploy.register):
        length = np.linalg.norm(run(fused, {"x": rows_.astype(np.float32)}, True, hook)[0], axis=-1)
        np.testing.assert_allclose(length, [1, 1, 0, 0], atol=1e-2)


def test_41_float32_rows_divided_by_their_norm_in_float64():
    g = Graph()
    y = g.op("LpNormalization", g.cast(x_of(g, ("n", 8)), D), axis=-1, p=2)
    _, fused, report = fuse_of(g, g.cast(y, F), ("n", 8))
    assert report.fused
    x = (np.random.default_rng(0).standard_normal((4, 8)) * np.array([1, 1e-30, 1e-38, 0])[:, None]).astype(np.float32)
    for hook in (None, rmsnorm_deploy.register):
        length = np.linalg.norm(run(fused, {"x": x}, True, hook)[0].astype(np.float64), axis=-1)
        np.testing.assert_allclose(length, [1, 1, 1, 0], atol=1e-4)


@pytest.mark.parametrize(("floor", "fuses"), [(1e-12, True), (1e-20, True), (1e-22, False), (1e-38, False)])
@pytest.mark.parametrize("how", ["clip l2", "max root", "min inverse", "outside"])
def test_42_a_least_rms_below_which_squares_underflow_stays(how, floor, fuses):
    g = Graph()
    x = x_of(g)
    root = {
        "clip l2": lambda: x / g.op("Clip", g.reduce("ReduceL2", x, (-1,)), g.constant(floor)),
        "max root": lambda: x / g.op("Max", g.op("Sqrt", g.reduce("ReduceMean", x * x, (-1,))), g.constant(floor)),
        "min inverse": lambda: (
            x * g.op("Min", g.op("Reciprocal", g.reduce("ReduceL2", x, (-1,))), g.constant(min(1 / floor, 3e38)))
        ),
        "outside": lambda: x / (g.reduce("ReduceL2", x, (-1,)) + floor),
    }[how]()
    model, fused, report = fuse_of(g, root)
    assert bool(report.fused) == fuses
    assert fuses or "underflow" in report.near_misses[0].reason
    sizes = np.array([1, 1e-17, 1e-18])[:, None]
    same_results(
        model, fused, {"x": (rows(SHAPE, np.float32) * sizes).astype(np.float32)}, slack=32 if floor > 1e-18 else 2**13
    )


def test_43_no_features_are_no_reason_to_fail():
    g = Graph()
    x = x_of(g, (2, 0))
    _, _, report = fuse_of(g, x / g.op("Sqrt", g.reduce("ReduceSum", x * x, (-1,)) + 1.0), (2, 0))
    assert len(report.fused) + len(report.missed) == 1


@pytest.mark.parametrize("how", ["Mul", "Div"])
@pytest.mark.parametrize("order", ["bias, factor", "factor, bias", "scale, bias, factor", "factor, scale, bias"])
def test_44_a_factor_behind_the_bias_multiplies_the_bias_too(how, order):
    """sqrt(n) after an L2 norm makes a norm of it, but not once something was added."""
    g = Graph()
    x = x_of(g)
    y = x / g.op("Max", g.reduce("ReduceL2", x, (-1,)), g.constant(1e-6))
    for part in order.split(", "):
        if part == "factor":
            y = y * 8**0.5 if how == "Mul" else g.op("Div", y, g.constant(8**-0.5))
        else:
            weight = g.weight((8,), F)
            y = y * weight if part == "scale" else y + weight
    model, fused, report = fuse_of(g, y)
    assert len(report.fused) == 1
    same_results(model, fused, data(), slack=32)


@pytest.mark.parametrize(
    ("equation", "is_scale"),
    [
        ("abc,c->abc", True),
        ("...c,c->...c", True),
        ("abc,bc->abc", True),
        ("abc,b->abc", False),
        ("abc,a->abc", False),
        ("abc,cb->abc", False),
        ("abc,ac->abc", False),
        ("abc,c->acb", False),
        ("abc,c->ab", False),
        ("abc,c->cab", False),
        ("abc,cd->abd", False),
        ("abc,c", False),
        ("abb,b->abb", False),
        ("abc,abc->abc", True),
    ],
)
def test_an_einsum_is_a_scale_where_it_multiplies_the_last_dimensions(equation, is_scale):
    """All dimensions are of one size, so that only the letters tell."""
    term = equation.partition("->")[0].split(",")[1]
    g = Graph()
    x = g.input("x", F, (3, 3, 3))
    w = g.weight(np.random.default_rng(0).standard_normal((3,) * len(term)), F)
    g.output(
        g.op("Einsum", chain(g, x)["y"], w, equation=equation), "y", (None,) * (2 if equation.endswith("->ab") else 3)
    )
    model = g.model()
    if equation in ("abb,b->abb", "abc,c"):
        del model.graph.output[0].type.tensor_type.shape.dim[:]
        model.graph.output[0].type.tensor_type.ClearField("shape")
    _, report = rmsnorm_deploy.fuse(model, dry_run=True)
    assert ["Einsum(.,W)" in norm.spelling for norm in report.fused] == [is_scale]
    if equation in ("abb,b->abb", "abc,c"):
        return
    data = np.random.default_rng(1).standard_normal((3, 3, 3)).astype(np.float32)
    data[0, 0], data[0, 1], data[1, 0], data[1, 1, 1] = 0.0, data[0, 1] * 1e-20, data[1, 0] * 1e18, np.nan
    (truth,) = run(model, {"x": data}, False)
    for hook in (None, rmsnorm_deploy.register):
        (got,) = run(rmsnorm_deploy.fuse(model)[0], {"x": data}, True, hook)
        np.testing.assert_allclose(got, truth, rtol=1e-5, atol=1e-6)
