"""Sessions that replace onnxruntime's own norms, of models in which its optimizer makes operators of another domain."""

import numpy as np
import onnx
import onnx_ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_deploy
from rmsnorm_deploy.errors import UsageError
from rmsnorm_deploy.run.imports import imported_domains, with_import
from rmsnorm_deploy.run.registering import replaces

N = helper.make_node
LEVELS = [
    getattr(ort.GraphOptimizationLevel, f"ORT_{name}")
    for name in ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL")
]
MINOR = int(ort.__version__.split(".")[1])
WEIGHTS = {
    "w": np.linspace(0.5, 2, 16),
    "bias": np.linspace(-1, 1, 16),
    "one": np.array(1),
    "half": np.array(0.5),
    "root": np.array(2**0.5),
    "matrix": np.linspace(-1, 1, 80).reshape(5, 16),
    "eighth": np.array(0.125),
}
X = np.random.default_rng(0).standard_normal((2, 5, 16)).astype(np.float32)
GELU = [
    N("Div", ["g", "root"], ["g1"]),
    N("Erf", ["g1"], ["g2"]),
    N("Add", ["g2", "one"], ["g3"]),
    N("Mul", ["g", "g3"], ["g4"]),
    N("Mul", ["g4", "half"], ["y"]),
]
# behind a norm n: what onnxruntime makes of it, and the nodes
MADE = {
    "QuickGelu": [N("Sigmoid", ["n"], ["s"]), N("Mul", ["n", "s"], ["y"])],
    "Gelu": [N("Identity", ["n"], ["g"]), *GELU],
    "BiasGelu": [N("Add", ["n", "bias"], ["g"]), *GELU],
    "FusedMatMul": [N("Transpose", ["n"], ["t"], perm=[0, 2, 1]), N("MatMul", ["matrix", "t"], ["y"])],
    "FusedMatMul with a factor": [
        N("Transpose", ["n"], ["t"], perm=[0, 2, 1]),
        N("MatMul", ["n", "t"], ["p"]),
        N("Mul", ["p", "eighth"], ["y"]),
    ],
}


def model_of(nodes, imports=(("", 17),), size=16):
    norm = N("SimplifiedLayerNormalization", ["x", "w"], ["n"], name="norm", axis=-1, epsilon=1e-5)
    used = {i for node in nodes for i in node.input} | {"w"}
    weights = [numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in WEIGHTS.items() if n in used]
    graph = helper.make_graph(
        [norm, *nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "rows", size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", "r", "c"])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*i) for i in imports], ir_version=9)


def quiet(level=LEVELS[-1]):
    made = ort.SessionOptions()
    made.log_severity_level = 4
    made.graph_optimization_level = level
    return made


def alone(model, level=LEVELS[-1]):
    return ort.InferenceSession(model.SerializeToString(), quiet(level), providers=["CPUExecutionProvider"])


def agrees(opened, model):
    """Whether a session computes what onnxruntime alone does."""
    np.testing.assert_allclose(opened.run(None, {"x": X})[0], alone(model).run(None, {"x": X})[0], rtol=1e-4, atol=1e-5)
    return True


def refuses_as_we_do(opened):
    """Whether the norm runs in our kernel: it says so where the rows are too long."""
    with pytest.raises(Exception, match="SimplifiedLayerNormalization 'norm': scale of shape"):
        opened.run(None, {"x": np.ones((1, 5, 7), np.float32)})
    return True


@pytest.mark.parametrize("made", MADE)
def test_onnxruntime_makes_such_an_operator(made, tmp_path):
    """Else the tests below show nothing."""
    options = quiet()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    ort.InferenceSession(model_of(MADE[made]).SerializeToString(), options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(tmp_path / "optimised.onnx").graph.node
    assert made.split()[0] in {n.op_type for n in nodes if n.domain == "com.microsoft"}


@pytest.mark.parametrize("level", LEVELS, ids=str)
@pytest.mark.parametrize("made", MADE)
def test_what_the_optimizer_makes_is_found(made, level):
    model = model_of(MADE[made])
    before = model.SerializeToString()
    options = quiet(level)
    opened = rmsnorm_deploy.session(model, options, override_builtin=True)
    assert agrees(opened, model)
    assert replaces(options, "")
    assert not replaces(options, "com.microsoft")
    assert model.SerializeToString() == before


def saved(model, folder, external):
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=external, location="weights.bin", size_threshold=0)
    return path


def linked(model, folder):
    """As in a Hugging Face cache: both files are links to elsewhere."""
    path = saved(model, folder / "blobs", True)
    for name in ("model.onnx", "weights.bin"):
        (folder / "snapshot" / name).symlink_to(folder / "blobs" / name)
    return folder / "snapshot" / path.name


@pytest.mark.parametrize("form", ["proto", "bytes", "ir", "path", "external", "linked"])
@pytest.mark.parametrize("made", ["QuickGelu", "FusedMatMul"])
def test_in_every_form_of_model(made, form, tmp_path, monkeypatch):
    model = model_of(MADE[made])
    for folder in ("blobs", "snapshot"):
        (tmp_path / folder).mkdir()
    given = {
        "proto": lambda: model,
        "bytes": model.SerializeToString,
        "ir": lambda: onnx_ir.from_proto(model),
        "path": lambda: saved(model, tmp_path, False),
        "external": lambda: saved(model, tmp_path, True),
        "linked": lambda: linked(model, tmp_path),
    }[form]()
    model = model_of(MADE[made])  # saving takes the weights out
    assert agrees(rmsnorm_deploy.session(given, quiet(), override_builtin=True), model)
    if form in ("path", "external", "linked"):
        monkeypatch.chdir(given.parent)
        assert agrees(rmsnorm_deploy.session(given.name, quiet(), override_builtin=True), model)


@pytest.mark.parametrize("imports", [[("", 17)], [("ai.onnx", 17)], [("", 17), ("com.microsoft", 1)]])
def test_the_norms_of_the_file_run_in_our_kernels_all_the_same(imports):
    model = model_of(MADE["QuickGelu"], imports, "any")
    opened = rmsnorm_deploy.session(model, quiet(), override_builtin=True)
    assert agrees(opened, model)
    assert refuses_as_we_do(opened)


def skip_model(imports):
    """A norm of onnxruntime's own domain, behind an operator that the standard has."""
    nodes = [
        N("Neg", ["x"], ["z"]),
        N("SkipSimplifiedLayerNormalization", ["z", "x", "w"], ["n"], name="skip", domain="com.microsoft"),
        N("Sigmoid", ["n"], ["s"]),
        N("Mul", ["n", "s"], ["y"]),
    ]
    model = model_of(nodes, imports, "any")
    del model.graph.node[0]
    return model


def test_a_model_that_does_not_import_the_standard_operators():
    """onnxruntime takes the newest ones."""
    model = skip_model([("com.microsoft", 1)])
    options = quiet()
    opened = rmsnorm_deploy.session(model, options, override_builtin=True)
    assert agrees(opened, model)
    assert replaces(options, "com.microsoft")
    assert not replaces(options, "")
    with pytest.raises(Exception, match="SkipSimplifiedLayerNormalization 'skip': gamma of shape"):
        opened.run(None, {"x": np.ones((1, 5, 7), np.float32)})


def test_one_options_object_for_models_with_and_without_the_import():
    options, with_skip = quiet(), skip_model([("", 17), ("com.microsoft", 1)])
    for _ in range(2):
        model = model_of(MADE["QuickGelu"])
        assert agrees(rmsnorm_deploy.session(model, options, override_builtin=True), model)
        opened = rmsnorm_deploy.session(with_skip, options, override_builtin=True)
        assert agrees(opened, with_skip)
        with pytest.raises(Exception, match="SkipSimplifiedLayerNormalization 'skip': gamma of shape"):
            opened.run(None, {"x": np.ones((1, 5, 7), np.float32)})


def test_options_that_replace_everything_already(tmp_path):
    options, model = quiet(), model_of(MADE["QuickGelu"])
    rmsnorm_deploy.register(options, override_builtin=True)
    for override in (False, True):
        assert agrees(rmsnorm_deploy.session(model, options, override_builtin=override), model)
        assert agrees(rmsnorm_deploy.session(saved(model, tmp_path, False), options), model)
    path = saved(model_of(MADE["QuickGelu"]), tmp_path, True)
    with pytest.raises(UsageError, match=r"does not import com\.microsoft") as caught:
        rmsnorm_deploy.session(path, options, override_builtin=True)
    assert "session options of its own" in caught.value.hint
    assert agrees(rmsnorm_deploy.session(path, quiet(), override_builtin=True), model)


def test_files_in_onnxruntimes_own_format(tmp_path):
    """Such a file keeps the operators, built-in or ours, with which it was saved."""
    model = model_of(MADE["QuickGelu"], size="any")
    for override in (False, True):
        path = tmp_path / f"{override}.ort"
        options = quiet()
        options.optimized_model_filepath = str(path)
        options.add_session_config_entry("session.save_model_format", "ORT")
        rmsnorm_deploy.session(model, options, override_builtin=override)
        assert imported_domains(path) is None
        for given in (path, path.read_bytes()):
            opened = rmsnorm_deploy.session(given, quiet(), override_builtin=True)
            assert agrees(opened, model)
            assert not override or refuses_as_we_do(opened)


def test_a_branch_is_part_of_the_model():
    body = model_of(MADE["QuickGelu"]).graph
    branch = helper.make_graph(body.node, "branch", [], [helper.make_empty_tensor_value_info("y")])
    nodes = [N("If", ["yes"], ["out"], then_branch=branch, else_branch=branch), N("Identity", ["out"], ["y"])]
    model = model_of([])
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.append(helper.make_tensor("yes", TensorProto.BOOL, [], [True]))
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5
    assert agrees(rmsnorm_deploy.session(model, quiet(), override_builtin=True), model)


def test_what_a_session_saves_loads_without_the_library(tmp_path):
    model, path = model_of(MADE["FusedMatMul"]), tmp_path / "optimised.onnx"
    options = quiet()
    options.optimized_model_filepath = str(path)
    rmsnorm_deploy.session(model, options, override_builtin=True)
    assert {(i.domain, i.version) for i in onnx.load(path).opset_import} >= {("", 17), ("com.microsoft", 1)}
    assert agrees(ort.InferenceSession(path, quiet(), providers=["CPUExecutionProvider"]), model)


# ----------------------------------------------------------------------------------------------------------------------
# Reading the imports


def test_imports_are_read_from_a_file_and_from_bytes(tmp_path):
    model = model_of(MADE["Gelu"], [("ai.onnx", 17), ("com.microsoft", 1), ("x", 3)])
    path = saved(model, tmp_path, True)
    assert imported_domains(path) == imported_domains(str(path)) == {"", "com.microsoft", "x"}
    data = model.SerializeToString()
    assert imported_domains(data) == {"", "com.microsoft", "x"}
    assert imported_domains(with_import(data, "more")) == {"", "com.microsoft", "x", "more"}
    assert {i.domain: i.version for i in onnx.load_from_string(with_import(data, "more")).opset_import}["more"] == 1


@pytest.mark.parametrize(
    "data",
    [b"", b"text", b"\x18\0\0\0ORTM\0\0", b"\xff" * 20, np.random.default_rng(1).bytes(64)],
    ids=["nothing", "text", "ort", "ones", "noise"],
)
def test_what_is_no_model_imports_nothing_that_is_known(data, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(data)
    assert imported_domains(data) in (None, frozenset())
    assert imported_domains(path) == imported_domains(data)
    assert imported_domains(tmp_path / "none") is None
    assert imported_domains(tmp_path) is None


def test_a_model_that_is_cut_off_is_not_understood():
    data = model_of(MADE["Gelu"]).SerializeToString()
    assert imported_domains(data) == {""}
    assert all(imported_domains(data[:length]) is None for length in range(len(data) - 40, len(data), 3))


def test_a_file_that_is_not_there_is_onnxruntimes_business(tmp_path):
    with pytest.raises(Exception, match=r"no\.onnx.*exist"):
        rmsnorm_deploy.session(tmp_path / "no.onnx", quiet(), override_builtin=True)
