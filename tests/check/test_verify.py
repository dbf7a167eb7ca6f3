"""Verification: it accepts what is right, finds what is wrong, and says which."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_deploy
from rmsnorm_deploy import MissingEnvironment, UsageError, VerificationFailed
from rmsnorm_deploy.check.verify import verify
from rmsnorm_deploy.run.inputs import adversarial_inputs, fit_inputs, load_inputs, make_inputs, parse_shapes
from tests.support.seeded import Norm

pytest.importorskip("onnxruntime", reason="verification runs models in onnxruntime")

SAMPLES = sorted((Path(__file__).parents[2] / "samples" / "models").glob("*.onnx"))
KINDS = {"float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}


def norm(kind="float32", epsilon=1e-6, shape=("batch", 8, 64), opset=18, after=()):
    """One norm as exporters write it: Pow, ReduceMean, Add, Sqrt, Reciprocal, Mul, Mul."""
    data_type = TensorProto.BFLOAT16 if kind == "bfloat16" else KINDS[kind]
    dtype = helper.tensor_dtype_to_np_dtype(data_type)
    scale = np.linspace(0.5, 1.5, shape[-1]).astype(dtype)
    tensors = [
        numpy_helper.from_array(np.array(2, dtype), "two"),
        numpy_helper.from_array(np.array(epsilon, dtype), "epsilon"),
        numpy_helper.from_array(np.array([-1], np.int64), "axes"),
        numpy_helper.from_array(scale, "scale"),
    ]
    nodes = [
        helper.make_node("Pow", ["x", "two"], ["square"]),
        helper.make_node("ReduceMean", ["square", "axes"], ["mean"], keepdims=1),
        helper.make_node("Add", ["mean", "epsilon"], ["sum"]),
        helper.make_node("Sqrt", ["sum"], ["rms"]),
        helper.make_node("Reciprocal", ["rms"], ["inverse"]),
        helper.make_node("Mul", ["x", "inverse"], ["n"]),
        helper.make_node("Mul", ["n", "scale"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "norm",
        [helper.make_tensor_value_info("x", data_type, shape)],
        [helper.make_tensor_value_info("y", data_type, shape)],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 9
    return model


def with_attribute(model, name, value):
    """A copy of a fused model with one attribute of its norms changed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    changed = 0
    for node in copy.graph.node:
        for attribute in node.attribute:
            if node.domain == "rmsnorm_deploy" and attribute.name == name:
                attribute.CopyFrom(helper.make_attribute(name, value))
                changed += 1
    assert changed
    return copy


def fused(model):
    result, report = rmsnorm_deploy.fuse(model)
    assert report.fused
    return result


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_the_samples_pass(path):
    result = verify(path, fused(path))
    assert result.passed, result.summary()
    assert result.truth == "float64 in onnxruntime"
    runs = {c.run for c in result.checks}
    assert {"plain", "plain, optimizer off"} <= runs
    assert result.library == ""
    assert result.kernel_nodes == result.fused_nodes > 0
    assert {"library", "library, optimizer off"} <= runs


@pytest.mark.parametrize("kind", KINDS)
def test_a_norm_passes_in_every_type(kind):
    original = norm(kind)
    result = verify(original, fused(original))
    assert result.passed, result.summary()
    assert {c.inputs for c in result.checks} == {"normal", "scaled"}


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_a_wrong_epsilon_shows_only_in_small_rows(kind):
    original = norm(kind, epsilon=1e-5)
    wrong = with_attribute(fused(original), "epsilon", 3e-5)
    result = verify(original, wrong)
    assert not result.passed
    assert {c.inputs for c in result.checks if not c.passed} >= {"scaled"}
    if kind == "float16":  # normal rows hide it altogether
        assert all(c.passed for c in result.checks if c.inputs == "normal")
    worst = result.worst
    assert worst.reason
    assert len(worst.index) == 3


def test_a_wrong_scale_is_found_and_the_index_is_its_place():
    original = norm()
    wrong = fused(original)
    for tensor in wrong.graph.initializer:
        if tensor.name == "scale":
            values = numpy_helper.to_array(tensor).copy()
            values[37] *= 1.001
            tensor.CopyFrom(numpy_helper.from_array(values, "scale"))
    result = verify(original, wrong)
    assert not result.passed
    assert result.worst.index[-1] == 37
    with pytest.raises(VerificationFailed, match="differs from its original") as caught:
        result.require()
    assert caught.value.exit_code == 1


def test_nan_and_infinity_are_compared_explicitly():
    original = norm(epsilon=0.0)  # zero rows give NaN
    feeds = make_inputs(original)
    feeds["x"][0, 3] = 0
    feeds["x"][0, 4, 5] = np.inf
    good = verify(original, fused(original), inputs=feeds)
    assert good.passed, good.summary()
    assert "comparisons agree, as does the one norm alone; worst error" in good.summary()
    repaired = with_attribute(fused(original), "epsilon", 1e-6)
    bad = verify(original, repaired, inputs=feeds)
    assert not bad.passed
    assert any("original has NaN" in c.reason for c in bad.checks)
    broken = verify(norm(epsilon=1e-6), with_attribute(fused(norm()), "epsilon", 0.0), inputs=feeds)
    assert any("NaN or infinity where the original has a number" in c.reason for c in broken.checks)


def test_integer_outputs_have_to_be_equal():
    def model(constant):
        graph = helper.make_graph(
            [helper.make_node("Add", ["x", "one"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.INT64, [3])],
            [helper.make_tensor_value_info("y", TensorProto.INT64, [3])],
            [numpy_helper.from_array(np.array(constant), "one")],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        made.ir_version = 9
        return made

    assert verify(model([1, 1, 1]), model([1, 1, 1])).passed
    result = verify(model([1, 1, 1]), model([1, 1, 2]))
    assert result.worst.reason == "differs at [2]"


def test_other_inputs_or_outputs_fail_at_once():
    original = norm()
    other = fused(original)
    other.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    result = verify(original, other)
    assert not result.passed
    said = "the models' outputs differ: 'y' (float) in the original, 'y' (double) in the other"
    assert result.summary() == said


def test_a_fused_model_that_does_not_load_fails_with_the_reason():
    original = norm()
    broken = fused(original)
    del broken.functions[:]
    result = verify(original, broken, library=False)
    assert not result.passed
    assert "does not load" in result.worst.reason


def test_an_original_that_runs_nowhere_is_the_environments_fault():
    original = norm()
    original.graph.node[0].domain = "nobody"
    original.opset_import.append(helper.make_opsetid("nobody", 1))
    with pytest.raises(MissingEnvironment, match="does not load the original") as caught:
        verify(original, original)
    assert caught.value.exit_code == 4


def test_wrong_shapes_point_to_the_options():
    model = onnx.load(SAMPLES[0])
    with pytest.raises(UsageError) as caught:
        verify(model, model, shapes={"x": (1, 9)})
    assert "does not fit" in caught.value.message


def test_the_users_tolerance_is_elementwise_against_the_original():
    original = norm()
    wrong = with_attribute(fused(original), "epsilon", 1e-3)
    inputs = {"x": np.ones((1, 8, 64), np.float32)}
    assert not verify(original, wrong, inputs=inputs).passed
    assert verify(original, wrong, shapes={"x": (1, 8, 64)}, rtol=1, atol=2).passed
    assert not verify(original, wrong, inputs=inputs, rtol=1e-7).passed


def test_models_with_external_weights_are_verified_by_path_and_in_memory(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(onnx.load(SAMPLES[0]), path, save_as_external_data=True, location="m.data", size_threshold=1024)
    result, _ = rmsnorm_deploy.fuse(path)
    assert verify(path, result).passed
    rmsnorm_deploy.save(result, tmp_path / "fused.onnx", source=path)
    assert verify(path, tmp_path / "fused.onnx").passed
    assert verify(ir.load(path), ir.load(tmp_path / "fused.onnx")).passed


def test_bfloat16_is_verified():
    original = norm()
    original.graph.input[0].type.tensor_type.elem_type = TensorProto.BFLOAT16
    original.graph.output[0].type.tensor_type.elem_type = TensorProto.BFLOAT16
    for node in original.graph.node:
        node.input[:] = ["x32" if i == "x" else i for i in node.input]
        node.output[:] = ["y32" if o == "y" else o for o in node.output]
    original.graph.node.insert(0, helper.make_node("Cast", ["x"], ["x32"], to=TensorProto.FLOAT))
    original.graph.node.append(helper.make_node("Cast", ["y32"], ["y"], to=TensorProto.BFLOAT16))
    result = verify(original, fused(original))
    assert result.passed, result.summary()
    assert not verify(original, with_attribute(fused(original), "epsilon", 0.5)).passed


def test_without_the_library_verification_says_so(monkeypatch):
    monkeypatch.setenv("RMSNORM_DEPLOY_LIBRARY", "/nowhere.so")
    original = norm()
    result = verify(original, fused(original))
    assert result.passed
    assert "not a file" in result.library
    assert result.kernel_nodes is None
    assert {c.run for c in result.checks} == {"plain", "plain, optimizer off"}


def test_the_same_seed_gives_the_same_result():
    original = norm("float16")
    a, b = (verify(original, fused(original), library=False).to_dict() for _ in range(2))
    assert a == b
    assert a["schema_version"] == 1
    assert verify(original, fused(original), seed=1, library=False).to_dict() != a


# -- inputs -----------------------------------------------------------------------------------------------------------


def inputs_model(*values):
    graph = helper.make_graph([], "g", [helper.make_tensor_value_info(*v) for v in values], [])
    return helper.make_model(graph)


def test_inputs_are_deterministic_small_and_valid():
    model = inputs_model(
        ("input_ids", TensorProto.INT64, ["batch", "seq_len"]),
        ("attention_mask", TensorProto.INT64, ["batch", "past_len + seq_len"]),
        ("position_ids", TensorProto.INT64, ["batch", "seq_len"]),
        ("hidden", TensorProto.BFLOAT16, ["batch", "seq_len", 64]),
        ("flag", TensorProto.BOOL, []),
    )
    a, b = make_inputs(model), make_inputs(model)
    assert all(np.array_equal(a[k], b[k]) for k in a)
    assert a["input_ids"].shape == a["position_ids"].shape == (1, 8)
    assert a["input_ids"].max() < 8
    assert a["attention_mask"].tolist() == [[1] * 8]
    assert a["position_ids"].tolist() == [list(range(8))]
    assert a["hidden"].dtype.name == "bfloat16"
    assert a["flag"].item() is True
    assert not np.array_equal(make_inputs(model, seed=1)["input_ids"], a["input_ids"])


def test_dimensions_that_are_arithmetic_follow_the_others():
    model = inputs_model(
        ("double", TensorProto.FLOAT, ["2*seq"]),
        ("x", TensorProto.FLOAT, ["seq", "seq-len", "a/b", "past_len.1"]),
        ("rest", TensorProto.FLOAT, ["seq - 2", "past_len.1 + 1"]),
    )
    assert {k: v.shape for k, v in make_inputs(model).items()} == {"double": (16,), "x": (8, 8, 4, 0), "rest": (6, 1)}
    given = make_inputs(model, {"x": (3, 5, 7, 2)})
    assert (given["double"].shape, given["rest"].shape) == ((6,), (1, 3))
    with pytest.raises(UsageError, match="'seq - 2' would be -1"):
        make_inputs(model, {"x": (1, 5, 7, 2)})
    for huge, size in (("100000000000*seq", 800000000000), ("*".join(["99999"] * 9) + "*seq", "too large")):
        with pytest.raises(UsageError, match=f"would be {size}"):
            make_inputs(inputs_model(("x", TensorProto.FLOAT, ["seq"]), ("y", TensorProto.FLOAT, [huge])))


def test_a_given_shape_holds_for_the_same_names_elsewhere():
    model = inputs_model(("a", TensorProto.FLOAT, ["n", 4]), ("b", TensorProto.FLOAT, ["n"]))
    feeds = make_inputs(model, {"a": (3, 4)})
    assert (feeds["a"].shape, feeds["b"].shape) == ((3, 4), (3,))
    for shape, words in (((3, 5), "does not fit"), ((3,), "does not fit")):
        with pytest.raises(UsageError, match=words):
            make_inputs(model, {"a": shape})
    with pytest.raises(UsageError, match="two sizes"):
        make_inputs(model, {"a": (3, 4), "b": (2,)})
    with pytest.raises(UsageError, match="no input 'c'"):
        make_inputs(model, {"c": (1,)})


def test_adversarial_rows_are_tiny_zero_and_huge():
    model = inputs_model(("x", TensorProto.FLOAT16, [2, 5, 4]), ("mask", TensorProto.FLOAT, [5, 5]))
    feeds = make_inputs(model)
    hard = adversarial_inputs(model, feeds)
    size = np.abs(hard["x"].astype(np.float64)).max(axis=-1)[0]
    assert size[2] == 0
    assert size[1] < 2**-7
    assert size[4] > 2**6
    assert np.array_equal(hard["mask"], np.ones((5, 5)))


@pytest.mark.parametrize("text", ["x", "x:", ":1", "x:a", "x:-1"])
def test_bad_shapes_are_usage_errors(text):
    if text == "x:":
        assert parse_shapes([text]) == {"x": ()}  # a scalar
        return
    with pytest.raises(UsageError):
        parse_shapes([text])


def test_shapes_are_read():
    assert parse_shapes(["x:1,8,64", "a:b:2"]) == {"x": (1, 8, 64), "a:b": (2,)}


def test_arrays_have_to_fit_the_inputs(tmp_path):
    model = inputs_model(("x", TensorProto.FLOAT16, [2]), ("n", TensorProto.INT64, [1]))
    good = {"x": np.ones(2, np.float32), "n": np.array([1])}
    assert fit_inputs(good, model)["x"].dtype == np.float16
    np.savez(tmp_path / "f.npz", **good)
    assert load_inputs(tmp_path / "f.npz", model).keys() == good.keys()
    with pytest.raises(UsageError, match="no array for input 'n'"):
        fit_inputs({"x": good["x"]}, model)
    with pytest.raises(UsageError, match="'z' that is not an input"):
        fit_inputs(good | {"z": good["x"]}, model)
    with pytest.raises(UsageError, match="takes int64"):
        fit_inputs(good | {"n": np.ones(1)}, model)
    (tmp_path / "g.npz").write_text("nothing")
    with pytest.raises(UsageError, match=r"not a readable \.npz"):
        load_inputs(tmp_path / "g.npz", model)


# -- norms alone, inputs kept, where a difference begins ---------------------------------------------------------------


def test_the_faulty_norm_is_named_where_the_outputs_agree():
    path = next(p for p in SAMPLES if p.stem == "llama_float16")
    spoilt = Norm(fused(path))
    spoilt.set("epsilon", 2 * spoilt.attributes["epsilon"])
    result = verify(path, spoilt.model, library=False)
    assert all(c.passed for c in result.checks)
    assert not result.passed
    assert result.first_fault.output == spoilt.y
    assert result.summary().startswith("norm m.model.layers.1.input_layernorm: fused ")
    assert "probably epsilon" in result.summary()
    assert [s["passed"] for s in result.to_dict()["sites"]].count(False) == 1
    with pytest.raises(VerificationFailed, match=r"layers\.1\.input_layernorm"):
        result.require()


def test_it_is_said_where_a_whole_model_begins_to_differ():
    path = next(p for p in SAMPLES if p.stem == "qwen3_float32")
    wrong = fused(path)
    weight = next(t for t in wrong.graph.initializer if t.name == "val_108")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(-3), weight.name))
    result = verify(path, wrong, library=False)
    assert not result.passed
    assert result.first_fault is None
    assert any("the first value that differs is" in n for n in result.notes), result.notes


def test_inputs_are_kept_and_give_the_same_result(tmp_path):
    path = next(p for p in SAMPLES if p.stem == "qwen3_float32")
    first = verify(path, fused(path), library=False, save_inputs=tmp_path / "new" / "inputs")
    files = sorted(p.name for p in (tmp_path / "new" / "inputs").iterdir())
    assert files == ["normal.npz", "other.npz"]
    again = load_inputs(tmp_path / "new" / "inputs" / "normal.npz", onnx.load(path))
    second = verify(path, fused(path), library=False, inputs=again)
    assert [c.error for c in second.checks if c.inputs == "given"] == [
        c.error for c in first.checks if c.inputs == "normal"
    ]
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        verify(path, fused(path), library=False, save_inputs=tmp_path / "file" / "inputs")


def test_bfloat16_is_verified_without_onnxruntimes_kernels():
    original = norm("bfloat16")
    result = verify(original, fused(original))
    assert result.passed, result.summary()
    assert len(result.sites) == 1
    assert any("onnx's reference evaluator ran it" in n for n in result.notes)
    assert not verify(original, with_attribute(fused(original), "epsilon", 1e-4)).passed
