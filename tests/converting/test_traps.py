"""What must not be converted, or only with care: each is refused with the node named, or right."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rmsnorm_deploy
from rmsnorm_deploy.errors import ModelError
from tests.support.run import run
from tests.support.spellings.graph import I64, F, H, V
from tests.support.streams import TOKENS, WORDS, D, Streams, converted, feeds, layer_norms


def refused(model, *words):
    """Nothing is converted, and the reason has these words in it."""
    plain, report = converted(model)
    assert report.converted == 0
    assert layer_norms(plain) == layer_norms(model)
    reasons = " ".join(s.reason for s in report.streams) + " ".join(r for _, r in report.others)
    for word in words:
        assert word in reasons, reasons
    return report


def test_a_hidden_state_that_is_an_output():
    g = Streams()
    x = g.layers(g.embedded())
    g.output(x, "hidden", (2, TOKENS, D))
    report = refused(g.finish(x), "'hidden' is an output of the graph")
    assert report.streams[0].node == "hidden"


def test_a_hidden_state_of_an_early_layer_that_is_an_output():
    g = Streams()
    x = g.layers(g.embedded(), 1)
    g.output(x, "hidden", (2, TOKENS, D))
    refused(g.finish(g.layers(x, 3)), "'hidden' is an output of the graph")


def test_an_attention_that_reads_the_stream_without_a_norm():
    g = Streams()
    x = g.layers(g.embedded())
    n = g.layer_norm(x)
    keys = g.op("Transpose", g.linear(x), perm=[0, 2, 1])
    scores = g.op("Softmax", g.op("MatMul", n, keys), axis=-1)
    refused(g.finish(x + g.linear(g.op("MatMul", scores, n))), "MatMul 'node_matmul_", "needs its mean")


def test_a_product_of_the_stream_without_a_norm():
    g = Streams()
    x = g.layers(g.embedded())
    g.layer_norm(x)
    g.output(g.linear(x, WORDS), "logits", (2, TOKENS, WORDS))
    refused(g.finish(x), "needs its mean")


def test_an_activation_of_the_stream():
    g = Streams()
    x = g.layers(g.embedded())
    refused(g.finish(x + g.linear(g.op("Relu", x))), "Relu 'node_relu_")


def test_a_scale_for_each_feature_within_the_stream():
    g = Streams()
    x = g.layers(g.embedded()) * g.random(D)
    refused(g.finish(g.layers(x)), "Mul 'node_mul_")


def test_a_sum_over_the_features_of_the_stream():
    g = Streams()
    x = g.layers(g.embedded())
    g.output(g.reduce("ReduceSum", x, [-1]), "sums", (2, TOKENS, 1))
    refused(g.finish(x), "ReduceSum")


def test_a_table_that_the_last_product_reads_as_well_is_not_edited():
    g = Streams()
    table = g.random(400, D, name="table", mean=1.0)  # larger than what is copied
    for t in g.initializers:
        assert t.name == "table"
    g.initializers[0].dims[0] = 400
    x = g.layers(g.embedded(table))
    y = g.op("MatMul", g.layer_norm(x), g.op("Transpose", table, perm=[1, 0]))
    g.output(y, "y", (2, TOKENS, 400))
    _tied(g.model(), "table")


@pytest.mark.parametrize("dtype", [F, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
@pytest.mark.parametrize("axis", [None, 0, -2])
def test_means_of_rows_that_are_looked_up_are_looked_up_as_well(dtype, axis):
    """One reduction less while the model runs; the means are exact but for one rounding, in 32 bits at least."""
    g = Streams(dtype=dtype)
    table = g.random(2200, D, name="table", mean=3.0)
    g.output(g.op("MatMul", g.random(1, D), g.op("Transpose", table, perm=[1, 0])), "other", (1, 2200))
    ids = g.input("ids", I64, (2, TOKENS))
    attributes = {} if axis is None else {"axis": axis}
    x, again = (g.op("Gather", table, ids, dtype=dtype, **attributes) for _ in range(2))
    model = g.finish(g.layers(x + again, 5))
    if dtype == TensorProto.BFLOAT16:  # which onnxruntime's CPU has no products of
        plain, report = rmsnorm_deploy.convert(model, fuse=False)
    else:
        plain, report = converted(model, exact=False, least=2.0 if dtype == TensorProto.FLOAT16 else 1.0)
    assert report.converted == 6
    assert len(report.streams[0].centrings) == 2
    looked_up = [n for n in plain.graph.node if n.op_type == "Gather"]
    means = {n.input[0] for n in looked_up} - {"table"}
    assert (len(looked_up), len(means)) == (4, 1), "both look-ups share the means"
    held = {t.name: onnx.numpy_helper.to_array(t) for t in plain.graph.initializer}
    values = held[means.pop()]
    wide = np.float64 if dtype == TensorProto.DOUBLE else np.float32
    wanted = -held["table"].astype(np.float64).mean(axis=1, keepdims=True)
    assert values.dtype == wide
    np.testing.assert_array_equal(values, wanted.astype(wide))
    # the norms have one each, and nothing else takes a mean
    assert sum(n.op_type == "ReduceMean" for n in plain.graph.node) == 6


@pytest.mark.parametrize("kind", ["features", "three", "input"])
def test_what_is_looked_up_otherwise_is_centred_as_it_is(kind):
    """Features of a table's columns, rows of a matrix, and a table that a caller gives have no means to look up."""
    g = Streams()
    ids = g.input("ids", I64, (2, TOKENS))
    if kind == "features":
        table = g.random(D, 2200, name="table")
        x = g.op("Transpose", g.op("Gather", table, ids, axis=1), perm=[1, 2, 0])
    elif kind == "three":
        table = g.random(2200, 1, D, name="table")
        x = g.along("Squeeze", g.op("Gather", table, ids), [2])
    else:
        table = g.input("table", F, (2200, D))
        x = g.op("Gather", table, ids, dtype=F)
    if kind != "input":
        g.output(g.op("Tanh", table), "other", (2200, 1, D) if kind == "three" else (D, 2200))
    plain, report = converted(g.finish(g.layers(x, 3)))
    assert report.converted == 4
    assert len(report.streams[0].centrings) == 1
    assert sum(n.op_type == "Gather" for n in plain.graph.node) == 1
    assert sum(n.op_type == "ReduceMean" for n in plain.graph.node) == 5


def _tied(model, name, norms=3, stays=True):
    """The weight stays, whatever else is done; or goes, where copies have taken its place."""
    import rmsnorm_deploy.converting.decide as decide

    before = next(t for t in model.graph.initializer if t.name == name).raw_data
    for most in (0, decide.COPIED_BYTES):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decide, "COPIED_BYTES", most)
            plain, report = converted(model)
        if stays or most == 0:
            assert next(t for t in plain.graph.initializer if t.name == name).raw_data == before
        else:
            assert name not in {t.name for t in plain.graph.initializer}
        assert report.converted == norms
        assert bool(report.streams[0].centrings) == (most == 0)
        assert any(e.copied for e in report.streams[0].edits) == (most > 0)


def test_a_weight_that_a_product_elsewhere_reads_as_well():
    g = Streams()
    w = g.matrix(D, D, name="shared")
    x = g.embedded()
    x = x + g.op("MatMul", g.op("Tanh", g.op("MatMul", g.layer_norm(x), w)), w)
    _tied(g.finish(g.layers(x, 1)), "shared")


def test_a_bias_that_is_added_elsewhere_as_well():
    g = Streams()
    b = g.random(D, name="shared")
    x = g.embedded()
    x = x + (g.op("MatMul", g.op("Tanh", g.linear(g.layer_norm(x)) + b), g.matrix(D, D)) + b)
    _tied(g.finish(g.layers(x, 1)), "shared")


def test_a_weight_that_two_layers_of_the_stream_share_is_edited_once():
    g = Streams()
    x, w = g.embedded(), g.matrix(D, D, name="shared")
    for _ in range(2):
        x = x + g.op("MatMul", g.op("Tanh", g.layer_norm(x)), w)
    _, report = converted(g.finish(x))
    assert report.converted == 3
    assert [e.copied for e in report.streams[0].edits if e.name == "shared"] == [False]


def test_a_weight_of_two_streams_one_of_which_stays():
    g = Streams()
    w = g.matrix(D, D, name="shared")
    x = g.embedded()
    for _ in range(2):
        x = x + g.op("MatMul", g.op("Tanh", g.layer_norm(x)), w)
    g.output(g.linear(g.layer_norm(x), WORDS), "other", (2, TOKENS, WORDS))
    z = g.op("Sin", g.layer_norm(x))
    z = z + g.op("MatMul", z, w)
    g.output(z, "hidden", (2, TOKENS, D))
    z = z + g.op("MatMul", g.layer_norm(z), w)
    g.output(g.linear(g.layer_norm(z), WORDS), "y", (2, TOKENS, WORDS))
    model = g.model()
    before = next(t for t in model.graph.initializer if t.name == "shared").raw_data
    plain, report = converted(model)
    assert (report.converted, report.found) == (4, 6)
    assert next(t for t in plain.graph.initializer if t.name == "shared").raw_data == before


def test_one_weight_along_both_of_its_axes():
    g = Streams()
    x, w = g.embedded(), g.matrix(D, D, name="shared")
    x = x + g.op("MatMul", g.op("Tanh", g.layer_norm(x)), w)
    x = x + g.op("MatMul", g.op("Tanh", g.layer_norm(x)), g.op("Transpose", w, perm=[1, 0]))
    _tied(g.finish(g.layers(x, 3)), "shared", 6, stays=False)


def test_the_norm_of_another_axis_or_of_two():
    g = Streams()
    x = g.layers(g.embedded(), 1)
    w = g.weight(np.ones((TOKENS, D)), F)
    g.output(g.op("LayerNormalization", x, w, axis=1), "two", (2, TOKENS, D))
    refused(g.finish(x), "it normalises more than the last dimension", "LayerNormalization 'node_")


def test_a_norm_of_the_last_axis_that_is_not_the_stream_s():
    g = Streams()
    x = g.layers(g.embedded())
    turned = g.op("Transpose", x, perm=[0, 2, 1])
    w = g.weight(np.ones(TOKENS), F)
    g.output(g.op("LayerNormalization", turned, w, axis=-1), "turned", (2, D, TOKENS))
    refused(g.finish(x), "LayerNormalization")


def test_a_norm_spelled_out_over_another_axis():
    g = Streams()
    x = g.layers(g.embedded())
    d = x - g.reduce("ReduceMean", x, [1])
    g.output(d / g.op("Sqrt", g.reduce("ReduceMean", d * d, [1]) + 1e-5), "other", (2, TOKENS, D))
    refused(g.finish(x), "Mul 'node_mul_", "needs its mean")


def test_a_mean_that_is_read_elsewhere_as_well():
    g = Streams()
    x = g.layers(g.embedded())
    mean = g.reduce("ReduceMean", x, [-1])
    d = x - mean
    g.output(d / g.op("Sqrt", g.reduce("ReduceMean", d * d, [-1]) + 1e-5), "norm", (2, TOKENS, D))
    g.output(g.op("Identity", mean), "mean", (2, TOKENS, 1))
    refused(g.finish(x), "ReduceMean")


@pytest.mark.parametrize("which", [1, 2])
def test_the_mean_and_the_deviation_of_a_norm_as_outputs(which):
    g = Streams()
    x = g.layers(g.embedded())
    names = [g.name(n) for n in ("normed", "mean", "deviation")]
    w = g.weight(np.ones(D), F)
    g.nodes.append(helper.make_node("LayerNormalization", [x.name, w.name], names[: which + 1], axis=-1))
    g.output(V(g, names[0], F), "normed", (2, TOKENS, D))
    g.output(V(g, names[which], F), "more", (2, TOKENS, 1))
    refused(g.finish(x), "its mean or its deviation is read, too")


@pytest.mark.parametrize("kind", ["product", "table"])
def test_quantised_weights(kind):
    g = Streams(21)
    numbers = np.random.default_rng(1).integers(-90, 127, (WORDS if kind == "table" else D, D)).astype(np.int8)
    g.initializers.append(helper.make_tensor("q", TensorProto.INT8, numbers.shape, numbers.tobytes(), raw=True))
    w = g.op("DequantizeLinear", V(g, "q", F), g.constant(0.02), dtype=F)
    x = g.embedded(w if kind == "table" else None)
    if kind == "product":
        x = x + g.op("MatMul", g.op("Tanh", g.layer_norm(x)), w)
    plain, report = converted(g.finish(g.layers(x)))
    assert report.converted == report.found
    assert len(report.streams[0].centrings) == 1
    assert "DequantizeLinear" in report.streams[0].centrings[0].reason
    assert next(t for t in plain.graph.initializer if t.name == "q").raw_data == numbers.tobytes()


def test_too_many_quantised_weights():
    g = Streams(21)
    x = g.embedded()
    for i in range(3):
        q = np.random.default_rng(i).integers(-90, 127, (D, D)).astype(np.int8)
        g.initializers.append(helper.make_tensor(f"q{i}", TensorProto.INT8, q.shape, q.tobytes(), raw=True))
        w = g.op("DequantizeLinear", V(g, f"q{i}", F), g.constant(0.02), dtype=F)
        x = x + g.op("MatMul", g.op("Tanh", g.layer_norm(x)), w)
    refused(g.finish(x), "DequantizeLinear", "3 centrings at run time for 4 norms would not win")


def test_a_weight_that_a_caller_can_change():
    g = Streams()
    x, w = g.embedded(), g.matrix(D, D, name="w")
    x = x + g.op("MatMul", g.op("Tanh", g.layer_norm(x)), w)
    g.inputs.append(helper.make_tensor_value_info("w", F, (D, D)))
    _, report = converted(g.finish(g.layers(x)))
    assert "which a caller can change" in report.streams[0].centrings[0].reason


def test_post_norm_layers():
    g = Streams()
    x = g.layer_norm(g.embedded() + g.random(TOKENS, D))
    for _ in range(2):
        x = g.layer_norm(x + g.linear(g.op("Tanh", g.linear(x))))
    g.output(g.linear(x, WORDS), "y", (2, TOKENS, WORDS))
    report = refused(g.model(), "post-norm", "LayerNormalization 'node_layernormalization_")
    assert report.found == 3


def test_a_model_without_layer_norms():
    g = Streams()
    x = g.embedded()
    rms = g.op("Sqrt", g.reduce("ReduceMean", x * x, [-1]) + 1e-5)
    g.output(x / rms * g.random(D), "y", (2, TOKENS, D))
    _, report = rmsnorm_deploy.convert(g.model())
    assert report.converted == report.found == 0
    assert report.summary() == "there is no LayerNorm to convert; fused 1 of 1"


def test_groups_of_channels():
    g = Streams()
    x = g.embedded()
    turned = g.op("Transpose", x, perm=[0, 2, 1])
    y = g.op("Conv", turned, g.random(D, 1, 3), pads=[1, 1], group=D)
    x = g.op("Transpose", y, perm=[0, 2, 1])
    _, report = converted(g.finish(g.layers(x)))
    assert "each group of its outputs has inputs of its own" in report.streams[0].centrings[0].reason


def test_features_that_are_joined_or_chosen():
    for how in ("Concat", "Slice", "Reshape"):
        g = Streams()
        x = g.layers(g.embedded())
        if how == "Concat":
            y, shape = g.op("Concat", x, x, axis=-1), (2, TOKENS, 2 * D)
        elif how == "Slice":
            y = g.op("Slice", x, g.constant([0], I64), g.constant([4], I64), g.constant([-1], I64))
            shape = (2, TOKENS, 4)
        else:
            y, shape = g.op("Reshape", x, g.constant([2, TOKENS, 4, 4], I64)), (2, TOKENS, 4, 4)
        g.output(g.op("Tanh", y), "more", shape)
        refused(g.finish(x), f"{how} 'node_{how.lower()}_")


def test_the_branch_that_others_read_is_centred_behind():
    g = Streams()
    x = g.embedded()
    f = g.linear(g.op("Tanh", g.layer_norm(x)))
    g.output(f, "branch", (2, TOKENS, D))
    _, report = converted(g.finish(g.layers(x + f, 3)))
    assert [c.value for c in report.streams[0].centrings] == ["branch"]
    assert report.converted == 5


def test_a_reader_in_a_subgraph():
    g = Streams()
    x = g.layers(g.embedded())
    body = [
        helper.make_graph(
            [helper.make_node(op, [x.name], [f"{op}_out"])],
            op,
            [],
            [helper.make_tensor_value_info(f"{op}_out", F, (2, TOKENS, D))],
        )
        for op in ("Tanh", "Sin")
    ]
    condition = g.input("c", TensorProto.BOOL, ())
    y = g.op("If", condition, dtype=F, then_branch=body[0], else_branch=body[1])
    g.output(y, "more", (2, TOKENS, D))
    refused(g.finish(x), "needs its mean")


def test_a_dropout_that_drops():
    g = Streams()
    x = g.embedded()
    g.initializers.append(helper.make_tensor("training", TensorProto.BOOL, (), [True]))
    x = x + g.op("Dropout", g.linear(g.layer_norm(x)), g.constant(0.5), V(g, "training", F), seed=1)
    model = g.finish(g.layers(x))
    _, report = rmsnorm_deploy.convert(model)
    assert "it may drop features" in report.streams[0].centrings[0].reason


def test_squares_that_are_read_elsewhere_as_well():
    g = Streams()
    x = g.layers(g.embedded(), norm=lambda x: g.spelled_out(x, how="difference"))
    squares = x * x
    mean = g.reduce("ReduceMean", x, [-1])
    variance = g.reduce("ReduceMean", squares, [-1]) - mean * mean
    g.output((x - mean) / g.op("Sqrt", variance + 1e-5), "norm", (2, TOKENS, D))
    g.output(g.op("Identity", squares), "squares", (2, TOKENS, D))
    refused(g.model(), "Mul 'node_mul_")


def test_norms_in_a_function_are_named():
    g = Streams()
    g.output(g.op("Norm", g.embedded(), g.random(D), domain="mine"), "y", (2, TOKENS, D))
    body = helper.make_node("LayerNormalization", ["x", "w"], ["y"], name="inner", axis=-1)
    imports = [helper.make_opsetid("", 18)]
    function = helper.make_function("mine", "Norm", ["x", "w"], ["y"], [body], imports)
    _, report = converted(g.model([function], [helper.make_opsetid("mine", 1)]))
    assert report.others[0][0] == "inner"
    assert "'mine::Norm'" in report.others[0][1]


@pytest.mark.parametrize("which", ["centred", "variance"])
def test_a_part_of_a_norm_that_is_an_output(which):
    g = Streams()
    x = g.layers(g.embedded())
    mean = g.reduce("ReduceMean", x, [-1])
    d = x - mean
    variance = g.reduce("ReduceMean", x * x, [-1]) - mean * mean
    g.output(d / g.op("Sqrt", variance + 1e-5), "norm", (2, TOKENS, D))
    g.output(d if which == "centred" else variance, which, (2, TOKENS, D if which == "centred" else 1))
    refused(g.finish(x), "")


def test_a_shift_by_another_scale_than_that_of_x():
    g = Streams()
    x = g.layers(g.embedded())
    mean = g.reduce("ReduceMean", x, [-1])
    d = x - mean
    s = g.op("Reciprocal", g.op("Sqrt", g.reduce("ReduceMean", d * d, [-1]) + 1e-5)) * g.random(D)
    g.output(x * (s * 1.5) + (g.random(D) - mean * s), "norm", (2, TOKENS, D))
    refused(g.finish(x), "needs its mean")


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("read", [False, True])
def test_a_branch_that_is_scaled_twice_by_the_same(swapped, read):
    g = Streams()
    x, gamma = g.embedded(), g.random(D)
    f = g.linear(g.op("Tanh", g.layer_norm(x)))
    a, b = (f * gamma for _ in range(2))
    if read:
        g.output(g.op("Tanh", b), "more", (2, TOKENS, D))
    a, b = (b, a) if swapped else (a, b)
    _, report = converted(g.finish(g.layers(g.layers(x + a, 3) + b, 3)))
    assert report.converted == report.found
    assert bool(report.streams[0].centrings) == read


def test_a_reference_to_an_attribute_outside_of_a_function():
    g = Streams()
    model = g.finish(g.layers(g.embedded()))
    model.graph.node[0].attribute.append(helper.make_attribute("axis", 0))
    model.graph.node[0].attribute[-1].ref_attr_name = "to"
    with pytest.raises(ModelError, match="'node_gather_1' refers to an attribute of a function"):
        rmsnorm_deploy.convert(model)


def _with(writer, **kwargs):
    """A model with one more writer in its stream."""
    g = Streams(**kwargs)
    x = g.embedded()
    x = x + writer(g, g.op("Tanh", g.layer_norm(x)))
    return g.finish(g.layers(x, 2))


def _number_at_run_time(g, x):
    return g.linear(x) + g.input("s", F, (1,)) * g.along("Squeeze", g.input("t", F, (1,)), [0])


def _scalar(g, x):
    return g.linear(x) + g.along("Squeeze", g.input("t", F, (1,)), [0])


def _number_in_an_attribute(g, x):
    name = g.name("number")
    g.nodes.append(helper.make_node("Constant", [], [name], value_float=3.0))
    return g.linear(x) + V(g, name, F)


def _number_for_each_token(g, x):
    return g.linear(x) + g.along("Unsqueeze", g.input("s", F, (2, TOKENS)), [-1])


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("writer", [_scalar, _number_at_run_time, _number_in_an_attribute, _number_for_each_token])
def test_what_has_no_features_has_no_mean_to_take(writer, opset):
    plain, report = converted(_with(writer, opset=opset))
    assert report.converted == report.found == 4
    assert len(report.streams[0].centrings) == 1
    assert layer_norms(plain) == 0


def _scale_of_a_higher_rank(g, x):
    y = g.op("Gather", g.random(WORDS, D), g.constant(np.arange(TOKENS), I64)) * g.random(1, 1, D)
    y = g.op("Transpose", g.op("Transpose", y, perm=[1, 0, 2]), perm=[1, 0, 2])
    return g.linear(x) + y


def test_a_scale_that_adds_dimensions_is_not_folded():
    _, report = converted(_with(_scale_of_a_higher_rank))
    assert report.converted == 4
    assert [c.node for c in report.streams[0].centrings] != []


@pytest.mark.parametrize(("factor", "centrings"), [(1.05, 1), (1.0, 0)])
def test_a_resize_that_keeps_the_number_of_features(factor, centrings):
    """16 features stay 16, but not the same ones: floor(16 * 1.05)."""

    def resized(g, x):
        y = g.op("Reshape", g.linear(x), g.constant([1, 2, TOKENS, D], I64))
        roi, factors = g.constant(np.zeros(0), F), g.constant([1.0, 1.0, 1.0, factor], F)
        y = g.op("Resize", y, roi, factors, mode="linear", coordinate_transformation_mode="half_pixel")
        return g.op("Reshape", y, g.constant([2, TOKENS, D], I64))

    model = _with(resized)
    plain, report = rmsnorm_deploy.convert(model, fuse=False)
    assert sum(len(s.centrings) for s in report.streams) == centrings
    given = feeds(model)
    for a, b in zip(run(plain, given, False), run(model, given, False), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("policy", ["stretch", "not_larger"])
def test_a_resize_to_sizes(policy):
    def resized(g, x):
        y = g.op("Reshape", g.linear(x), g.constant([1, 2, TOKENS, D], I64))
        name, sizes = g.name("resized"), g.constant([1, 2, TOKENS, D], I64)
        g.nodes.append(
            helper.make_node("Resize", [y.name, "", "", sizes.name], [name], keep_aspect_ratio_policy=policy)
        )
        return g.op("Reshape", V(g, name, F), g.constant([2, TOKENS, D], I64))

    _, report = converted(_with(resized))
    assert report.converted == 4
    assert bool(report.streams[0].centrings) == (policy != "stretch")


def test_a_table_whose_rows_overflow_without_their_mean():
    g = Streams(dtype=H)
    table = g.weight(np.where(np.arange(D) == 0, 60000.0, -60000.0) * np.ones((WORDS, 1)), H, "table")
    plain, report = rmsnorm_deploy.convert(g.finish(g.layers(g.embedded(table))))
    assert report.converted == 0
    assert report.streams[0].reason == "'table' without its mean is too large for float16"
    assert layer_norms(plain) == 3


def test_a_scale_that_leaves_nothing_of_a_weight_in_float16():
    def scaled(g, x):
        return g.linear(x) * g.weight(1e-6 * (1 + np.arange(D)), H) * 1e4

    _, report = converted(_with(scaled, dtype=H), exact=False, least=2.5)
    assert report.converted == 4
    assert "too small for float16 with its scale" in report.streams[0].centrings[0].reason


def test_a_norm_of_an_unknown_type():
    g = Streams()
    ids = g.input("ids", I64, (2, TOKENS))
    x = g.op("Source", ids, dtype=F, domain="elsewhere")
    for _ in range(3):
        x = g.op("Identity", g.op("LayerNormalization", x, g.random(D), axis=-1))
    g.output(x, "y", (2, TOKENS, D))
    model = g.model(extra_opsets=[helper.make_opsetid("elsewhere", 1)])
    _, report = rmsnorm_deploy.convert(model, fuse=False)
    assert report.converted == 0


def test_a_bias_of_more_dimensions_than_its_norm():
    """The norm's result would have them, too."""
    g = Streams()
    x = g.embedded()
    y = g.op("LayerNormalization", x, g.random(D), g.random(1, 1, 1, D), axis=-1)
    g.output(y, "y", (2, TOKENS, D))
    _, report = rmsnorm_deploy.convert(g.model())
    assert report.converted == 0
    assert report.others[0][1] == "its scale or bias has more dimensions than x"


@pytest.mark.parametrize("which", [0, 1])
def test_a_scale_or_bias_that_does_not_fit(which):
    """Shape inference asks neither."""
    g = Streams()
    x = g.embedded()
    given = [g.random(D), g.random(D)]
    given[which] = g.random(D, WORDS)
    g.output(g.op("LayerNormalization", x, *given, axis=-1), "y", (2, TOKENS, D))
    _, report = rmsnorm_deploy.convert(g.model())
    assert report.others[0][1] == "its scale or bias does not fit x"


def test_a_deviation_that_is_none():
    """The mean of the differences themselves is 0 but for rounding, and that is not the same afterwards."""
    g = Streams()

    def norm(x):
        d = x - g.reduce("ReduceMean", x, [-1])
        return d / g.op("Sqrt", g.reduce("ReduceMean", d**1.0, [-1]) + 1e-5)

    model = g.finish(g.layers(g.embedded(), 2, norm), norm)
    _, report = rmsnorm_deploy.convert(model, fuse=False)
    assert report.converted == 0
