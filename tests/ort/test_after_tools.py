"""Norms that tools have damaged or taken out of sight: what verify, session, doctor and the commands say of them."""

import json
import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import rmsnorm_deploy
from rmsnorm_deploy.check.doctor import examine
from rmsnorm_deploy.cli import app as cli
from tests.support.damaged import DAMAGES, exported, feeds_of, ours, saved_by_onnxruntime
from tests.support.run import run

LOST = r"onnxruntime has inlined the function bodies of about (\d|10) norms"


@pytest.fixture
def fused():
    return rmsnorm_deploy.fuse(exported())[0]


@pytest.fixture
def saved(tmp_path):
    """As quant_pre_process leaves it."""
    model, _ = rmsnorm_deploy.fuse(exported(branches=False))
    return saved_by_onnxruntime(model, tmp_path / "saved.onnx", "ORT_ENABLE_EXTENDED")


def command(capsys, *arguments):
    status = cli.main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


# -- norms that are out of sight --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["path", "bytes", "proto"])
def test_a_session_says_that_norms_were_lost(saved, kind, tmp_path):
    onnx.save(saved, tmp_path / "m.onnx")
    given = {"path": tmp_path / "m.onnx", "bytes": saved.SerializeToString(), "proto": saved}[kind]
    with pytest.warns(UserWarning, match=LOST):
        rmsnorm_deploy.session(given)


def test_a_session_says_that_nodes_have_another_name(fused, tmp_path):
    onnx.save(DAMAGES["prefixed"][0](fused), tmp_path / "m.onnx")
    with pytest.warns(UserWarning, match="rmsnorm_deploy::a_AddRMSNorm"):
        rmsnorm_deploy.session(tmp_path / "m.onnx")


@pytest.mark.parametrize("which", ["exported", "fused", "fused again"])
def test_a_session_of_an_undamaged_model_says_nothing(which, fused, saved):
    model = {"exported": exported(), "fused": fused, "fused again": rmsnorm_deploy.fuse(saved)[0]}[which]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rmsnorm_deploy.session(model)


def test_verify_says_that_norms_were_lost(saved):
    result = rmsnorm_deploy.verify(exported(branches=False), saved)
    assert result.passed
    assert result.fused_nodes == 0
    assert any("about 3 norms" in note for note in result.notes)
    assert not any(
        "inlined" in note
        for note in rmsnorm_deploy.verify(exported(branches=False), rmsnorm_deploy.fuse(saved)[0]).notes
    )


def test_explain_says_that_norms_were_lost_and_fuse_finds_them(saved):
    report = rmsnorm_deploy.explain(saved)
    assert "inlined the function bodies of about 3 norms" in report.warnings[0]
    _, report = rmsnorm_deploy.fuse(saved)
    assert len(report.fused) == 3
    assert report.warnings == ()


def test_what_was_lost_for_good_is_said_by_fuse_as_well(saved):
    """A norm that is fused no more: its mean square is another number."""
    for node in saved.graph.node:
        if node.op_type == "SimplifiedLayerNormalization":
            node.op_type, node.domain = "Other", "elsewhere"
    _, report = rmsnorm_deploy.fuse(saved)
    assert len(report.fused) < 3
    assert "inlined the function bodies of about 3 norms" in report.warnings[0]


# -- norms that are damaged -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["without_bodies", "prefixed", "stale_types"])
def test_verify_and_doctor_say_what_fuse_would_repair(damage, fused, tmp_path, capsys):
    damaged = DAMAGES[damage][0](fused)
    repairs = list(rmsnorm_deploy.explain(damaged).repaired)
    assert repairs
    notes = " ".join(rmsnorm_deploy.verify(exported(), damaged).notes)
    assert all(f"'rmsnorm-deploy fuse' repairs {r}" in notes for r in repairs)
    onnx.save(damaged, tmp_path / "m.onnx")
    assert examine(tmp_path / "m.onnx")["model"]["repairs"] == repairs
    status, out, err = command(capsys, "doctor", tmp_path / "m.onnx")
    assert status == 0
    assert f"damaged: {'; '.join(repairs)}" in out
    assert "hint: repair it: rmsnorm-deploy fuse" in err
    status, out, _ = command(capsys, "doctor", tmp_path / "m.onnx", "--json")
    assert json.loads(out)["model"]["repairs"] == repairs


def test_doctor_of_a_model_in_which_nothing_is_wrong(fused, saved, tmp_path, capsys):
    onnx.save(fused, tmp_path / "m.onnx")
    _, out, _ = command(capsys, "doctor", tmp_path / "m.onnx")
    assert "1 AddRMSNorm, 1 GeneralRMSNorm, 3 RMSNorm" in out
    assert "damaged" not in out
    onnx.save(saved, tmp_path / "s.onnx")
    _, out, err = command(capsys, "doctor", tmp_path / "s.onnx")
    assert "no fused norms" in out
    assert "about 3 norms" in err
    assert examine()["model"] is None
    assert command(capsys, "doctor", tmp_path / "nowhere.onnx")[0] == 3


def test_the_command_line_says_what_it_repairs(fused, tmp_path, capsys):
    onnx.save(DAMAGES["without_bodies"][0](fused), tmp_path / "m.onnx")
    said = "no RMSNorm is left to fuse; {}: bodies of 5 norms, the imported version of rmsnorm_deploy (5 fused before)"
    status, out, _ = command(capsys, "explain", tmp_path / "m.onnx")
    assert status == 0
    assert said.format("would repair") in out
    status, out, _ = command(capsys, "fuse", tmp_path / "m.onnx", "-o", tmp_path / "out.onnx", "--verify")
    assert status == 0
    assert said.format("repaired") in out
    assert len(onnx.load(tmp_path / "out.onnx").functions) == 3
    status, out, _ = command(capsys, "fuse", tmp_path / "m.onnx", "--dry-run", "--json")
    assert json.loads(out)["repaired"] == ["bodies of 5 norms", "the imported version of rmsnorm_deploy"]


# -- tools that this environment has ----------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("opset", [13, 18])
def test_the_float16_converter_of_onnxruntime_before_and_after_fusing(opset, keep):
    """From opset 15 on the file loads as it is; below, fusing again repairs it."""
    float16 = pytest.importorskip("onnxruntime.transformers.float16")
    original = exported(opset)
    want = run(original, feeds_of(original), True)[0]
    after = float16.convert_float_to_float16(rmsnorm_deploy.fuse(original)[0], keep_io_types=keep)
    before, _ = rmsnorm_deploy.fuse(float16.convert_float_to_float16(exported(opset), keep_io_types=keep))
    mended, report = rmsnorm_deploy.fuse(after)
    assert report.repaired == ("types of 5 norms",)
    types = {a.i for n in ours(mended.graph) for a in n.attribute if a.name == "output_type"}
    assert types == {TensorProto.FLOAT16}
    for model in (before, mended, *([after] if opset >= 15 else [])):
        if not keep:  # else its Casts of inputs and outputs stand in no order
            onnx.checker.check_model(model, full_check=True)
        feeds = {
            k: v.astype(bool if k == "c" else np.float32 if keep else np.float16) for k, v in feeds_of(original).items()
        }
        for library in (None, rmsnorm_deploy.register):
            got = run(model, feeds, True, library)[0]
            np.testing.assert_allclose(got.astype(float), want, 2e-2, 2e-2)


@pytest.mark.parametrize("skip", [True, False])
def test_quant_pre_process_keeps_norms_or_fuse_finds_them_again(skip, fused, tmp_path):
    quantization = pytest.importorskip("onnxruntime.quantization.shape_inference")
    onnx.save(fused, tmp_path / "in.onnx")
    quantization.quant_pre_process(tmp_path / "in.onnx", tmp_path / "out.onnx", skip_optimization=skip)
    processed = onnx.load(tmp_path / "out.onnx")
    assert len(ours(processed.graph)) == (5 if skip else 0)
    again, report = rmsnorm_deploy.fuse(processed)
    assert report.already + len(report.fused) == 5
    want = run(exported(), feeds_of(exported()), True)[0]
    for library in (None, rmsnorm_deploy.register):
        np.testing.assert_allclose(run(again, feeds_of(exported()), True, library)[0], want, 1e-5, 1e-5)


def test_onnx_version_converter_drops_bodies_and_fuse_puts_them_back():
    nodes = exported(18)
    converted = onnx.version_converter.convert_version(rmsnorm_deploy.fuse(nodes)[0], 21)
    assert not converted.functions
    mended, report = rmsnorm_deploy.fuse(converted)
    assert "bodies of 3 norms" in report.repaired or "bodies of 5 norms" in report.repaired
    onnx.checker.check_model(mended, full_check=True)
    want = run(exported(), feeds_of(exported()), True)[0]
    for library in (None, rmsnorm_deploy.register):
        np.testing.assert_allclose(run(mended, feeds_of(exported()), True, library)[0], want, 1e-5, 1e-5)


def test_symbolic_shape_inference_knows_every_value_of_a_fused_model(fused):
    symbolic = pytest.importorskip("onnxruntime.tools.symbolic_shape_infer")
    del fused.graph.value_info[:]
    inferred = symbolic.SymbolicShapeInference.infer_shapes(fused, auto_merge=True)
    known = {i.name for i in inferred.graph.value_info if i.type.tensor_type.elem_type}
    assert {o for n in ours(fused.graph) if n.op_type != "x" for o in n.output} - known <= {"then_y", "else_y"}
