"""Finding the library, registering it, and opening sessions."""

import subprocess
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from rmsnorm_deploy.check import doctor
from rmsnorm_deploy.errors import MissingEnvironment, UsageError
from rmsnorm_deploy.fusing.fuse import fuse
from rmsnorm_deploy.op.reference import rms_norm
from rmsnorm_deploy.run import library, session

X = np.array([[3.0, 4.0], [0.0, 2.0]], np.float32)
WANTED, _ = rms_norm(X, np.ones(2), exact=True)
NORM_IN_STEPS = """<ir_version: 8, opset_import: ["": 17]>
g (float[n, 2] X, float[2] w) => (float[n, 2] Y) <float two = {2.0}, float e = {0.00001}> {
    q = Pow(X, two)  m = ReduceMean<axes = [-1]>(q)  i = Add(m, e)  d = Sqrt(i)  z = Div(X, d)  Y = Mul(z, w)
}"""


@pytest.fixture
def proto():
    """A model of one node without a function body: it loads only where the library is registered."""
    attributes = {"axes": [-1], "epsilon": 0.0, "stash_type": 1, "scale_type": 1, "output_type": 1}
    graph = helper.make_graph(
        [helper.make_node("RMSNorm", ["X", "scale"], ["Y"], domain="rmsnorm_deploy", **attributes)],
        "g",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor("scale", TensorProto.FLOAT, [2], [1.0, 1.0])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("rmsnorm_deploy", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def result(opened):
    return opened.run(None, {"X": X})[0]


def test_the_library_is_found():
    path = library.library_path()
    assert path.is_absolute()
    assert path.is_file()


def test_a_variable_names_another_library(monkeypatch, tmp_path):
    other = tmp_path / "other.so"
    monkeypatch.setenv(library.LIBRARY_VARIABLE, str(other))
    with pytest.raises(MissingEnvironment, match="is not a file") as caught:
        library.library_path()
    assert caught.value.hint
    other.write_bytes(b"")
    assert library.library_path() == other.resolve()


def test_a_missing_library_is_said(monkeypatch):
    monkeypatch.delenv(library.LIBRARY_VARIABLE, raising=False)
    monkeypatch.setattr(library, "_candidates", lambda: iter([Path("/nowhere/lib.so")]))
    with pytest.raises(MissingEnvironment, match="is not installed"):
        library.library_path()


def test_a_file_that_is_no_library_is_said(monkeypatch, tmp_path):
    other = tmp_path / "other.so"
    other.write_bytes(b"no library")
    monkeypatch.setenv(library.LIBRARY_VARIABLE, str(other))
    options = ort.SessionOptions()
    with pytest.raises(MissingEnvironment, match=r"other\.so is not a library"):
        session.register(options)
    assert not session.is_registered(options)


def test_registering_twice_registers_once(proto):
    options = ort.SessionOptions()
    assert not session.is_registered(options)
    session.register(options)
    session.register(options)
    assert session.is_registered(options)
    opened = ort.InferenceSession(proto.SerializeToString(), options)
    np.testing.assert_allclose(result(opened), WANTED, rtol=1e-6)


@pytest.fixture
def builtin():
    """A model of one node of onnxruntime's own."""
    graph = helper.make_graph(
        [helper.make_node("SimplifiedLayerNormalization", ["X", "scale"], ["Y"], name="the_node")],
        "g",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)],
        [helper.make_tensor("scale", TensorProto.FLOAT, [2], [1.0, 1.0])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def runs_our_kernel(opened):
    """Whether a node of onnxruntime's own answers with our sentence."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  onnxruntime's exceptions share no base of their own
        opened.run(None, {"X": np.ones((2, 3), np.float32)})
    return "SimplifiedLayerNormalization 'the_node': scale of shape [2] does not" in str(caught.value)


def test_onnxruntimes_own_operators_are_replaced_on_request_only(builtin, proto):
    options = ort.SessionOptions()
    session.register(options)
    assert not session.is_registered(options, override_builtin=True)
    assert not runs_our_kernel(ort.InferenceSession(builtin.SerializeToString(), options))
    for _ in range(2):
        session.register(options, override_builtin=True)
        assert session.is_registered(options, override_builtin=True)
        assert runs_our_kernel(ort.InferenceSession(builtin.SerializeToString(), options))
    np.testing.assert_allclose(result(session.session(proto, session_options=options)), WANTED, rtol=1e-6)
    assert not runs_our_kernel(session.session(builtin))
    opened = session.session(builtin, override_builtin=True)
    assert runs_our_kernel(opened)
    np.testing.assert_allclose(result(opened), WANTED, rtol=1e-4)  # its default epsilon is not 0


def test_registering_at_once_registers_both():
    options = ort.SessionOptions()
    session.register(options, override_builtin=True)
    assert session.is_registered(options)
    assert session.is_registered(options, override_builtin=True)


def test_a_missing_second_library_is_said(monkeypatch, tmp_path):
    assert library.library_path(override=True).parent == library.library_path().parent
    alone = tmp_path / library.library_path().name
    alone.write_bytes(library.library_path().read_bytes())
    monkeypatch.setenv(library.LIBRARY_VARIABLE, str(alone))
    with pytest.raises(MissingEnvironment, match=r"there is no .*override.* beside") as caught:
        session.register(ort.SessionOptions(), override_builtin=True)
    assert "put both files" in caught.value.hint


def test_session_takes_every_kind_of_model(proto, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    for model in (path, str(path), path.read_bytes(), bytearray(path.read_bytes()), proto, onnx_ir.from_proto(proto)):
        np.testing.assert_allclose(result(session.session(model)), WANTED, rtol=1e-6)


def test_session_uses_and_keeps_the_options_given(proto):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    for _ in range(2):
        opened = session.session(proto, session_options=options, providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(result(opened), WANTED, rtol=1e-6)
    assert options.intra_op_num_threads == 1


def test_other_arguments_reach_onnxruntime(proto):
    opened = session.session(proto, providers=["CPUExecutionProvider"], provider_options=[{}])
    np.testing.assert_allclose(result(opened), WANTED, rtol=1e-6)


def test_the_arguments_are_onnxruntimes_own(proto, monkeypatch):
    options = ort.SessionOptions()
    opened = session.session(proto, options, ["CPUExecutionProvider"], [{}])
    assert session.is_registered(options)
    np.testing.assert_allclose(result(opened), WANTED, rtol=1e-6)
    for name in ("sess_options", "session_options"):
        options = ort.SessionOptions()
        session.session(proto, **{name: options})
        assert session.is_registered(options)
    with pytest.raises(UsageError, match="both sess_options and session_options"):
        session.session(proto, sess_options=options, session_options=options)
    seen = {}
    opened = types.SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(ort, "InferenceSession", lambda model, **given: seen.update(given) or opened)
    session.session(proto, None, ["CPUExecutionProvider"], [{"a": "b"}], override_builtin=True)
    assert (seen["providers"], seen["provider_options"]) == (["CPUExecutionProvider"], [{"a": "b"}])
    seen.clear()
    session.session(proto, provider_options=[{"a": "b"}])
    assert "provider_options" not in seen  # onnxruntime does not look at them either


def test_the_library_says_what_it_can_run(tmp_path):
    found = library.instruction_sets(library.library_path())
    assert found[-1] == "portable"
    assert len(set(found)) == len(found)
    (tmp_path / "text.so").write_text("not a library")
    assert library.instruction_sets(tmp_path / "text.so") == ()


def test_beside_another_provider_the_library_is_left_out_and_that_is_said(proto, monkeypatch):
    seen = {}

    def opens(model, sess_options, providers):
        seen.update(model=model, options=sess_options, providers=providers)
        return opened

    opened = types.SimpleNamespace(get_providers=lambda: ["DmlExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr(ort, "InferenceSession", opens)
    monkeypatch.setattr(ort, "get_available_providers", opened.get_providers)
    providers = [("DmlExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"]
    with pytest.warns(UserWarning, match="DmlExecutionProvider.*run by their function bodies"):
        assert session.session(proto, providers=providers) is opened
    assert not session.is_registered(seen["options"])
    assert seen["providers"] == providers
    half = ort.SessionOptions()
    session.register(half)
    with pytest.warns(UserWarning, match="DmlExecutionProvider"):
        session.session(proto, providers=providers, session_options=half, override_builtin=True)
    assert not session.is_registered(half, override_builtin=True)

    options = ort.SessionOptions()
    session.register(options)  # whoever does that has decided
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.session(proto, providers=providers, session_options=options)


def test_models_that_cannot_be_handed_over(proto):
    with pytest.raises(UsageError, match="not int"):
        session.session(3)
    weight = proto.graph.initializer[0]
    weight.ClearField("float_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="weights.bin")
    with pytest.raises(UsageError, match="weights in other files"):
        session.session(proto)


def test_importing_the_module_does_not_import_onnxruntime():
    code = "import sys, rmsnorm_deploy.run.session; assert 'onnxruntime' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_onnxruntime_that_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingEnvironment, match="onnxruntime is not installed") as caught:
        session.register(object())
    assert "pip install" in caught.value.hint


def test_without_the_library_a_session_runs_the_bodies_and_says_how_to_get_it(monkeypatch):
    """As installed from the wheel for every machine, which has no library."""
    fused, _ = fuse(onnx.parser.parse_model(NORM_IN_STEPS))
    feeds = {"X": X, "w": np.array([0.5, 2.0], np.float32)}
    wanted = session.session(fused).run(None, feeds)[0]
    monkeypatch.delenv(library.LIBRARY_VARIABLE, raising=False)
    monkeypatch.setattr(library, "_candidates", lambda: iter([Path("/nowhere/lib.so")]))
    with pytest.warns(UserWarning, match="function bodies") as said:
        opened = session.session(fused)
    (sentence,) = (str(w.message) for w in said)
    assert "pip install" in sentence
    np.testing.assert_allclose(opened.run(None, feeds)[0], wanted, rtol=1e-5, atol=1e-6)
    found = doctor.examine()
    assert not found["ready"]
    assert found["runs"]["fused models on CPUExecutionProvider"] == "function bodies"
    assert any("pip install" in advice for advice in found["advice"])
    with pytest.raises(MissingEnvironment, match="is not installed"):
        session.session(fused, override_builtin=True)
    with pytest.raises(MissingEnvironment, match="is not installed"):
        session.register(ort.SessionOptions())
