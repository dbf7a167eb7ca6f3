"""Norms and what quantises them: one operator, where that means the same."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import rmsnorm_deploy
from rmsnorm_deploy.op import NormParameters, Op
from tests.support.graphs import chain
from tests.support.quantised import DYNAMIC, F8, I8, U8, F, feeds_of, initializer, pair
from tests.support.run import run
from tests.support.spellings.graph import Graph

ALSO = ["quantizers"]

H, B = TensorProto.FLOAT16, TensorProto.BFLOAT16
SHAPE = (2, 3, 16)


def ops(model):
    return [n.op_type for n in model.graph.node]


def spelled(quantised, *, residual=False, domain="", opset=18, kind=F, **attributes):
    """A norm in standard operators that is quantised: nobody else reads it."""
    g = Graph(opset)
    x, w = g.input("x", kind, SHAPE), g.weight(np.linspace(0.5, 2, 16), kind, "w")
    total = x + g.input("r", kind, SHAPE) if residual else x
    y = chain(g, total, w)["y"]
    info = helper.make_tensor_value_info
    if quantised is DYNAMIC:
        g.nodes.append(helper.make_node("DynamicQuantizeLinear", [y.name], ["q", "s", "z"], "quantise"))
        g.outputs += [info("q", U8, SHAPE), info("s", F, ()), info("z", U8, ())]
    else:
        g.initializers += [initializer(0.02, kind, "s"), initializer(5 * (quantised != F8), quantised, "z")]
        g.nodes.append(
            helper.make_node("QuantizeLinear", [y.name, "s", "z"], ["q"], "quantise", domain=domain, **attributes)
        )
        g.outputs.append(info("q", quantised, SHAPE))
    if residual:
        g.output(g.op("Neg", total), "n", SHAPE)
    return g.model()


def close(model, fused, register=None):
    """All but a value in 8 bits beside a tie, which the original's own roundings may move."""
    feeds = feeds_of(model)
    for a, b in zip(run(model, feeds, False), run(fused, feeds, True, register), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        whole = a.dtype.kind in "iu"
        assert np.abs(a.astype(np.float64) - b.astype(np.float64)).max() <= (1 if whole else 1e-5)
        assert not whole or np.count_nonzero(a != b) <= 1


@pytest.mark.parametrize("opset", [11, 13, 18, 19, 21, 23])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("quantised", [DYNAMIC, I8, U8])
def test_one_operator_does_both(quantised, residual, opset):
    model = spelled(quantised, residual=residual, opset=opset)
    fused, report = rmsnorm_deploy.fuse(model, also=ALSO)
    name = ("Add" if residual else "") + "RMSNorm" + ("Dynamic" if quantised is DYNAMIC else "") + "QuantizeLinear"
    assert ops(fused) == [name] + ["Neg"] * residual
    onnx.checker.check_model(fused, full_check=True)
    node, (norm,) = fused.graph.node[0], report.fused
    assert not node.output[0]  # nobody reads Y
    assert (norm.op, norm.output, norm.x) == (name, "q", "x")
    assert norm.spelling.endswith("QuantizeLinear")
    assert bool(norm.notes) == (quantised is DYNAMIC)
    close(model, fused)
    rmsnorm_deploy.verify(model, fused).require()


@pytest.mark.parametrize("kind", [F, H])
def test_float8_and_16_bits(kind):
    model = spelled(F8, kind=kind, opset=19)
    fused, _ = rmsnorm_deploy.fuse(model, also=ALSO)
    assert ops(fused) == ["RMSNormQuantizeLinear"]
    onnx.checker.check_model(fused, full_check=True)
    assert NormParameters.from_node(fused.graph.node[0], version=1).precision == kind


@pytest.mark.parametrize("kind", [F, H])
def test_onnxruntimes_own_operator_divides_in_float32(kind):
    model = spelled(I8, kind=kind, domain="com.microsoft", opset=13)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    fused, _ = rmsnorm_deploy.fuse(model, also=ALSO)
    assert ops(fused) == ["RMSNormQuantizeLinear"]
    assert NormParameters.from_node(fused.graph.node[0], version=1).precision == F
    if kind == F:
        close(model, fused)


def test_onnxruntimes_residual_norm_takes_it_in():
    model = pair((3, 16), DYNAMIC, residual=True, keep=False)
    skip, _ = rmsnorm_deploy.fuse(model, form="ort", also=ALSO)
    assert ops(skip) == ["SkipSimplifiedLayerNormalization", "DynamicQuantizeLinear"]
    assert ops(rmsnorm_deploy.fuse(skip, also=ALSO)[0]) == ["AddRMSNormDynamicQuantizeLinear"]


def test_a_norm_in_a_function_and_a_reader_in_a_branch():
    inner = helper.make_graph(
        [helper.make_node("Identity", ["y"], ["branch"])], "b", [], [helper.make_tensor_value_info("branch", F, SHAPE)]
    )
    condition = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.BOOL, [], [True]))
    branch = helper.make_node("If", ["c"], ["chosen"], then_branch=inner, else_branch=inner)
    model = pair(SHAPE, I8, keep=False, extra=[condition, branch])
    model.graph.output.append(helper.make_tensor_value_info("chosen", F, SHAPE))
    fused, _ = rmsnorm_deploy.fuse(model, also=ALSO)
    assert ops(fused) == ["RMSNormQuantizeLinear", "Constant", "If"]
    assert fused.graph.node[0].output[0] == "y"
    close(model, fused)
    given = spelled(DYNAMIC)
    function = helper.make_function(
        "local", "block", ["x", "w"], ["q", "s", "z"], given.graph.node, [helper.make_opsetid("", 18)]
    )
    constants = {i for n in given.graph.node for i in n.input} & {t.name for t in given.graph.initializer}
    for tensor in (t for t in given.graph.initializer if t.name in constants and t.name != "w"):
        function.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    call = helper.make_node("block", ["x", "w"], ["q", "s", "z"], domain="local")
    del given.graph.node[:]
    given.graph.node.append(call)
    given.functions.append(function)
    given.opset_import.append(helper.make_opsetid("local", 1))
    fused, report = rmsnorm_deploy.fuse(given, also=ALSO)
    assert report.fused[0].scope.startswith("local::block")
    assert [n.op_type for f in fused.functions if f.name == "block" for n in f.node][-1:] == [
        "RMSNormDynamicQuantizeLinear"
    ]
    close(given, fused)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("quantised", [DYNAMIC, I8])
def test_our_norm_takes_in_what_a_quantiser_has_put_behind_it(quantised, residual):
    model = pair(SHAPE, quantised, residual=residual, keep=False)
    fused, report = rmsnorm_deploy.fuse(model, also=ALSO)
    assert len(fused.graph.node) == 1
    assert [f.name for f in fused.functions] == ops(fused)
    assert report.already == 0
    again, second = rmsnorm_deploy.fuse(fused, also=ALSO)
    assert (ops(again), len(second.fused), second.already) == (ops(fused), 0, 1)
    close(model, fused)
    unfused, _ = rmsnorm_deploy.unfuse(fused)
    assert ops(unfused)[-1] == ("DynamicQuantizeLinear" if quantised is DYNAMIC else "QuantizeLinear")
    assert not unfused.functions
    for a, b in zip(run(fused, feeds_of(model), False), run(unfused, feeds_of(model), False), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("quantised", [DYNAMIC, I8])
def test_what_else_reads_the_norm_goes_on_reading_it(quantised):
    model = pair(SHAPE, quantised, extra=[helper.make_node("Shape", ["y"], ["dims"])])
    model.graph.output.append(helper.make_tensor_value_info("dims", TensorProto.INT64, [3]))
    fused, report = rmsnorm_deploy.fuse(model, also=ALSO)
    assert len(fused.graph.node) == 2
    assert fused.graph.node[0].output[0] == report.fused[0].output == "y"
    close(model, fused)


def test_several_that_quantise_alike_are_one():
    extra = [
        helper.make_node("QuantizeLinear", ["y", "s", "z"], ["again"], "again"),
        helper.make_node("QuantizeLinear", ["y", "s2", "z"], ["other"], "other"),
        *(helper.make_node("DequantizeLinear", [q, "s", "z"], [f"{q}_back"]) for q in ("again", "other")),
    ]
    model = pair(SHAPE, I8, keep=False, extra=extra)
    model.graph.initializer.append(initializer(0.04, F, "s2"))
    model.graph.output.extend(helper.make_tensor_value_info(f"{q}_back", F, SHAPE) for q in ("again", "other"))
    fused, _ = rmsnorm_deploy.fuse(model, also=ALSO)
    assert sorted(ops(fused)) == ["DequantizeLinear"] * 2 + ["QuantizeLinear", "RMSNormQuantizeLinear"]
    close(model, fused)


def test_two_outputs_of_the_graph_stay_two_values():
    model = pair(SHAPE, I8, keep=False, readers=2)
    fused, _ = rmsnorm_deploy.fuse(model, also=ALSO)
    assert sorted(ops(fused)) == ["QuantizeLinear", "RMSNormQuantizeLinear"]
    close(model, fused)


def test_a_zero_point_that_is_not_there_is_zero():
    model = pair(SHAPE, U8, keep=False)
    del model.graph.node[1].input[2:]
    fused, _ = rmsnorm_deploy.fuse(model, also=ALSO)
    assert ops(fused) == ["RMSNormQuantizeLinear"]
    close(model, fused)


@pytest.mark.parametrize("form", ["onnx", "ort", "standard"])
@pytest.mark.parametrize("before", [spelled, lambda quantised: pair(SHAPE, quantised, keep=False)])
@pytest.mark.parametrize("quantised", [DYNAMIC, I8])
def test_other_forms_leave_it_to_a_node_of_its_own(quantised, before, form):
    model = before(quantised)
    fused, report = rmsnorm_deploy.fuse(rmsnorm_deploy.fuse(model, also=ALSO)[0], form=form, also=ALSO)
    name = "DynamicQuantizeLinear" if quantised is DYNAMIC else "QuantizeLinear"
    assert ops(fused)[-1] == name
    if form != "standard":
        assert len(fused.graph.node) == 2
        assert any(f"does not quantise: {name} stays" in note for note in report.fused[0].notes)
    close(model, fused)


def _scale_for_features(model):
    model.graph.initializer[1].CopyFrom(initializer(np.linspace(0.01, 0.02, 16), F, "s"))
    model.graph.initializer[2].CopyFrom(initializer(np.zeros(16), I8, "z"))


def _scale_of_the_norm(model):
    model.graph.node.insert(1, helper.make_node("ReduceMax", ["y"], ["s"], keepdims=0))
    model.graph.initializer.remove(next(t for t in model.graph.initializer if t.name == "s"))


def _other_input(model):
    model.graph.node[1].input[:] = ["w", "s", "z"]
    model.graph.output[0].type.tensor_type.shape.CopyFrom(helper.make_tensor_type_proto(F, [16]).tensor_type.shape)


def _blocks(model):
    model.graph.node[1].attribute.append(helper.make_attribute("block_size", 8))
    model.graph.node[1].attribute.append(helper.make_attribute("axis", 2))
    model.graph.initializer[1].CopyFrom(initializer(np.full((2, 3, 2), 0.02), F, "s"))
    model.graph.initializer[2].CopyFrom(initializer(np.zeros((2, 3, 2)), I8, "z"))


def _four_bits(model):
    model.graph.initializer[2].CopyFrom(initializer(3, TensorProto.INT16, "z"))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT16


@pytest.mark.parametrize("change", [_scale_for_features, _scale_of_the_norm, _other_input, _blocks, _four_bits])
def test_what_means_something_else_stays(change):
    model = pair(SHAPE, I8)
    change(model)
    onnx.checker.check_model(model, full_check=True)
    fused, _ = rmsnorm_deploy.fuse(model, also=ALSO)
    assert ops(fused) == ops(model)


def test_float8_that_does_not_saturate_stays():
    model = pair(SHAPE, F8, zero=0, saturate=0)
    assert ops(rmsnorm_deploy.fuse(model, also=ALSO)[0]) == ["RMSNorm", "QuantizeLinear"]


@pytest.mark.parametrize("norm", [{"axes": (1,)}, {"stash_type": 11, "scale_type": 11}])
def test_a_norm_whose_rows_are_not_the_last_dimensions_stays(norm):
    model = pair(SHAPE, I8)
    p = NormParameters(Op.RMS_NORM, F, **norm)
    del model.graph.node[0].attribute[:]
    model.graph.node[0].attribute.extend(helper.make_attribute(*a) for a in p.to_attributes().items())
    model.graph.initializer[0].CopyFrom(initializer(np.ones((3, 1) if "axes" in norm else 16), F, "w"))
    assert ops(rmsnorm_deploy.fuse(model, also=ALSO)[0]) == ["RMSNorm", "QuantizeLinear"]


def test_a_scale_that_is_made_behind_the_norm_comes_before_it():
    model = pair(SHAPE, I8, keep=False)
    tensor = next(t for t in model.graph.initializer if t.name == "s")
    model.graph.initializer.remove(tensor)
    model.graph.node.insert(1, helper.make_node("Constant", [], ["s"], value=tensor))
    fused, _ = rmsnorm_deploy.fuse(model, also=ALSO)
    onnx.checker.check_model(fused, full_check=True)
    assert ops(fused) == ["Constant", "RMSNormQuantizeLinear"]
    close(model, fused)


def test_ir_models_and_files_give_the_same(tmp_path):
    model = spelled(DYNAMIC, residual=True)
    fused, _ = rmsnorm_deploy.fuse(model, also=ALSO)
    from_ir, _ = rmsnorm_deploy.fuse(ir.from_proto(model), also=ALSO)
    onnx.save(model, tmp_path / "m.onnx")
    from_file, _ = rmsnorm_deploy.fuse(tmp_path / "m.onnx", also=ALSO)
    for other in (ir.to_proto(from_ir), from_file):
        assert [list(n.output) for n in other.graph.node] == [list(n.output) for n in fused.graph.node]


def test_a_body_that_was_lost_comes_back():
    fused, _ = rmsnorm_deploy.fuse(spelled(I8, residual=True), also=ALSO)
    lost = onnx.ModelProto()
    lost.CopyFrom(fused)
    del lost.functions[:]
    del lost.graph.node[0].attribute[:]
    mended, report = rmsnorm_deploy.fuse(lost, also=ALSO)
    assert "body of 1 norm" in report.repaired
    assert list(mended.graph.node[0].output) == list(fused.graph.node[0].output)
    onnx.checker.check_model(mended, full_check=True)


def test_without_being_asked_for_the_pair_stays_and_a_note_says_how_it_goes():
    model = spelled(I8)
    fused, report = rmsnorm_deploy.fuse(model)
    assert ops(fused) == ["RMSNorm", "QuantizeLinear"]
    assert "'quantizers'" in report.fused[0].notes[-1]
    again, second = rmsnorm_deploy.fuse(fused)
    assert again == fused
    assert not second.fused
    assert ops(rmsnorm_deploy.fuse(fused, also=ALSO)[0]) == ["RMSNormQuantizeLinear"]
