"""A second version of the domain, planted: files of both versions run side by side, each with its own meaning."""

import os
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rmsnorm_deploy
from rmsnorm_deploy import op
from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.op import DOMAIN, NormParameters, Op, versions
from rmsnorm_deploy.op.versions import Version
from tests.support.native import compiler
from tests.support.older import ROOT, VERSIONS, python_with
from tests.support.spellings.norms import Spelling, build

F = TensorProto.FLOAT
EPSILON = {1: 0.0, 2: 0.25}
"""Of a node that does not say it. Version 2 has another default than version 1, the one change that it brings."""


@pytest.fixture
def two_versions(monkeypatch):
    monkeypatch.setattr(versions, "VERSIONS", (Version(1), Version(2, {"epsilon": EPSILON[2]})))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The library as it would be with version 2; its portable kernels only, and not optimised."""
    folder = tmp_path_factory.mktemp("version2")
    ops = shutil.copytree(ROOT / "ops", folder / "ops")
    planted = ops / "ort" / "ours" / "attributes.cpp"
    for old, new in (
        ("kNewestVersion = 1;", "kNewestVersion = 2;"),
        (
            "  check_version(node, info);",
            """  check_version(node, info);
  std::int64_t version = 1;
  read(node, info, "version", &version);
  if (version >= 2) a.epsilon = 0.25f;""",
        ),
    ):
        assert planted.read_text().count(old) == 1
        planted.write_text(planted.read_text().replace(old, new))
    sources = [ops / "cpu" / "isa" / "portable.cpp", ops / "cuda" / "missing.cpp"]
    sources += [s for room in ("contract", "cpu", "ort", "ort/ours") for s in sorted((ops / room).glob("*.cpp"))]
    command = [*compiler(), "-std=c++17", "-O0", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off"]
    made = folder / "librmsnorm_deploy.so"
    command += ["-DRMSNORM_DEPLOY_TABLES=TABLE(portable)", *sources, "-o", made, "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return made


def model_of(operator, version, values, body):
    """A model of one node, of a version of the domain, with the attributes ``values``."""
    node = helper.make_node(operator.value, operator.inputs, operator.outputs, domain=DOMAIN, name="n", **values)
    weights = ("scale", "bias")
    inputs = [helper.make_tensor_value_info(i, F, [8] if i in weights else ["n", 8]) for i in operator.inputs]
    outputs = [helper.make_tensor_value_info(o, F, ["n", 8]) for o in operator.outputs]
    return helper.make_model(
        helper.make_graph([node], "g", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, version)],
        functions=[op.function_body(operator, 18, version)] if body else [],
        ir_version=8,
    )


def short(version):
    """The attributes of a node that leaves out what it can."""
    return {"version": version} if version > 1 else {}


@pytest.mark.parametrize("runtime", ["installed", *VERSIONS])
def test_files_of_both_versions_run_side_by_side(two_versions, library, runtime, tmp_path):
    """In one process: nodes that leave out what they can, by the library; nodes that say all, by body and library."""
    (tmp_path / "out").mkdir()
    wanted = {}
    for operator in (o for o in Op if not o.quantises):
        ones = {name: np.ones((2, 8) if name in ("X", "residual", "gate") else 8) for name in operator.inputs}
        ones |= {name: np.full(8, -0.0) for name in operator.inputs if name == "bias"}
        for version, epsilon in EPSILON.items():
            p = NormParameters.from_attributes(operator, short(version), version=version, x_type=F)
            assert p.epsilon == epsilon
            x = 2.0 if "residual" in operator.inputs else 1.0
            x = 1.0 / (1.0 + np.exp(-1.0)) if "gate" in operator.inputs else x
            for body, values in ((False, short(version)), (True, p.to_attributes(version))):
                name = f"{operator.value}_{version}_{'said' if body else 'left_out'}"
                wanted[name] = x / np.sqrt(x * x + epsilon)
                model = model_of(operator, version, values, body)
                if body:
                    onnx.checker.check_model(model, full_check=True)
                onnx.save(model, tmp_path / f"{name}.onnx")
                np.savez(tmp_path / f"{name}.npz", **ones)
    python = sys.executable if runtime == "installed" else python_with(runtime)
    command = [python, "-m", "tests.support.run_files", tmp_path, tmp_path / "out", library]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, value in wanted.items():
        made = dict(np.load(tmp_path / "out" / f"{name}.npz"))
        assert len(made) == (4 if name.endswith("said") else 2)
        for way, got in made.items():
            np.testing.assert_allclose(got, value, rtol=1e-6, err_msg=f"{name}, {way}")


def test_version_1_is_written_as_ever(two_versions):
    p = NormParameters(Op.GENERAL_RMS_NORM, F, epsilon=0.5)
    assert op.newest() == 2
    assert "version" not in p.to_attributes(1)
    assert "version" not in op.function_body(Op.RMS_NORM, 18, 1).attribute
    assert p.to_attributes() == p.to_attributes(1) | {"version": 2}
    assert list(p.to_attributes()) == list(op.attribute_names(Op.GENERAL_RMS_NORM))
    for version in (1, 2):
        assert NormParameters.from_attributes(p.op, p.to_attributes(version), version=version) == p


def test_a_model_keeps_its_version(two_versions):
    assert op.version_of({"": 18}) == 2
    assert op.version_of({"": 18, DOMAIN: 1}) == 1
    with pytest.raises(ValueError, match=r"version 3 of the domain rmsnorm_deploy is unknown .* which knows 1, 2"):
        op.version_of({DOMAIN: 3})


@pytest.mark.parametrize("imports", [None, 1, 2])
def test_fusing_writes_the_version_that_the_model_has_and_else_the_newest(two_versions, imports):
    model = build(Spelling()).model
    if imports:
        model.opset_import.append(helper.make_opsetid(DOMAIN, imports))
    _, planned = rmsnorm_deploy.fuse(model, dry_run=True)
    fused, report = rmsnorm_deploy.fuse(model)
    (node,) = (n for n in fused.graph.node if n.domain == DOMAIN)
    version = op.version_of({o.domain: o.version for o in fused.opset_import})
    assert version == (imports or 2)
    written = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert [norm.attributes for norm in (*planned.fused, *report.fused)] == [written, written]
    assert [a.name for a in node.attribute] == list(op.attribute_names(Op.RMS_NORM, version))
    assert fused.functions[0] == op.function_body(Op.RMS_NORM, 18, version)
    NormParameters.from_node(node, version=version)


def test_fusing_leaves_a_model_of_an_unknown_version_alone():
    model = build(Spelling()).model
    model.opset_import.append(helper.make_opsetid(DOMAIN, 2))
    with pytest.raises(ModelError, match="version 2 of the domain rmsnorm_deploy is unknown"):
        rmsnorm_deploy.fuse(model)


@pytest.mark.parametrize(("says", "imports"), [(None, 2), (1, 2), (2, 1)])
def test_a_node_is_not_read_in_a_version_that_it_is_not_of(two_versions, says, imports):
    values = {"output_type": F} | ({} if says is None else {"version": says})
    with pytest.raises(ValueError, match="version"):
        NormParameters.from_attributes(Op.RMS_NORM, values, version=imports)


def test_the_checker_knows_both_versions(two_versions):
    op.register_schemas()
    try:
        op.register_schemas()
        for operator in (o for o in Op if not o.quantises):
            for version in EPSILON:
                onnx.checker.check_model(model_of(operator, version, short(version), body=False), full_check=True)
            with pytest.raises(onnx.checker.ValidationError, match="version"):
                onnx.checker.check_model(model_of(operator, 2, {}, body=False))
            with pytest.raises(onnx.checker.ValidationError, match="version"):
                onnx.checker.check_model(model_of(operator, 1, {"version": 1}, body=False))
    finally:
        for operator in Op:
            for version in EPSILON:
                onnx.defs.deregister_schema(operator.value, version, DOMAIN)


def test_an_attribute_that_a_version_lacks_is_not_left_out_silently(two_versions, monkeypatch):
    from rmsnorm_deploy.op import definition

    later = [a if a.name != "rms_floor" else a.__class__(**{**vars(a), "since": 2}) for a in definition.ATTRIBUTES]
    monkeypatch.setattr(definition, "ATTRIBUTES", tuple(later))
    p = NormParameters(Op.GENERAL_RMS_NORM, F)
    assert "rms_floor" not in p.to_attributes(1)
    with pytest.raises(ValueError, match="version 1 of the domain rmsnorm_deploy has no rms_floor"):
        NormParameters(Op.GENERAL_RMS_NORM, F, rms_floor=0.5).to_attributes(1)
