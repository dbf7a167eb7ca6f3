"""What fusing does to norms of ours that a model already holds, after tools have been at it."""

from pathlib import Path

import numpy as np
import onnx
import onnx.compose
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import rmsnorm_deploy
from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.op import DOMAIN, NormParameters, Op, function_body
from rmsnorm_deploy.run.session import register
from tests.support.damaged import DAMAGES, IMPORT, exported, feeds_of, ours, saved_by_onnxruntime
from tests.support.judge import rows
from tests.support.run import run

OPSETS = (11, 13, 17, 18, 23)
FROZEN = sorted((Path(__file__).parents[1] / "data").glob("*/*.onnx"))
NAMES = ["AddRMSNorm", "GeneralRMSNorm", "RMSNorm", "RMSNorm", "RMSNorm"]


def fused_and_damaged(damage, opset=18):
    fused, report = rmsnorm_deploy.fuse(exported(opset))
    assert len(report.fused) == 5
    return DAMAGES[damage][0](fused)


def copy_of(model):
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def same_as(original, model):
    """Valid, and the original's numbers, without the library and with it."""
    onnx.checker.check_model(model, full_check=True)
    feeds = feeds_of(original)
    want = run(original, feeds, True)[0].astype(float)
    for library in (None, register):
        for optimise in (False, True):
            got = run(model, feeds, optimise, library)[0].astype(float)
            np.testing.assert_allclose(got, want, 1e-5, 1e-5)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("damage", list(DAMAGES))
def test_what_a_tool_has_done_is_put_right_and_reported(damage, opset):
    damaged = fused_and_damaged(damage, opset)
    before = damaged.SerializeToString()
    mended, report = rmsnorm_deploy.fuse(damaged)
    assert damaged.SerializeToString() == before, "the caller's model stays as it is"
    assert ", ".join(report.repaired) == DAMAGES[damage][1]
    assert report.to_dict()["repaired"] == list(report.repaired)
    assert report.summary() == f"no RMSNorm is left to fuse; repaired: {DAMAGES[damage][1]}"
    assert not report.warnings
    assert report.already == 5
    assert sorted(n.op_type for n in ours(mended.graph)) == NAMES
    assert {(f.domain, f.name) for f in mended.functions} == {(DOMAIN, name) for name in NAMES}
    same_as(exported(opset), mended)
    again, second = rmsnorm_deploy.fuse(mended)
    assert second.repaired == ()
    assert again.SerializeToString() == mended.SerializeToString()


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_every_way_in_repairs_the_same(damage, tmp_path):
    damaged = fused_and_damaged(damage)
    (tmp_path / "damaged.onnx").write_bytes(damaged.SerializeToString())
    wanted, report = rmsnorm_deploy.fuse(damaged)
    by_path, of_path = rmsnorm_deploy.fuse(tmp_path / "damaged.onnx")
    by_ir, of_ir = rmsnorm_deploy.fuse(ir.from_proto(copy_of(damaged)))
    in_place = ir.from_proto(copy_of(damaged))
    fuser = rmsnorm_deploy.RmsNormFusionPass()
    assert fuser(in_place).modified
    assert by_path.SerializeToString() == wanted.SerializeToString()
    assert report.repaired == of_path.repaired == of_ir.repaired == fuser.report.repaired
    for model in (by_ir, in_place):
        same_as(exported(), ir.to_proto(model))


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_dry_run_says_the_same_and_changes_nothing(damage):
    damaged = fused_and_damaged(damage)
    before = damaged.SerializeToString()
    report = rmsnorm_deploy.explain(damaged)
    assert ", ".join(report.repaired) == DAMAGES[damage][1]
    assert damaged.SerializeToString() == before


def test_a_file_in_which_nothing_is_wrong_is_not_touched():
    fused, _ = rmsnorm_deploy.fuse(exported())
    again, report = rmsnorm_deploy.fuse(fused)
    assert report.repaired == report.warnings == ()
    assert again.SerializeToString() == fused.SerializeToString()


@pytest.mark.parametrize("path", FROZEN, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_nothing_is_wrong_in_files_of_earlier_releases(path):
    before = onnx.load(path)
    again, report = rmsnorm_deploy.fuse(path)
    assert report.repaired == report.warnings == ()
    assert again.SerializeToString() == before.SerializeToString()


def test_a_norm_beside_those_of_an_earlier_release_shares_their_body():
    old = onnx.load(next(path for path in FROZEN if path.stem == "plain_float32_opset13"))
    (x,), (y,) = old.graph.input, old.graph.output
    added = [
        helper.make_node("Mul", [y.name, y.name], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["mean"], axes=[-1], keepdims=1),
        helper.make_node("Sqrt", ["mean"], ["root"]),
        helper.make_node("Div", [y.name, "root"], ["z"]),
    ]
    old.graph.node.extend(added)
    old.graph.output[0].name = "z"
    fused, report = rmsnorm_deploy.fuse(old)
    assert len(report.fused) == 1
    assert report.repaired == ()
    assert list(fused.functions) == list(old.functions)
    feeds = {x.name: np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)}
    for library in (None, register):
        np.testing.assert_allclose(run(fused, feeds, True, library)[0], run(old, feeds, True)[0], 1e-5)


def test_the_rest_of_a_mended_file_stays_byte_for_byte():
    fused, _ = rmsnorm_deploy.fuse(exported())
    fused.graph.node[-1].doc_string = "kept"
    fused.graph.quantization_annotation.add(tensor_name="a")
    damaged = DAMAGES["without_bodies"][0](copy_of(fused))
    mended, _ = rmsnorm_deploy.fuse(damaged)
    assert mended.graph == fused.graph
    assert list(mended.functions) == list(fused.functions)


# -- merged models ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [17, 18])
def test_two_fused_models_merged_share_one_body_again(opset):
    fused, _ = rmsnorm_deploy.fuse(exported(opset))
    merged = onnx.compose.merge_models(fused, fused, [("y", "x")], prefix1="a_", prefix2="b/")
    assert len(merged.functions) == 6
    mended, report = rmsnorm_deploy.fuse(merged)
    assert len(mended.functions) == 3
    assert report.repaired[1] == "names of 6 norms"  # onnx.compose leaves those in subgraphs, and so without a body
    onnx.checker.check_model(mended, full_check=True)
    feeds = feeds_of(exported(opset))
    once = run(exported(opset), feeds, True)[0]
    want = run(exported(opset), feeds | {"x": once}, True)[0]
    given = {f"a_{name}": array for name, array in feeds.items()} | {f"b/{name}": feeds[name] for name in "rc"}
    for library in (None, register):
        np.testing.assert_allclose(run(mended, given, True, library)[0], want, 1e-4, 1e-4)


def test_bodies_of_different_opsets_become_those_of_the_model():
    """Programs that put models together by hand bring bodies of other opsets."""
    fused, _ = rmsnorm_deploy.fuse(exported(18))
    for function in list(fused.functions):
        other = function_body(Op(function.name), 13)
        other.name = f"old_{function.name}"
        fused.functions.append(other)
    fused.graph.node[0].op_type = f"old_{fused.graph.node[0].op_type}"
    mended, report = rmsnorm_deploy.fuse(fused)
    assert report.repaired == ("body of 1 norm", "name of 1 norm")
    assert len(mended.functions) == 3
    same_as(exported(18), mended)


# -- nodes in functions -----------------------------------------------------------------------------------------------


def in_a_function(inner_domain_imported):
    p = NormParameters(Op.RMS_NORM, TensorProto.FLOAT, epsilon=1e-3)
    node = helper.make_node("RMSNorm", ["v", "w"], ["u"], domain=DOMAIN, name="n", **p.to_attributes())
    opsets = [helper.make_opsetid("", 18), *([helper.make_opsetid(DOMAIN, 1)] if inner_domain_imported else [])]
    function = helper.make_function("local", "Block", ["v", "w"], ["u"], [node], opsets)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Block", ["x", "s"], ["y"], domain="local", name="block")],
        "g",
        [info("x", 1, ["b", 8]), info("s", 1, [8])],
        [info("y", 1, ["b", 8])],
    )
    return helper.make_model(
        graph,
        functions=[function],
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("local", 1)],
        ir_version=9,
    )


@pytest.mark.parametrize("imported", [False, True])
def test_a_norm_in_a_function_of_the_file_gets_its_body(imported):
    mended, report = rmsnorm_deploy.fuse(in_a_function(imported))
    assert report.repaired == ("body of 1 norm", IMPORT)
    assert [(f.domain, f.name) for f in mended.functions] == [("local", "Block"), (DOMAIN, "RMSNorm")]
    onnx.checker.check_model(mended, full_check=True)
    feeds = {"x": rows((3, 8), np.float32), "s": np.linspace(1, 2, 8, dtype=np.float32)}
    want = feeds["x"] / np.sqrt((feeds["x"] ** 2).mean(-1, keepdims=True) + 1e-3) * feeds["s"]
    for library in (None, register):
        np.testing.assert_allclose(run(mended, feeds, True, library)[0], want, 1e-5)


# -- functions of our name that are none of ours ----------------------------------------------------------------------


def foreign(name="RMSNorm", attributes=(), op_type="Neg", domain=DOMAIN, extra=()):
    opsets = [helper.make_opsetid("", 18), *extra]
    nodes = [helper.make_node(op_type, ["X"], ["Y"])]
    return helper.make_function(domain, name, ["X", "scale"], ["Y"], nodes, opsets, list(attributes))


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("attributes", [(), ("axes", "epsilon", "stash_type", "scale_type", "output_type")])
@pytest.mark.parametrize("version", [1, 3])
def test_a_foreign_function_of_our_name_keeps_its_meaning_under_another_domain(called, attributes, version):
    model = exported()
    model.opset_import.append(helper.make_opsetid(DOMAIN, version))
    model.functions.append(foreign(attributes=attributes))
    if called:
        model.graph.node[-1].input[0] = "f"
        call = helper.make_node("RMSNorm", ["i", "w"], ["f"], domain=DOMAIN, name="foreign")
        for name in attributes:
            call.attribute.append(helper.make_attribute(name, [-1] if name == "axes" else 0.5 if "eps" in name else 1))
        model.graph.node.insert(len(model.graph.node) - 1, call)
    want = run(model, feeds_of(model), True)[0]
    fused, report = rmsnorm_deploy.fuse(model)
    assert len(report.fused) == 5
    assert report.repaired == ("a function rmsnorm_deploy::RMSNorm of another meaning: now of rmsnorm_deploy.foreign",)
    onnx.checker.check_model(fused, full_check=True)
    assert sum(n.domain == "rmsnorm_deploy.foreign" for n in fused.graph.node) == called
    for library in (None, register):
        np.testing.assert_allclose(run(fused, feeds_of(model), True, library)[0], want, 1e-4, 1e-5)
    assert rmsnorm_deploy.fuse(fused)[1].repaired == ()


def test_a_foreign_function_that_another_one_calls_moves_with_its_call():
    outer = helper.make_function(
        "local",
        "Outer",
        ["X", "scale"],
        ["Y"],
        [helper.make_node("RMSNorm", ["X", "scale"], ["Y"], domain=DOMAIN)],
        [helper.make_opsetid(DOMAIN, 1), helper.make_opsetid("", 18)],
    )
    model = exported()
    model.functions.extend([foreign(), outer])
    model.opset_import.extend([helper.make_opsetid(DOMAIN, 1), helper.make_opsetid("local", 1)])
    model.graph.node.insert(
        len(model.graph.node) - 1, helper.make_node("Outer", ["i", "w"], ["f"], domain="local", name="outer")
    )
    model.graph.node[-1].input[0] = "f"
    want = run(model, feeds_of(model), True)[0]
    fused, report = rmsnorm_deploy.fuse(model)
    assert len(report.fused) == 5
    onnx.checker.check_model(fused, full_check=True)
    for library in (None, register):
        np.testing.assert_allclose(run(fused, feeds_of(model), True, library)[0], want, 1e-4, 1e-5)


def test_a_foreign_function_with_a_prefix_before_our_name_is_left_alone():
    model = exported()
    model.functions.append(foreign("MyRMSNorm"))
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    model.graph.node[-1].input[0] = "f"
    call = helper.make_node("MyRMSNorm", ["i", "w"], ["f"], domain=DOMAIN, name="foreign")
    model.graph.node.insert(len(model.graph.node) - 1, call)
    want = run(model, feeds_of(model), True)[0]
    fused, report = rmsnorm_deploy.fuse(model)
    assert report.repaired == ()
    assert call.op_type in [n.op_type for n in fused.graph.node]
    for library in (None, register):
        np.testing.assert_allclose(run(fused, feeds_of(model), True, library)[0], want, 1e-4, 1e-5)


# -- what cannot be repaired ------------------------------------------------------------------------------------------


def test_a_node_that_means_nothing_is_named_with_what_to_do():
    fused, _ = rmsnorm_deploy.fuse(exported())
    node = next(n for n in fused.graph.node if n.op_type == "AddRMSNorm")
    next(a for a in node.attribute if a.name == "axes").ints[:] = [-1, 1]
    _, report = rmsnorm_deploy.fuse(fused)
    assert report.repaired == ()
    (warning,) = report.warnings
    assert f"node '{node.name}' (AddRMSNorm) is not valid: axes must be one contiguous run" in warning
    assert "fuse the original model again" in warning


def test_norms_of_versions_that_this_release_does_not_know_are_refused():
    fused, _ = rmsnorm_deploy.fuse(exported())
    next(o for o in fused.opset_import if o.domain == DOMAIN).version = 9
    with pytest.raises(ModelError, match="version 9 of the domain rmsnorm_deploy is unknown"):
        rmsnorm_deploy.fuse(fused)


F, H, B, D = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE


# -- types ------------------------------------------------------------------------------------------------------------


def retyped(written, x_type, scale_type, bias_type=None, opset=18):
    """One GeneralRMSNorm whose attributes are those of ``written`` and whose values are of other types."""
    info = helper.make_tensor_value_info
    attributes = written.to_attributes()
    node = helper.make_node("GeneralRMSNorm", ["x", "s", "b"], ["y"], domain=DOMAIN, name="n", **attributes)
    inputs = [info("x", x_type, ["n", 8]), info("s", scale_type, [8]), info("b", bias_type or scale_type, [8])]
    graph = helper.make_graph([node], "g", inputs, [info("y", x_type, ["n", 8])])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    functions = [function_body(Op.GENERAL_RMS_NORM, opset)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=9)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize(
    ("x_type", "scale_type", "bias_type", "repaired"),
    [
        (H, H, H, ("types of 1 norm",)),
        (B, B, B, ("types of 1 norm",)),
        (F, F, F, ()),
        (H, F, F, ("types of 1 norm",)),
        (H, F, H, ("types of 1 norm", "scale of 1 norm")),
        (F, H, H, ("scale of 1 norm",)),
        (F, H, F, ("scale of 1 norm",)),
        (F, D, F, ("scale of 1 norm",)),
        (D, F, D, ("types of 1 norm", "scale of 1 norm")),
        (B, H, H, ("types of 1 norm", "scale of 1 norm")),
    ],
)
def test_types_that_do_not_go_together_are_brought_together(x_type, scale_type, bias_type, repaired, opset):
    model = retyped(NormParameters(Op.GENERAL_RMS_NORM, F, epsilon=1e-3), x_type, scale_type, bias_type, opset)
    mended, report = rmsnorm_deploy.fuse(model)
    assert report.repaired == repaired
    onnx.checker.check_model(mended, full_check=True)
    feeds = {
        i.name: rows((4, 8) if i.name == "x" else (8,), helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type))
        for i in model.graph.input
    }
    x, s, b = (v.astype(float) for v in feeds.values())
    want = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-3) * s + b
    for library in (None, register):
        got = run(mended, feeds, True, library)[0].astype(float)
        np.testing.assert_allclose(got, want, 2e-2 if x_type in (H, B) else 1e-5, 5e-2 if x_type == B else 1e-3)


@pytest.mark.parametrize("way", ["proto", "path", "ir"])
def test_what_the_file_says_of_our_outputs_follows_as_well(way, tmp_path):
    fused, _ = rmsnorm_deploy.fuse(exported(dtype="float16"))
    for info in fused.graph.value_info:
        info.type.tensor_type.elem_type = TensorProto.FLOAT if info.name in ("a", "n", "g") else TensorProto.FLOAT16
    for node in ours(fused.graph):
        for a in node.attribute:
            a.i = F if a.name == "output_type" else a.i
    (tmp_path / "m.onnx").write_bytes(fused.SerializeToString())
    given = {"proto": fused, "path": tmp_path / "m.onnx", "ir": ir.from_proto(copy_of(fused))}[way]
    mended, report = rmsnorm_deploy.fuse(given)
    assert report.repaired == ("types of 5 norms",)
    mended = ir.to_proto(mended) if way == "ir" else mended
    assert {i.type.tensor_type.elem_type for i in mended.graph.value_info} == {H}
    onnx.checker.check_model(mended, full_check=True)
    for library in (None, register):
        run(mended, feeds_of(mended), True, library)


# -- bodies that onnxruntime has inlined ------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED"])
@pytest.mark.parametrize("opset", [13, 18])
def test_fused_saved_by_onnxruntime_and_fused_again(opset, level, tmp_path):
    model = exported(opset)
    for _ in range(3):
        fused, report = rmsnorm_deploy.fuse(model)
        assert len(report.fused) == 5
        assert not any(name.startswith("_inlfunc_") for n in fused.graph.node for name in n.output)
        same_as(exported(opset), fused)
        model = saved_by_onnxruntime(fused, tmp_path / "saved.onnx", level)
        assert not ours(model.graph)


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_saved_by_onnxruntime_with_the_library_and_mended(level, tmp_path):
    fused, _ = rmsnorm_deploy.fuse(exported())
    saved = saved_by_onnxruntime(fused, tmp_path / "saved.onnx", level, library=True)
    assert not saved.functions
    mended, report = rmsnorm_deploy.fuse(saved)
    assert "bodies of 4 norms" in report.repaired or "bodies of 5 norms" in report.repaired
    same_as(exported(), mended)


def test_an_import_that_onnxruntime_writes_into_every_model_does_no_harm(tmp_path):
    """A process that has registered the library saves all models so."""
    model = exported()
    rmsnorm_deploy.session(rmsnorm_deploy.fuse(model)[0])
    saved = saved_by_onnxruntime(model, tmp_path / "saved.onnx", library=True)
    assert 1000 in [o.version for o in saved.opset_import if o.domain == DOMAIN]
    fused, report = rmsnorm_deploy.fuse(saved)
    assert len(report.fused) >= 4
    assert [o.version for o in fused.opset_import if o.domain == DOMAIN] == [1]
    same_as(model, fused)
    rmsnorm_deploy.save(saved, tmp_path / "again.onnx")
    rmsnorm_deploy.save(fused, tmp_path / "fused.onnx")
