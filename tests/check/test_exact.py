"""The copy of a model in float64: nothing in it stays narrower."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from rmsnorm_deploy.check.exact import Truth, by_definition, in_float64
from rmsnorm_deploy.op import DOMAIN, NormParameters, Op, versions
from rmsnorm_deploy.op.versions import Version
from rmsnorm_deploy.run.runnable import Runnable

F16, DOUBLE = TensorProto.FLOAT16, TensorProto.DOUBLE


def model(operator, version, **attributes):
    """A model of one node of ours, in float16."""
    node = helper.make_node(operator.value, operator.inputs, operator.outputs, domain=DOMAIN, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, F16, [8]) for name in operator.inputs],
        [helper.make_tensor_value_info(name, F16, [8]) for name in operator.outputs],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("operator", [op for op in Op if not op.quantises])
@pytest.mark.parametrize("said", [{}, {"stash_type": 1}, {"scale_type": F16}, {"output_type": F16}])
def test_types_of_our_nodes_are_float64_whether_said_or_left_out(operator, said):
    wide = in_float64(model(operator, 1, **said))
    p = NormParameters.from_node(wide.graph.node[0], version=1, x_type=DOUBLE)
    assert (p.stash_type, p.scale_type, p.output_type) == (DOUBLE, DOUBLE, DOUBLE)


def test_a_default_is_that_of_the_version_that_the_model_imports(monkeypatch):
    monkeypatch.setattr(versions, "VERSIONS", (Version(1), Version(2, {"stash_type": DOUBLE})))
    written = {
        version: [a.name for a in in_float64(model(Op.RMS_NORM, version)).graph.node[0].attribute] for version in (1, 2)
    }
    assert written == {1: ["stash_type", "scale_type"], 2: ["scale_type"]}


def test_a_version_that_is_unknown_has_no_truth():
    truth = Truth(Runnable.in_memory(model(Op.RMS_NORM, 9)))
    assert truth.how == ""
    assert "version 9 of the domain rmsnorm_deploy is unknown" in truth.why_not


@pytest.mark.parametrize("scale_type", [F16, TensorProto.FLOAT])
def test_onnxs_norm_is_evaluated_in_the_type_that_it_states(scale_type):
    info = helper.make_tensor_value_info
    node = helper.make_node("RMSNormalization", ["x", "w"], ["y"], axis=1, epsilon=0.0)
    graph = helper.make_graph([node], "g", [info("x", F16, [2, 2, 4]), info("w", scale_type, [2, 4])], [])
    graph.output.append(info("y", scale_type, [2, 2, 4]))
    made = Runnable(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]), None, None, 0)
    scale = np.linspace(0.5, 2, 8).reshape(2, 4).astype(helper.tensor_dtype_to_np_dtype(scale_type))
    # the squares of the first half do not fit into float16, those of the second are subnormal in it
    x = np.stack([np.full((2, 4), 1000), np.full((2, 4), 2.0**-12)]).astype(np.float16)
    (got,) = by_definition(made, {"x": x, "w": scale})
    assert got.dtype == scale.dtype
    assert np.array_equal(got, np.stack([scale, scale]))


def test_onnxs_layer_norm_is_evaluated_in_the_type_that_it_states():
    info = helper.make_tensor_value_info
    node = helper.make_node("LayerNormalization", ["x", "w", "b"], ["y", "mean", "inverse"], axis=-1, epsilon=0.0)
    graph = helper.make_graph([node], "g", [info("x", F16, [1, 4]), info("w", F16, [4]), info("b", F16, [4])], [])
    graph.output.append(info("y", F16, [1, 4]))
    graph.output.extend(info(name, TensorProto.FLOAT, [1, 1]) for name in ("mean", "inverse"))
    made = Runnable(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), None, None, 0)
    # in float16 the sum is infinite, and of 20000.25 nothing but 20000 is left
    x = np.array([[20000, 20016, 20000, 19985]], np.float16)
    w, b = np.array([1, 2, 3, 1 / 3], np.float16), np.array([0, 1, 2, 3], np.float16)
    y, mean, inverse = by_definition(made, {"x": x, "w": w, "b": b})
    wide = x.astype(np.float64)
    normalised = ((wide - wide.mean()) / wide.std()).astype(np.float16)
    np.testing.assert_array_equal(y, normalised * w + b)  # NumPy rounds each step to float16, as the definition does
    assert (y.dtype, mean.dtype) == (np.float16, np.float32)
    np.testing.assert_allclose([mean.item(), inverse.item()], [wide.mean(), 1 / wide.std()], rtol=1e-6)
