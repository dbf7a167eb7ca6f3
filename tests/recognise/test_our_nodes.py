"""Our own nodes read back: their parameters, their operands, and the reasons why some of them mean nothing."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from rmsnorm_deploy.op import DOMAIN, NormParameters, Op
from rmsnorm_deploy.recognise.engine import facts_of
from rmsnorm_deploy.recognise.match import Match, Miss
from rmsnorm_deploy.recognise.our_nodes import read_all
from rmsnorm_deploy.recognise.scopes import scopes

F, H, B, D = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE


def model_of(nodes, x_type=F, imports=1, scale_type=None, **weights):
    """A model without bodies whose nodes read x, r and scale; every output that nobody reads is one of the graph."""
    read = {i for n in nodes for i in n.input}
    outputs = [o for n in nodes for o in n.output if o and o not in read]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", x_type, ["b", 8]), info("r", x_type, ["b", 8]), info("scale", scale_type or x_type, [8])],
        [info(o, x_type, None) for o in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 18), *([helper.make_opsetid(DOMAIN, imports)] if imports else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def node_of(parameters, inputs, outputs, op_type=None, **more):
    attributes = {**parameters.to_attributes(), **more}
    return helper.make_node(op_type or parameters.op.value, inputs, outputs, domain=DOMAIN, name="n", **attributes)


def read(model):
    model = ir.from_proto(model)
    graphs = scopes(model)
    matches, misses = read_all(facts_of(model, graphs=graphs), graphs, model.opset_imports)
    return [*matches, *misses]


P = NormParameters(Op.RMS_NORM, F, (-1,), 1e-3)


def test_a_node_is_read_with_its_operands():
    (match,) = read(model_of([node_of(P, ["x", "scale"], ["y"])]))
    assert match.parameters == P
    assert (match.x.name, match.scale.name, match.output.name, match.size, match.rank) == ("x", "scale", "y", 8, 2)
    assert match.bias is match.residual is match.plain is None


def test_a_residual_norm_can_leave_its_addition_outside():
    p = NormParameters(Op.ADD_RMS_NORM, F, (-1,), 1e-3)
    (match,) = read(model_of([node_of(p, ["x", "r", "scale"], ["y", "sum"])]))
    assert (match.residual.name, match.sum.name, match.add_outside) == ("r", "sum", False)
    assert match.plain.parameters == P
    assert match.plain.add_outside


@pytest.mark.parametrize(("bias", "neutral"), [(-0.0, True), (0.0, False), (1.0, False)])
def test_a_bias_that_changes_nothing_is_none(bias, neutral):
    p = NormParameters(Op.GENERAL_RMS_NORM, F, (-1,), 1e-3, partial_size=4)
    (match,) = read(model_of([node_of(p, ["x", "scale", "bias"], ["y"])], bias=np.float32(bias)))
    assert match.parameters == p
    assert (match.bias is None) == neutral


def test_types_are_known_behind_our_nodes_where_the_bodies_are_lost():
    add = NormParameters(Op.ADD_RMS_NORM, H, (-1,), 1e-3)
    inner = helper.make_graph(
        [node_of(add, ["a", "sum", "scale"], ["c", "d"])], "g", [], [helper.make_empty_tensor_value_info("c")]
    )
    nodes = [
        node_of(add, ["x", "r", "scale"], ["a", "sum"]),
        helper.make_node("If", ["which"], ["y"], then_branch=inner, else_branch=inner),
    ]
    found = read(model_of(nodes, H, which=np.array(True)))
    assert [(m.rank, m.size, m.scale_dtype) for m in found] == [(2, 8, H)] * 3


@pytest.mark.parametrize("prefix", ["a_", "model1/", "Add"])
@pytest.mark.parametrize("op", list(Op))
def test_the_name_may_have_a_prefix(op, prefix):
    p = NormParameters(op, F)
    inputs = {"X": "x", "residual": "r", "gate": "r", "y_scale": "one", "y_zero_point": "zero"}
    outputs = list("yzabc")[: len(op.outputs)]
    node = node_of(p, [inputs.get(i, "scale") for i in op.inputs], outputs, prefix + op.value)
    (match,) = read(model_of([node], one=np.float32(0.5), zero=np.array(3, np.int8)))
    assert match.parameters == p


@pytest.mark.parametrize(
    ("written", "x_type", "meant"),
    [
        (NormParameters(Op.RMS_NORM, F), H, NormParameters(Op.RMS_NORM, H)),
        (NormParameters(Op.RMS_NORM, F), B, NormParameters(Op.RMS_NORM, B)),
        (NormParameters(Op.RMS_NORM, H, scale_type=H), F, NormParameters(Op.RMS_NORM, F)),
        (NormParameters(Op.RMS_NORM, H, scale_type=H), B, NormParameters(Op.RMS_NORM, B, scale_type=B)),
        (NormParameters(Op.RMS_NORM, H), F, NormParameters(Op.RMS_NORM, F)),
        (NormParameters(Op.RMS_NORM, F), D, NormParameters(Op.RMS_NORM, D, stash_type=D, scale_type=D)),
        (
            NormParameters(Op.GENERAL_RMS_NORM, D, stash_type=D, scale_type=D),
            H,
            NormParameters(Op.GENERAL_RMS_NORM, H, stash_type=D, scale_type=D),
        ),
    ],
    ids=str,
)
def test_parameters_follow_the_type_that_x_really_has(written, x_type, meant):
    inputs = ["x", "scale", "scale"][: len(written.op.inputs)]
    (match,) = read(model_of([node_of(written, inputs, ["y"])], x_type))
    assert match.parameters == meant


@pytest.mark.parametrize("imports", [None, 1, 1000])
def test_imports_that_say_nothing_do_not_matter(imports):
    (match,) = read(model_of([node_of(P, ["x", "scale"], ["y"])], imports=imports))
    assert isinstance(match, Match)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (node_of(P, ["x"], ["y"]), "no input scale"),
        (node_of(P, ["x", ""], ["y"]), "no input scale"),
        (node_of(P, ["x", "scale", "scale", "r"], ["y"]), "4 inputs"),
        (node_of(P, ["x", "scale"], ["y"], nonsense=1), "no attribute nonsense"),
        (node_of(P, ["x", "scale"], ["y"], axes=[-1, 2]), "axes"),
        (node_of(P, ["x", "scale"], ["y"], epsilon=-1.0), "epsilon"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_means_nothing_has_a_reason(node, reason):
    (miss,) = read(model_of([node]))
    assert isinstance(miss, Miss)
    assert reason in miss.reason
    assert miss.hint


def test_an_integer_x_and_a_version_that_is_unknown_are_refused():
    (miss,) = read(model_of([node_of(P, ["x", "scale"], ["y"])], TensorProto.INT64))
    assert "INT64" in miss.reason
    (miss,) = read(model_of([node_of(P, ["x", "scale"], ["y"])], imports=7))
    assert "version 7" in miss.reason


def test_other_nodes_are_not_ours():
    foreign = [helper.make_node("RMSNorm", ["x", "scale"], ["y"]), onnx.NodeProto(op_type="Neg", domain=DOMAIN)]
    assert read(model_of([*foreign[:1]])) == []
    foreign[1].input.append("x")
    foreign[1].output.append("z")
    assert read(model_of(foreign[1:])) == []
