"""The copy of a model in float64: nothing in it stays narrower."""

import pytest
from onnx import TensorProto, helper

from rmsnorm_deploy.check.exact import Truth, in_float64
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
