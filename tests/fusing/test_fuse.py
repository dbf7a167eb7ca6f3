"""What fusing keeps, refuses, and never touches."""

import contextlib

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_deploy
from rmsnorm_deploy import op
from rmsnorm_deploy.errors import ModelError, UsageError
from rmsnorm_deploy.model.graphs import opset_of
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.op.reference import rms_norm
from rmsnorm_deploy.recognise.match import Stage
from tests.support.graphs import chain, if_model, nodes_of, same_results
from tests.support.judge import rows, units
from tests.support.run import run
from tests.support.spellings.graph import I64, F, Graph, H
from tests.support.spellings.norms import Spelling, build

# -- values that stay alive -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["square", "mean", "sum", "rms", "inverse"])
@pytest.mark.parametrize("how", ["output", "used"])
def test_an_intermediate_used_elsewhere_stays_alive_and_is_reported(name, how):
    g = Graph()
    x = g.input("x", F, (2, 3, 8))
    v = chain(g, x, g.weight(np.linspace(1, 2, 8), F))
    extra = v[name] if how == "output" else v[name] * 3.0
    g.output(v["y"], "y", (2, 3, 8))
    g.output(extra, "extra", (2, 3, 8) if name == "square" else (2, 3, 1))
    model = g.model()
    fused, report = rmsnorm_deploy.fuse(model)
    assert nodes_of(fused) == ["RMSNorm"]
    assert report.fused[0].kept, "what stays has to be said"
    onnx.checker.check_model(fused, full_check=True)
    same_results(model, fused, {"x": rows((2, 3, 8), np.float32)})


@pytest.mark.parametrize("how", ["output", "used"])
def test_a_visible_normalised_value_ends_the_norm(how):
    g = Graph()
    x = g.input("x", F, (2, 3, 8))
    v = chain(g, x, g.weight(np.linspace(1, 2, 8), F))
    g.output(v["y"], "y", (2, 3, 8))
    g.output(v["normalised"] if how == "output" else g.op("Relu", v["normalised"]), "extra", (2, 3, 8))
    model = g.model()
    fused, report = rmsnorm_deploy.fuse(model)
    assert nodes_of(fused) == ["RMSNorm"]
    assert report.fused[0].scale == ""
    assert not report.fused[0].kept
    same_results(model, fused, {"x": rows((2, 3, 8), np.float32)})


def test_one_statistic_shared_by_two_scales_makes_two_norms():
    g = Graph()
    x = g.input("x", F, (2, 3, 8))
    v = chain(g, x)
    for i in (1, 2):
        g.output(v["normalised"] * g.weight(np.linspace(i, 2, 8), F), f"y{i}", (2, 3, 8))
    model = g.model()
    fused, _ = rmsnorm_deploy.fuse(model)
    assert nodes_of(fused) == ["RMSNorm", "RMSNorm"]
    assert "ReduceMean" not in nodes_of(fused, "")
    same_results(model, fused, {"x": rows((2, 3, 8), np.float32)})


def test_names_of_inputs_outputs_and_kept_values_never_change():
    built = build(Spelling(residual=True)).model
    before = ([v.SerializeToString() for v in built.graph.input], [v.SerializeToString() for v in built.graph.output])
    fused, _ = rmsnorm_deploy.fuse(built)
    assert before == (
        [v.SerializeToString() for v in fused.graph.input],
        [v.SerializeToString() for v in fused.graph.output],
    )


def test_the_residual_sum_keeps_its_name_and_its_readers():
    g = Graph()
    x, r = g.input("x", F, (2, 3, 8)), g.input("r", F, (2, 3, 8))
    total = x + r
    early = g.op("Relu", total)  # stands before the end of the norm
    v = chain(g, total, g.weight(np.ones(8), F))
    g.output(total, "total", (2, 3, 8))
    g.output(early, "early", (2, 3, 8))
    g.output(v["y"], "y", (2, 3, 8))
    model = g.model()
    fused, _ = rmsnorm_deploy.fuse(model)
    assert nodes_of(fused) == ["AddRMSNorm"]
    norm = next(n for n in fused.graph.node if n.domain == DOMAIN)
    assert list(norm.output) == ["y", "total"]
    onnx.checker.check_model(fused, full_check=True)
    same_results(model, fused, {n: rows((2, 3, 8), np.float32, s) for s, n in enumerate("xr")})


def test_a_residual_that_broadcasts_stays_outside():
    g = Graph()
    x, r = g.input("x", F, (2, 3, 8)), g.input("r", F, (1, 8))
    g.output(chain(g, x + r, g.weight(np.ones(8), F))["y"], "y", (2, 3, 8))
    fused, _ = rmsnorm_deploy.fuse(g.model())
    assert nodes_of(fused) == ["RMSNorm"]
    assert "Add" in nodes_of(fused, "")


def test_two_norms_of_one_sum_take_it_in_once():
    g = Graph()
    x, r = g.input("x", F, (2, 3, 8)), g.input("r", F, (2, 3, 8))
    total = x + r
    for i in (1, 2):
        g.output(chain(g, total, g.weight(np.full(8, i), F), epsilon=10.0**-i)["y"], f"y{i}", (2, 3, 8))
    model = g.model()
    fused, _ = rmsnorm_deploy.fuse(model)
    assert sorted(nodes_of(fused)) == ["AddRMSNorm", "RMSNorm"]
    onnx.checker.check_model(fused, full_check=True)
    same_results(model, fused, {n: rows((2, 3, 8), np.float32, s) for s, n in enumerate("xr")})


def test_a_scale_computed_from_the_sum_does_not_make_a_cycle():
    g = Graph()
    x, r = g.input("x", F, (2, 3, 8)), g.input("r", F, (2, 3, 8))
    total = x + r
    w = g.op("Squeeze", g.reduce("ReduceMax", total, (0, 1), 1), g.constant([0, 1], I64))
    g.output(chain(g, total, w)["y"], "y", (2, 3, 8))
    model = g.model()
    fused, _ = rmsnorm_deploy.fuse(model)
    assert nodes_of(fused) == ["RMSNorm"]
    onnx.checker.check_model(fused, full_check=True)
    same_results(model, fused, {n: rows((2, 3, 8), np.float32, s) for s, n in enumerate("xr")})


def test_metadata_and_unused_nodes_that_were_there_before_stay():
    g = Graph()
    x = g.input("x", F, (2, 3, 8))
    v = chain(g, x, g.weight(np.ones(8), F))
    g.op("Relu", x)  # nobody reads it, and it is not ours to clean up
    g.nodes[-2].doc_string = "layer 3"
    g.output(v["y"], "y", (2, 3, 8))
    model = g.model()
    model.metadata_props.add(key="k", value="v")
    model.graph.doc_string = "graph"
    fused, _ = rmsnorm_deploy.fuse(model)
    assert [(p.key, p.value) for p in fused.metadata_props][:1] == [("k", "v")]
    assert fused.graph.doc_string == "graph"
    assert "Relu" in nodes_of(fused, "")


def test_sparse_initializers_and_training_info_survive():
    g = Graph()
    x = g.input("x", F, (2, 3, 8))
    g.output(chain(g, x, g.weight(np.ones(8), F))["y"], "y", (2, 3, 8))
    model = g.model()
    values = numpy_helper.from_array(np.array([1.0], np.float32), "sparse")
    indices = numpy_helper.from_array(np.array([3], np.int64), "indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [8]))
    fused, report = rmsnorm_deploy.fuse(model)
    assert len(report.fused) == 1
    assert fused.graph.sparse_initializer == model.graph.sparse_initializer


def test_norms_in_both_branches_of_an_if_on_a_captured_value():
    model = if_model()
    onnx.checker.check_model(model, full_check=True)
    fused, report = rmsnorm_deploy.fuse(model)
    assert sorted(f.scope for f in report.fused) == ["if.else_branch", "if.then_branch"]
    onnx.checker.check_model(fused, full_check=True)
    for c in (True, False):
        same_results(model, fused, {"x": rows((2, 3, 8), np.float32), "c": np.array(c)})


def test_a_value_captured_by_a_subgraph_stays_alive():
    g = Graph()
    x = g.input("x", F, (2, 3, 8))
    v = chain(g, x, g.weight(np.ones(8), F))
    c = g.input("c", TensorProto.BOOL, ())
    bodies = [
        helper.make_graph(
            [helper.make_node(o, [v["normalised"].name], [f"{o}_out"])],
            o,
            [],
            [helper.make_tensor_value_info(f"{o}_out", F, (2, 3, 8))],
        )
        for o in ("Relu", "Neg")
    ]
    g.nodes.append(helper.make_node("If", [c.name], ["z"], then_branch=bodies[0], else_branch=bodies[1]))
    g.outputs.append(helper.make_tensor_value_info("z", F, (2, 3, 8)))
    g.output(v["y"], "y", (2, 3, 8))
    model = g.model()
    fused, _ = rmsnorm_deploy.fuse(model)
    assert len(nodes_of(fused)) == 1
    onnx.checker.check_model(fused, full_check=True)
    same_results(model, fused, {"x": rows((2, 3, 8), np.float32), "c": np.array(True)})


def test_a_norm_inside_a_local_function_without_a_scale_gets_its_ones_there():
    inner = Graph()
    from tests.support.spellings.graph import V

    inner.constant_nodes = True
    v = chain(inner, V(inner, "fx", F))
    function = helper.make_function("local", "Norm", ["fx"], [v["y"].name], inner.nodes, [helper.make_opsetid("", 18)])
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Norm", ["x"], ["y"], domain="local")],
        "g",
        [info("x", F, (2, 3, 8))],
        [info("y", F, (2, 3, 8))],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("local", 1)],
        functions=[function],
        ir_version=8,
    )
    fused, report = rmsnorm_deploy.fuse(model)
    assert report.fused[0].scope == "local::Norm"
    body = next(f for f in fused.functions if f.name == "Norm")
    assert [n.op_type for n in body.node] == ["Constant", "RMSNorm"]
    onnx.checker.check_model(fused, full_check=True)
    same_results(model, fused, {"x": rows((2, 3, 8), np.float32)})


# -- refusals ---------------------------------------------------------------------------------------------------------


def refuse(g, y, shape=(2, 3, 8)):
    g.output(y, "out", shape)
    fused, report = rmsnorm_deploy.fuse(g.model())
    assert not report.fused
    assert not nodes_of(fused)
    (miss,) = (m for m in report.missed if m.site.op_type == "ReduceMean")
    assert miss.reason
    assert miss.node
    return miss


def test_another_exponent_is_refused():
    g = Graph()
    x = g.input("x", F, (2, 3, 8))
    assert refuse(g, chain(g, x, square=x**2.00001)["y"]).stage == Stage.REDUCTION


def test_the_exponent_as_the_base_is_refused():
    g = Graph()
    x = g.input("x", F, (2, 3, 8))
    refuse(g, chain(g, x, square=g.op("Pow", g.constant(2.0), x))["y"])


def test_another_x_is_refused_with_both_names():
    g = Graph()
    x, z = g.input("x", F, (2, 3, 8)), g.input("z", F, (2, 3, 8))
    miss = refuse(g, chain(g, x, square=z**2.0)["y"])
    assert (miss.stage, miss.expected, miss.found) == (Stage.RMS, "'z'", "'x'")


def test_keepdims_0_on_a_square_input_is_refused():
    g = Graph()
    x = g.input("x", F, (8, 8))
    assert "keepdims" in refuse(g, chain(g, x, keepdims=0)["y"], (8, 8)).reason


def test_an_overridable_epsilon_is_refused():
    g = Graph()
    x = g.input("x", F, (2, 3, 8))
    e = g.weight(1e-6, F, "eps")
    g.inputs.append(helper.make_tensor_value_info("eps", F, ()))
    rms = g.op("Sqrt", g.reduce("ReduceMean", x**2.0, (-1,)) + e)
    miss = refuse(g, x / rms)
    assert "graph input" in miss.found
    assert miss.hint


def test_an_epsilon_per_row_is_refused():
    g = Graph()
    x = g.input("x", F, (2, 3, 8))
    rms = g.op("Sqrt", g.reduce("ReduceMean", x**2.0, (-1,)) + g.constant([[1e-6], [1e-5], [1e-4]]))
    assert "3 values" in refuse(g, x / rms).reason


def test_a_division_by_another_number_than_the_size_keeps_its_meaning():
    """Sum / 7 of 8 features is no mean, but it is a norm with another scale and epsilon: exactly so or not at all."""
    g = Graph()
    x = g.input("x", F, (2, 3, 8))
    rms = g.op("Sqrt", g.reduce("ReduceSum", x**2.0, (-1,)) / 7.0 + 1e-3)
    g.output(x / rms, "y", (2, 3, 8))
    model = g.model()
    fused, report = rmsnorm_deploy.fuse(model)
    if report.fused:
        same_results(model, fused, {"x": rows((2, 3, 8), np.float32)})


def test_a_centred_norm_is_left_to_layer_normalization():
    g = Graph()
    x = g.input("x", F, (2, 3, 8))
    centred = x - g.reduce("ReduceMean", x, (-1,))
    g.output(chain(g, centred, g.weight(np.ones(8), F))["y"], "y", (2, 3, 8))
    fused, report = rmsnorm_deploy.fuse(g.model())
    assert not nodes_of(fused)
    assert any("LayerNormalization" in m.reason for m in report.missed)
    assert not report.near_misses
    said = "no RMSNorm found; there is 1 LayerNorm, which 'rmsnorm-deploy convert' may turn into an RMSNorm"
    assert (report.layer_norms, report.summary()) == (1, said)


def test_layer_norms_are_counted_where_they_are_all_that_there_is():
    g = Graph()
    x = g.input("x", F, (2, 3, 8))
    w = g.weight(np.ones(8), F)
    h = g.op("LayerNormalization", g.op("LayerNormalization", x, w, axis=-1), w, axis=-1)
    g.output(h, "y", (2, 3, 8))
    _, report = rmsnorm_deploy.fuse(g.model())
    said = "no RMSNorm found; there are 2 LayerNorms, which 'rmsnorm-deploy convert' may turn into RMSNorms"
    assert (report.to_dict()["layer_norms"], report.summary()) == (2, said)
    g.output(chain(g, h, w)["y"], "z", (2, 3, 8))
    _, report = rmsnorm_deploy.fuse(g.model())
    assert (report.layer_norms, report.summary()) == (2, "fused 1 of 1")


def test_a_norm_of_images_is_no_layer_norm_that_convert_could_turn():
    g = Graph()
    x = g.input("x", F, (2, 3, 8, 8))
    centred = x - g.reduce("ReduceMean", x, (2, 3))
    g.output(centred / g.op("Sqrt", g.reduce("ReduceMean", centred * centred, (2, 3)) + 1e-6), "y", (2, 3, 8, 8))
    _, report = rmsnorm_deploy.fuse(g.model())
    assert (report.layer_norms, report.summary()) == (0, "no RMSNorm found")


def test_a_rms_divided_by_x_is_refused():
    g = Graph()
    x = g.input("x", F, (2, 3, 8))
    refuse(g, g.op("Sqrt", g.reduce("ReduceMean", x**2.0, (-1,)) + 1e-6) / x)


def test_the_normalised_value_times_itself_keeps_the_product_outside():
    g = Graph()
    x = g.input("x", F, (2, 3, 8))
    n = chain(g, x)["normalised"]
    g.output(n * n, "y", (2, 3, 8))
    fused, report = rmsnorm_deploy.fuse(g.model())
    assert nodes_of(fused) == ["RMSNorm"]
    assert report.fused[0].scale == ""
    assert "Mul" in nodes_of(fused, "")


def test_a_scale_that_enlarges_the_result_stays_outside():
    g = Graph()
    x = g.input("x", F, (3, 1))
    g.output(chain(g, x, g.weight([1.0, 2.0], F))["y"], "y", (3, 2))
    model = g.model()
    fused, _ = rmsnorm_deploy.fuse(model)
    assert nodes_of(fused) == ["GeneralRMSNorm"], "a plain body would tempt onnxruntime's own fusion"
    same_results(model, fused, {"x": np.array([[1.0], [2.0], [0.5]], np.float32)})


def test_a_gate_that_is_not_activated_as_an_operator_does_it_stays_outside():
    g = Graph()
    x, gate = g.input("x", F, (2, 3, 8)), g.input("gate", F, (2, 3, 8))
    g.output(chain(g, x)["normalised"] * g.op("Tanh", gate), "y", (2, 3, 8))
    fused, report = rmsnorm_deploy.fuse(g.model())
    assert nodes_of(fused) == ["RMSNorm"]
    assert report.fused[0].scale == ""


def test_an_inverse_rounded_to_16_bits_is_refused():
    g = Graph()
    x = g.input("x", H, (2, 3, 8))
    wide = g.cast(x, F)
    inverse = g.op("Reciprocal", g.op("Sqrt", g.reduce("ReduceMean", wide**2.0, (-1,)) + 1e-6))
    assert "order" in refuse(g, x * g.cast(inverse, H)).reason


def test_integers_are_refused_with_their_type():
    g = Graph()
    x = g.input("x", I64, (2, 3, 8))
    miss = refuse(g, g.reduce("ReduceMean", x * x, (-1,)), (2, 3, 1))
    assert "INT64" in miss.reason


def test_a_positive_axis_of_unknown_rank_is_refused():
    g = Graph()
    g.inputs.append(helper.make_tensor_value_info("x", F, None))
    from tests.support.spellings.graph import V

    x = V(g, "x", F)
    g.nodes.clear()
    y = chain(g, x, axes=(2,))["y"]
    g._rename(y, "out")
    g.outputs.append(helper.make_tensor_value_info("out", F, None))
    _, report = rmsnorm_deploy.fuse(g.model())
    assert "unknown rank" in report.missed[0].reason


# -- already fused forms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("x_type", "w_type", "cast"), [(F, F, False), (H, H, False), (H, F, True)])
def test_rms_normalization_is_converted(x_type, w_type, cast):
    g = Graph(23)
    x, w = g.input("x", x_type, (2, 3, 64)), g.weight(np.linspace(0.5, 2, 64), w_type)
    y = g.op("RMSNormalization", x, w, dtype=w_type, epsilon=1e-3, axis=-1)
    if cast:
        y = g.cast(y, x_type)
    g.output(y, "y", (2, 3, 64))
    fused, report = rmsnorm_deploy.fuse(g.model())
    assert nodes_of(fused) == ["RMSNorm"]
    onnx.checker.check_model(fused, full_check=True)
    data = rows((2, 3, 64), np.float32).astype({F: np.float32, H: np.float16}[x_type])
    weight = np.linspace(0.5, 2, 64).astype({F: np.float32, H: np.float16}[w_type])
    order = report.fused[0].attributes["scale_type"]
    assert order == (H if (x_type, w_type) == (H, H) else F)
    truth = rms_norm(data, weight, epsilon=np.float32(1e-3), scale_type=order, exact=True)[0]
    assert units(run(fused, {"x": data}, False)[0], truth) <= (4 if x_type == F else 1)


def test_a_mixed_rms_normalization_without_a_cast_behind_it_gets_one_in_front():
    g = Graph(23)
    x, w = g.input("x", H, (2, 3, 64)), g.weight(np.linspace(0.5, 2, 64), F)
    g.output(g.op("RMSNormalization", x, w, dtype=F), "y", (2, 3, 64))
    fused, _ = rmsnorm_deploy.fuse(g.model())
    assert [n.op_type for n in fused.graph.node] == ["Cast", "RMSNorm"]
    onnx.checker.check_model(fused, full_check=True)


@pytest.mark.parametrize("reads_sum", [False, True])
@pytest.mark.parametrize("same", [False, True])
def test_skip_simplified_layer_normalization_is_converted(same, reads_sum):
    info = helper.make_tensor_value_info
    outputs = ["y", "", "", "total"] if reads_sum else ["y"]
    node = helper.make_node(
        "SkipSimplifiedLayerNormalization", ["x", "r", "w"], outputs, domain="com.microsoft", epsilon=1e-3, name="skip"
    )
    r_shape = (2, 3, 8) if same else (3, 8)
    graph = helper.make_graph(
        [node],
        "g",
        [info("x", F, (2, 3, 8)), info("r", F, r_shape)],
        [info(o, F, (2, 3, 8)) for o in outputs if o],
        [numpy_helper.from_array(np.linspace(0.5, 2, 8, dtype=np.float32), "w")],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)], ir_version=8
    )
    fused, _ = rmsnorm_deploy.fuse(model)
    assert nodes_of(fused) == (["AddRMSNorm"] if same else ["RMSNorm"])
    same_results(model, fused, {"x": rows((2, 3, 8), np.float32), "r": rows(r_shape, np.float32, 5)})


def test_the_residual_form_has_a_default_epsilon_of_its_own():
    """1e-12, where the plain form has 1e-5: so onnxruntime's kernel behaves, measured."""
    info = helper.make_tensor_value_info
    node = helper.make_node(
        "SkipSimplifiedLayerNormalization", ["x", "r", "w"], ["y"], domain="com.microsoft", name="s"
    )
    inputs = [info("x", F, (2, 3, 8)), info("r", F, (2, 3, 8)), info("w", F, (8,))]
    model = helper.make_model(
        helper.make_graph([node], "g", inputs, [info("y", F, (2, 3, 8))]),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)],
        ir_version=8,
    )
    fused, report = rmsnorm_deploy.fuse(model)
    assert report.fused[0].epsilon == np.float32(1e-12)
    small = {n: (rows((2, 3, 8), np.float32, i) * 1e-4).astype(np.float32) for i, n in enumerate("xr")}
    same_results(model, fused, small | {"w": np.linspace(1, 2, 8, dtype=np.float32)})


# -- the call ---------------------------------------------------------------------------------------------------------


def test_the_three_kinds_of_model_give_the_same_result(tmp_path):
    model = build(Spelling(residual=True)).model
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    graph = ir.from_proto(model)
    before = ir.to_proto(graph).SerializeToString(deterministic=True)
    by_path, by_proto, by_ir = (rmsnorm_deploy.fuse(m)[0] for m in (path, model, graph))
    assert isinstance(by_path, onnx.ModelProto)
    assert isinstance(by_proto, onnx.ModelProto)
    assert isinstance(by_ir, ir.Model)
    assert by_path.SerializeToString(deterministic=True) == by_proto.SerializeToString(deterministic=True)
    from_ir = ir.to_proto(by_ir)
    for a, b in zip(from_ir.graph.node, by_proto.graph.node, strict=True):
        assert (a.name, a.op_type, list(a.input), list(a.output)) == (b.name, b.op_type, list(b.input), list(b.output))
        assert sorted(x.name for x in a.attribute) == sorted(x.name for x in b.attribute)
    assert from_ir.functions == by_proto.functions
    assert from_ir.graph.initializer == by_proto.graph.initializer
    assert ir.to_proto(graph).SerializeToString(deterministic=True) == before


def test_fusing_twice_gives_the_same_bytes_and_fusing_a_fused_model_changes_nothing():
    model = build(Spelling(scale="none", residual=True)).model
    once, again = (rmsnorm_deploy.fuse(model)[0].SerializeToString(deterministic=True) for _ in range(2))
    assert once == again
    fused = onnx.ModelProto.FromString(once)
    twice, report = rmsnorm_deploy.fuse(fused)
    assert twice.SerializeToString(deterministic=True) == once
    assert (len(report.fused), report.already) == (0, 1)


def test_a_model_without_norms_comes_back_byte_for_byte():
    g = Graph()
    g.output(g.op("Relu", g.input("x", F, (2, 3))), "y", (2, 3))
    model = g.model()
    fused, report = rmsnorm_deploy.fuse(model)
    assert fused is not model
    assert fused == model
    assert report.summary() == "no RMSNorm found"


def test_a_dry_run_changes_nothing_and_says_the_same():
    model = build(Spelling()).model
    same, plan = rmsnorm_deploy.fuse(model, dry_run=True)
    assert same == model
    assert len(plan.fused) == len(rmsnorm_deploy.fuse(model)[1].fused) == 1


@pytest.mark.parametrize(
    ("change", "form", "opsets"), [({"partial": 3, "opset": 11}, "plugin", (11, 12)), ({"opset": 17}, "onnx", (17, 23))]
)
@pytest.mark.parametrize("kind", ["proto", "ir"])
def test_a_dry_run_says_that_the_opset_would_be_raised(change, form, opsets, kind):
    proto = build(Spelling(**change)).model
    model = proto if kind == "proto" else ir.from_proto(proto)
    old, new = opsets
    same, plan = rmsnorm_deploy.fuse(model, form=form, dry_run=True)
    assert opset_of(model) == opset_of(same) == plan.opset == old
    assert f"would be raised from {old} to {new}" in plan.warnings[0]
    assert rmsnorm_deploy.explain(model, form=form) == plan
    fused, report = rmsnorm_deploy.fuse(model, form=form)
    assert opset_of(fused) == report.opset == new
    assert f"was raised from {old} to {new}" in report.warnings[0]
    assert (opset_of(model), report.ops_before) == (old, plan.ops_before)


def test_a_model_that_the_form_leaves_alone_keeps_its_opset():
    model = build(Spelling(partial=3)).model
    fused, report = rmsnorm_deploy.fuse(model, form="onnx")
    assert fused == model
    assert (report.opset, report.warnings, len(report.missed)) == (18, (), 1)


def test_an_old_opset_is_refused_with_a_way_out():
    g = Graph(10)
    x = g.input("x", F, (2, 3, 8))
    g.output(chain(g, x, g.weight(np.ones(8), F))["y"], "y", (2, 3, 8))
    with pytest.raises(ModelError, match=r"opset 10.*\n.*convert_version"):
        rmsnorm_deploy.fuse(g.model())


def test_a_partial_norm_at_opset_11_raises_the_opset_to_12():
    built = build(Spelling(partial=3, opset=11))
    fused, report = rmsnorm_deploy.fuse(built.model)
    assert nodes_of(fused) == ["GeneralRMSNorm"]
    assert [o.version for o in fused.opset_import if o.domain == ""] == [12]
    assert "raised from 11 to 12" in report.warnings[0]
    onnx.checker.check_model(fused, full_check=True)
    same_results(built.model, fused, {"x": rows((2, 3, 8), np.float32)})


@pytest.mark.parametrize("wrong", [7, None, b"bytes"])
def test_something_else_than_a_model_is_refused(wrong):
    with pytest.raises(UsageError, match="cannot fuse a"):
        rmsnorm_deploy.fuse(wrong)


def test_the_pass_fuses_in_place():
    model = ir.from_proto(build(Spelling()).model)
    fuser = rmsnorm_deploy.RmsNormFusionPass()
    result = fuser(model)
    assert result.modified
    assert result.model is model
    assert fuser.report is not None
    assert not fuser(model).modified


@pytest.mark.parametrize("form", list(rmsnorm_deploy.Form))
def test_the_pass_gives_what_fuse_gives(form):
    proto = build(Spelling(residual=True, opset=17)).model
    model = ir.from_proto(proto)
    model.graph.metadata_props["source"] = "a test"
    fuser = rmsnorm_deploy.RmsNormFusionPass(form.value)
    assert fuser(model).model is model
    assert model.graph.metadata_props.pop("source") == "a test"
    fused, report = rmsnorm_deploy.fuse(ir.from_proto(proto), form=form)
    assert ir.to_proto(model) == ir.to_proto(fused)
    assert fuser.report == report
    assert len(report.fused) == 1


def test_the_pass_raises_what_fuse_raises():
    with pytest.raises(UsageError, match="there is no form 'trt'"):
        rmsnorm_deploy.RmsNormFusionPass("trt")
    g = Graph(10)
    g.output(chain(g, g.input("x", F, (2, 3, 8)))["y"], "y", (2, 3, 8))
    with pytest.raises(ModelError, match="opset 10"):
        rmsnorm_deploy.RmsNormFusionPass()(ir.from_proto(g.model()))


def test_what_contradicts_itself_is_a_model_error_in_fuse_and_pass(monkeypatch):
    model = build(Spelling()).model
    model.graph.node[0].op_type = "Nonsense"
    given = ir.from_proto(model)

    def fail(*_):
        raise RuntimeError("a value without a type")

    monkeypatch.setattr("rmsnorm_deploy.fusing.plan.recognise", fail)
    calls = [lambda: rmsnorm_deploy.fuse(model), lambda: rmsnorm_deploy.fuse(given)]
    for call in [*calls, lambda: rmsnorm_deploy.RmsNormFusionPass()(given)]:
        with pytest.raises(ModelError, match=r"the model is not valid: .*Nonsense"):
            call()
    valid = build(Spelling()).model
    with pytest.raises(RuntimeError, match="without a type"):
        rmsnorm_deploy.fuse(valid)  # a fault of ours stays one


def test_names_that_the_model_uses_already_are_avoided():
    g = Graph()
    x = g.input("rmsnorm_ones", F, (2, 3, 8))
    y = chain(g, x)["y"]
    g.nodes[-1].name = "norm"
    g.output(g.op("Relu", y), "norm_rmsnorm", (2, 3, 8))
    model = g.model()
    fused, _ = rmsnorm_deploy.fuse(model)
    onnx.checker.check_model(fused, full_check=True)
    assert len({n.name for n in fused.graph.node}) == len(fused.graph.node)
    same_results(model, fused, {"rmsnorm_ones": rows((2, 3, 8), np.float32)})


def test_the_body_travels_with_the_model_once():
    g = Graph()
    x = g.input("x", F, (2, 3, 8))
    for i in range(3):
        x = chain(g, x, g.weight(np.ones(8), F), epsilon=10.0 ** -(i + 1))["y"]
    g.output(x, "y", (2, 3, 8))
    fused, _ = rmsnorm_deploy.fuse(g.model())
    assert [f.name for f in fused.functions] == ["RMSNorm"]
    assert fused.functions[0] == op.function_body(op.Op.RMS_NORM, 18)
    assert all(f.overload == "" for f in fused.functions)


# -- found by attack --------------------------------------------------------------------------------------------------


def test_a_proto_without_a_path_never_reads_the_current_folder(tmp_path, monkeypatch):
    model = build(Spelling(epsilon=0.5)).model
    for t in model.graph.initializer:
        data, t.data_location = t.raw_data, TensorProto.EXTERNAL
        t.ClearField("raw_data")
        t.external_data.add(key="location", value=f"{t.name}.bin")
        (tmp_path / f"{t.name}.bin").write_bytes(b"\x01" * len(data))  # another model's file of that name
    monkeypatch.chdir(tmp_path)
    fused, report = rmsnorm_deploy.fuse(model)
    assert not report.fused
    assert fused == model


def test_a_norm_behind_noise_that_a_second_norm_looks_through_is_not_computed_twice():
    g = Graph()
    x, w = g.input("x", F, (2, 3, 8)), g.weight(np.linspace(1, 2, 8), F)
    first = g.cast(chain(g, x, w)["y"], F)
    y = chain(g, first, w)["y"]
    g.output(y, "y", (2, 3, 8))
    model = g.model()
    fused, report = rmsnorm_deploy.fuse(model)
    assert [n.op_type for n in fused.graph.node] == ["RMSNorm", "RMSNorm"]
    assert not any(f.kept for f in report.fused)
    same_results(model, fused, {"x": rows((2, 3, 8), np.float32)})


def test_a_scale_of_one_element_is_written_so_that_onnxruntime_1_20_runs_it():
    g = Graph()
    g.output(chain(g, g.input("x", F, (2, 3, 8)), g.weight([0.75], F))["y"], "y", (2, 3, 8))
    fused, _ = rmsnorm_deploy.fuse(g.model())
    assert nodes_of(fused) == ["GeneralRMSNorm"]


@pytest.mark.parametrize("ends", ["cast", "read", "output"])
@pytest.mark.parametrize("branch", [False, True])
@pytest.mark.parametrize("name", ["RMSNormalization", "SimplifiedLayerNormalization"])
@pytest.mark.parametrize("way", ["proto", "ir"])
def test_the_type_that_a_file_claims_for_a_mended_norm_follows_its_rule(name, branch, ends, way):
    """torch writes F.rms_norm(x.float(), weight16) so: the rule gives the scale's type, and the file says float."""
    info, node = helper.make_tensor_value_info, helper.make_node
    nodes = [
        node("Cast", ["x"], ["f"], to=F, name="wide"),
        node(name, ["f", "w"], ["r"], axis=-1, epsilon=1e-5, stash_type=1, name="norm"),
    ]
    last = {"cast": [node("Cast", ["r"], ["y"], to=H, name="narrow")], "read": [node("Sin", ["r"], ["y"])]}
    nodes += last.get(ends, [])
    end = info("r", F, [2, 64]) if ends == "output" else info("y", H, [2, 64])
    claimed = [info("f", F, [2, 64]), info("r", F, [2, 64])]
    inputs = [info("x", H, [2, 64])]
    if branch:
        inner = helper.make_graph(nodes, "inner", [], [end], value_info=claimed)
        end = info("z", end.type.tensor_type.elem_type, [2, 64])
        nodes, claimed = [node("If", ["c"], ["z"], then_branch=inner, else_branch=inner, name="if")], []
        inputs.append(info("c", TensorProto.BOOL, []))
    weights = [numpy_helper.from_array(np.linspace(0.5, 1.5, 64).astype(np.float16), "w")]
    graph = helper.make_graph(nodes, "g", inputs, [end], weights, value_info=claimed)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    fused, report = rmsnorm_deploy.fuse(model if way == "proto" else ir.from_proto(model))
    fused = ir.to_proto(fused) if way == "ir" else fused
    assert len(report.fused) == 1 + branch
    onnx.checker.check_model(fused, full_check=True)
    x = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float16)
    want = rms_norm(x, np.linspace(0.5, 1.5, 64).astype(np.float16), epsilon=1e-5)[0].astype(float)
    want = np.sin(want) if ends == "read" else want
    for library in (None, rmsnorm_deploy.register):
        got = run(fused, {"x": x} | ({"c": np.array(True)} if branch else {}), True, library)[0]
        assert got.dtype == (np.float32 if ends == "output" else np.float16)
        np.testing.assert_allclose(got.astype(float), want, 2e-3, 2e-3)


def test_value_info_of_values_that_are_gone_goes_with_them():
    g = Graph()
    v = chain(g, g.input("x", F, (2, 3, 8)), g.weight(np.ones(8), F))
    for value in v.values():
        g.value_info.append(helper.make_tensor_value_info(value.name, F, None))
    g.output(g.op("Relu", v["y"]), "out", (2, 3, 8))
    fused, _ = rmsnorm_deploy.fuse(g.model())
    assert {i.name for i in fused.graph.value_info} == {"x", v["y"].name}


def test_a_sparse_initializer_in_a_branch_survives():
    model = if_model()
    branch = model.graph.node[0].attribute[0].g
    values = numpy_helper.from_array(np.array([1.0], np.float32), f"{branch.name}_sparse")
    branch.sparse_initializer.append(
        helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([3], np.int64), "i"), [8])
    )
    fused, report = rmsnorm_deploy.fuse(model)
    assert len(report.fused) == 2
    kept = [len(a.g.sparse_initializer) for a in fused.graph.node[0].attribute]
    assert kept == [1, 0]


def test_a_long_chain_of_noise_and_many_equal_names_are_no_trouble():
    g = Graph()
    y = chain(g, g.input("x", F, (2, 3, 8)))["y"]
    for _ in range(1500):
        y = g.op("Identity", y)
    g.output(y, "y", (2, 3, 8))
    for node in g.nodes:
        node.name = "same"
    fused, _ = rmsnorm_deploy.fuse(g.model())
    assert "RMSNorm" in nodes_of(fused)


def test_the_other_name_of_the_standard_domain_is_the_same_domain():
    model = build(Spelling()).model
    for node in model.graph.node:
        node.domain = "ai.onnx"
    fused, _ = rmsnorm_deploy.fuse(model)
    assert nodes_of(fused) == ["RMSNorm"]


def test_flipped_bits_are_a_model_error_or_no_error():
    data = build(Spelling(residual=True)).model.SerializeToString()
    rng = np.random.default_rng(0)
    read = 0
    for _ in range(300):
        broken = bytearray(data)
        for at in rng.integers(0, len(data), 3):
            broken[at] ^= 1 << int(rng.integers(0, 8))
        model = onnx.ModelProto()
        try:
            model.ParseFromString(bytes(broken))
        except Exception:
            continue  # protobuf itself refuses it
        with contextlib.suppress(ModelError):
            rmsnorm_deploy.fuse(model)
        read += 1
    assert read > 100


@pytest.mark.parametrize("form", ["plugin", "onnx", "ort"])
def test_plan_and_result_name_the_same_values(form):
    g = Graph(23)
    x, r, w = g.input("x", F, (2, 3, 8)), g.input("r", F, (2, 3, 8)), g.weight(np.ones(8), F)
    for _ in range(3):  # a residual stream: each norm reads the sum of the one before
        total = x + r
        x, r = total, chain(g, total, w)["y"]
    g.output(x + r, "y", (2, 3, 8))
    model = g.model()
    plans, norms = (rmsnorm_deploy.fuse(model, form=form, dry_run=d)[1].fused for d in (True, False))
    names = [(f.x, f.residual, f.scale, f.output) for f in norms]
    assert names == [(f.x, f.residual, f.scale, f.output) for f in plans]
    assert all(x and scale and output for x, _, scale, output in names)
