"""What is converted: each kind of writer and of reader, in float64 and not less exact than the original."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import rmsnorm_deploy
from tests.support.judge import units
from tests.support.run import run
from tests.support.spellings.graph import I64, F, V
from tests.support.stream_writers import WRITERS
from tests.support.streams import TOKENS, WORDS, D, Streams, converted, feeds, layer_norms


def whole(report):
    """Whether everything was converted, without a centring at run time."""
    return report.converted == report.found and not any(s.centrings for s in report.streams)


@pytest.mark.parametrize("opset", [17, 18, 21, 23])
def test_a_pre_norm_model_has_only_rms_norms_afterwards(opset):
    g = Streams(opset)
    plain, report = converted(g.finish(g.layers(g.embedded())))
    assert (report.converted, report.found, layer_norms(plain)) == (3, 3, 0)
    assert whole(report)
    fused, report = rmsnorm_deploy.convert(g.model())
    assert sum(n.domain == "rmsnorm_deploy" for n in fused.graph.node) == 3
    assert not any(n.op_type == "ReduceMean" for n in fused.graph.node)
    assert report.summary() == "converted 3 of 3 LayerNorms; fused 3 of 3"


@pytest.mark.parametrize("square", ["pow", "mul"])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("how", ["sub", "add", "added", "difference", "shift"])
@pytest.mark.parametrize("opset", [11, 13, 18])
def test_norms_that_are_spelled_out(square, keepdims, how, opset):
    g = Streams(opset)

    def norm(x):
        return g.spelled_out(x, square, keepdims, how)

    plain, report = converted(g.finish(g.layers(g.embedded(), norm=norm), norm))
    assert report.converted == 3
    assert not any(n.op_type in ("Sub", "Neg") for n in plain.graph.node)
    assert len(rmsnorm_deploy.fuse(plain)[1].fused) == 3


@pytest.mark.parametrize("square", ["pow", "mul"])
@pytest.mark.parametrize("how", ["sub", "add", "difference", "shift"])
@pytest.mark.parametrize("layers", [2, 4])
def test_norms_that_are_spelled_out_of_what_is_centred_while_the_model_runs(layers, how, square):
    """The squares, and products with a scale, are of the value with its mean."""
    g = Streams(13)
    x = g.op("Exp", g.input("x", F, (2, TOKENS, D)))

    def norm(x):
        return g.spelled_out(x, square, 1, how)

    _, report = converted(g.finish(g.layers(x, layers, norm), norm))
    assert report.converted == layers + 1
    assert any(stream.centrings for stream in report.streams)


@pytest.mark.parametrize("writer", WRITERS, ids=lambda w: w.__name__)
def test_a_writer_is_centred_where_it_is_made(writer):
    g = Streams()
    x = g.embedded()
    x = x + writer(g, g.op("Tanh", g.layer_norm(x)))
    plain, report = converted(g.finish(g.layers(x, 1)))
    assert report.converted == report.found == 3
    assert whole(report)
    assert layer_norms(plain) == 0


@pytest.mark.parametrize("stored", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_a_weight_stored_in_16_bits_is_edited_as_it_is_read(stored):
    g = Streams()
    x = g.embedded()
    w = g.weight(g.rng.standard_normal((D, D)) + 0.5, stored, "half")
    x = x + g.op("MatMul", g.op("Tanh", g.layer_norm(x)), g.cast(w, F))
    plain, report = converted(g.finish(x), least=8.0)  # in units of float32; rounded to 16 bits, it is thousands
    assert whole(report)
    assert report.converted == 2
    assert {t.data_type for t in plain.graph.initializer if t.data_type != I64} == {F}


def test_tables_positions_and_a_class_token():
    g = Streams()
    x = g.embedded() * 4.0
    positions = g.op("Gather", g.random(20, D), g.constant([np.arange(TOKENS)], I64))
    token = g.op("Expand", g.random(1, 1, D), g.constant([2, 1, D], I64))
    x = g.op("Concat", token, x + positions, axis=1) + g.random(1, TOKENS + 1, D)
    x = g.layers(x)
    first = g.op("Gather", x, g.constant(0, I64), axis=1)
    g.output(g.linear(g.layer_norm(first), WORDS), "y", (2, WORDS))
    plain, report = converted(g.model())
    assert report.converted == report.found == 3
    assert whole(report)
    assert layer_norms(plain) == 0


def test_weights_lose_their_mean_over_the_outputs_and_keep_their_names():
    g = Streams()
    model = g.finish(g.layers(g.embedded()))
    plain, report = rmsnorm_deploy.convert(model, fuse=False)
    names = {t.name: t for t in plain.graph.initializer}
    edits = [e for s in report.streams for e in s.edits]
    assert "table" in {e.name for e in edits}
    for edit in edits:
        array = np.frombuffer(names[edit.name].raw_data, np.float32).reshape(names[edit.name].dims)
        assert np.abs(array.mean(axis=edit.axis)).max() < 1e-7


def test_a_bias_goes_into_the_products_behind_it():
    g = Streams()
    plain, report = converted(g.finish(g.layers(g.embedded())))
    # the last product has no bias that could take it in
    assert len(report.streams[0].folded) == 2
    ops = [n.op_type for n in rmsnorm_deploy.fuse(plain)[0].graph.node if n.domain]
    assert sorted(ops) == ["AddRMSNorm", "AddRMSNorm", "RMSNorm"]


def test_a_bias_stays_where_a_reader_is_not_linear():
    g = Streams()
    x = g.embedded()
    n = g.layer_norm(x)
    x = x + g.linear(n) + g.op("Tanh", n)
    _, report = converted(g.finish(g.layers(x, 3)))
    assert report.streams[0].norms[0] not in report.streams[0].folded
    assert report.converted == 5


def test_a_bias_behind_a_norm_that_products_share_is_folded_into_a_copy():
    g = Streams()
    x = g.embedded()
    n, shared = g.layer_norm(x), g.random(D)
    a, b = (g.op("Tanh", g.op("MatMul", n, g.matrix(D, D)) + shared) for _ in range(2))
    _, report = converted(g.finish(x + g.linear(a) + g.linear(b)))
    assert len(report.streams[0].folded) == 1


def test_a_bias_of_zeros_is_left_out():
    g = Streams()

    def norm(x):
        w = g.weight(np.linspace(0.5, 1.5, D), F)
        return g.op("LayerNormalization", x, w, g.weight(np.zeros(D), F), axis=-1)

    plain, report = converted(g.finish(g.layers(g.embedded(), norm=norm), norm))
    assert not report.streams[0].folded
    ops = {n.op_type for n in rmsnorm_deploy.fuse(plain)[0].graph.node if n.domain}
    assert ops == {"RMSNorm", "AddRMSNorm"}


def test_a_source_that_cannot_be_edited_is_centred_once_where_that_wins():
    g = Streams()
    x = g.input("x", F, (2, TOKENS, D))
    plain, report = converted(g.finish(g.layers(x)))
    assert report.converted == 3
    assert [c.value for c in report.streams[0].centrings] == ["x"]
    assert layer_norms(plain) == 0
    assert len(rmsnorm_deploy.fuse(plain)[1].fused) == 3


def test_a_norm_in_front_of_the_stream_is_centred_behind():
    g = Streams()
    x = g.layer_norm(g.op("Sin", g.embedded()))
    _, report = converted(g.finish(g.layers(x)))
    assert (report.converted, report.found) == (3, 4)
    assert len(report.streams) == 2


def test_a_shape_of_the_stream_is_no_reader():
    g = Streams()
    x = g.layers(g.embedded())
    g.output(g.op("Shape", x, dtype=I64), "shape", (3,))
    _, report = converted(g.finish(x))
    assert report.converted == 3


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_other_types(dtype):
    g = Streams(dtype=dtype)
    # onnxruntime's CPU computes float16 in float32, where rounded weights are all that is rounded
    least = 2.0 if dtype == TensorProto.FLOAT16 else 1.0
    _, report = converted(g.finish(g.layers(g.embedded())), exact=False, least=least)
    assert report.converted == report.found == 3


def test_an_ir_model_and_a_path(tmp_path):
    import onnx
    import onnx_ir as ir

    g = Streams()
    model = g.finish(g.layers(g.embedded()))
    onnx.save(model, tmp_path / "m.onnx")
    mine = ir.from_proto(model)
    before = ir.to_proto(mine).SerializeToString()
    for given in (mine, tmp_path / "m.onnx", str(tmp_path / "m.onnx")):
        result, report = rmsnorm_deploy.convert(given)
        assert isinstance(result, ir.Model)
        assert report.converted == 3
    assert ir.to_proto(mine).SerializeToString() == before
    assert rmsnorm_deploy.convert(mine, dry_run=True)[0] is mine
    twice, _ = rmsnorm_deploy.convert(model)
    assert twice.SerializeToString() == rmsnorm_deploy.convert(model)[0].SerializeToString()


def test_a_dry_run_changes_nothing():
    g = Streams()
    model = g.finish(g.layers(g.embedded()))
    same, report = rmsnorm_deploy.convert(model, dry_run=True)
    assert same is model
    assert report.summary() == "would convert 3 of 3 LayerNorms"
    assert report.streams[0].edits


def skip_norm(g, x, skip, bias=None, outputs=4):
    """onnxruntime's operator: the normalised sum, and the sum."""
    w, b = g.weight(1 + 0.2 * g.rng.standard_normal(D), F), g.weight(0.3 * g.rng.standard_normal(D), F)
    names = [g.name("normed"), "", "", g.name("sum")][:outputs]
    given = [x.name, skip.name, w.name, b.name] + ([bias.name] if bias else [])
    g.nodes.append(
        helper.make_node("SkipLayerNormalization", given, names, names[0], domain="com.microsoft", epsilon=1e-5)
    )
    return V(g, names[0], F), V(g, names[-1], F)


def embedded_norm(g, segments, places):
    """onnxruntime's operator for tables and the first norm: the normalised sum, and the sum."""
    w, b = g.weight(1 + 0.2 * g.rng.standard_normal(D), F), g.weight(0.3 * g.rng.standard_normal(D), F)
    names = [g.name("normed"), "", g.name("sum")]
    given = {name: g.input(name, TensorProto.INT32, (2, TOKENS)).name for name in ("ids", "segments", "places")}
    tables = [g.random(WORDS, D).name, g.random(WORDS + TOKENS, D).name, g.random(WORDS, D).name if segments else ""]
    inputs = [given["ids"], given["segments"] if segments else "", *tables, w.name, b.name]
    inputs += ["", given["places"]] if places else []
    g.nodes.append(
        helper.make_node("EmbedLayerNormalization", inputs, names, names[0], domain="com.microsoft", epsilon=1e-5)
    )
    return V(g, names[0], F), V(g, names[-1], F)


def contrib_layers(g, post_norm=False, embed=None):
    if embed is None:
        x = g.embedded()
        n = g.layer_norm(x)
    else:
        n, x = embedded_norm(g, *embed)
    for i in range(3):
        f = g.op("MatMul", g.op("Tanh", g.linear(n)), g.matrix(D, D))
        n, x = skip_norm(g, n if post_norm else x, f, g.random(D) if i else None, 1 if post_norm or i == 2 else 4)
    g.output(g.linear(n, WORDS), "y", (2, TOKENS, WORDS))
    return g.model(extra_opsets=[helper.make_opsetid("com.microsoft", 1)])


@pytest.mark.parametrize("embed", [(True, True), (True, False), (False, True), (False, False)])
def test_tables_and_the_first_norm_in_one(embed):
    model = contrib_layers(Streams(), embed=embed)
    given = {k: v.astype(np.int32) for k, v in feeds(model).items()}
    given = {"ids": given["ids"] % WORDS, "segments": given["segments"] % WORDS, "places": given["places"] % WORDS}
    plain, report = rmsnorm_deploy.convert(model, fuse=False)
    assert report.converted == report.found == 4
    assert whole(report)
    assert not any(n.domain for n in plain.graph.node)
    # onnxruntime alone knows the operator, in float32, and has an error of some 100 units itself
    for result in (plain, rmsnorm_deploy.convert(model)[0]):
        assert units(run(result, given, True)[0], run(model, given, False)[0].astype(np.float64)) < 1000


def test_tables_and_a_norm_in_one_in_front_of_post_norm_layers_stay():
    model = contrib_layers(Streams(), post_norm=True, embed=(True, False))
    plain, report = rmsnorm_deploy.convert(model, fuse=False)
    assert (report.converted, report.found) == (0, 4)
    assert [(n.op_type, n.name, n.input, n.output, n.attribute) for n in plain.graph.node] == [
        (n.op_type, n.name, n.input, n.output, n.attribute) for n in model.graph.node
    ]


@pytest.fixture
def plain_skip(monkeypatch):
    """The float64 truth has no kernel of onnxruntime's operator: it is written out for it."""
    import tests.support.streams as streams

    def truth(model, given, before=streams.truth):
        copy = type(model)()
        copy.CopyFrom(model)
        nodes = []
        for n in copy.graph.node:
            if n.op_type != "SkipLayerNormalization":
                nodes.append(n)
                continue
            total, biased = n.output[3] if len(n.output) > 3 else f"{n.output[0]}_s", f"{n.output[0]}_b"
            if len(n.input) > 4:
                nodes.append(helper.make_node("Add", [n.input[0], n.input[4]], [biased]))
            nodes.append(helper.make_node("Add", [biased if len(n.input) > 4 else n.input[0], n.input[1]], [total]))
            nodes.append(helper.make_node("LayerNormalization", [total, *n.input[2:4]], n.output[:1], epsilon=1e-5))
        del copy.graph.node[:]
        copy.graph.node.extend(nodes)
        return before(copy, given)

    monkeypatch.setattr(streams, "truth", truth)


def test_norms_with_an_addition_in_one(plain_skip):
    plain, report = converted(contrib_layers(Streams()))
    assert report.converted == report.found == 4
    assert whole(report)
    assert not any(n.domain for n in plain.graph.node)


def test_norms_with_an_addition_in_one_that_stay_are_as_they_were(plain_skip):
    model = contrib_layers(Streams(), post_norm=True)
    plain, report = converted(model)
    assert report.converted == 0
    assert [(n.op_type, n.name, n.input, n.output, n.attribute) for n in plain.graph.node] == [
        (n.op_type, n.name, n.input, n.output, n.attribute) for n in model.graph.node
    ]


def test_a_bias_goes_into_a_gemm():
    g = Streams()
    x = g.embedded()
    for _ in range(2):
        n = g.op("Reshape", g.layer_norm(x), g.constant([-1, D], I64))
        h = g.op("Tanh", g.op("Gemm", n, g.matrix(D, D), g.random(D), transA=0, transB=1, alpha=1.0))
        x = x + g.op("Reshape", g.op("Gemm", h, g.matrix(D, D), g.random(D)), g.constant([2, TOKENS, D], I64))
    _, report = converted(g.finish(x))
    assert len(report.streams[0].folded) == 2


@pytest.mark.parametrize(("form", "expected"), [("plugin", "GeneralRMSNorm"), ("onnx", "RMSNormalization")])
def test_a_bias_that_stays_belongs_to_the_norm_where_the_form_has_such_an_operator(form, expected):
    g = Streams(23)
    x = g.embedded()
    n = g.layer_norm(x)
    model = g.finish(x + g.linear(g.op("Tanh", n), bias=False))
    fused, report = rmsnorm_deploy.convert(model, form=form)
    assert len(report.fusion.fused) == report.converted == 2
    ops = [n.op_type for n in fused.graph.node]
    assert ops.count(expected) == 2
    assert ops.count("Add") == (1 if form == "plugin" else 3)
    assert not any(p.key == "rmsnorm_deploy.bias" for n in fused.graph.node for p in n.metadata_props)


def test_onnxruntime_knows_the_sizes_behind_our_norms():
    """Without a value_info, and with one dimension that has only a name; BiasGelu asks for the last one."""
    g = Streams()
    n = g.layer_norm(g.embedded())
    g.output(g.linear(n, WORDS, bias=False), "y", (2, TOKENS, WORDS))
    fused, report = rmsnorm_deploy.convert(g.model())
    assert report.converted == 1
    declared = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in fused.graph.value_info}
    (norm,) = (n for n in fused.graph.node if n.domain == "rmsnorm_deploy")
    assert declared[norm.output[0]] == [2, TOKENS, D]
