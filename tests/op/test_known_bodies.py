"""Which functions are bodies of ours: by what they compute, whatever they are called."""

from pathlib import Path

import onnx
import pytest
from onnx import helper

from rmsnorm_deploy.op import DOMAIN, Op, function_body
from rmsnorm_deploy.op.known_bodies import is_body_of, spelling_of

FILES = sorted(Path(__file__).parents[1].glob("data/*/*.onnx"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_bodies_of_every_release_are_ours(path):
    model = onnx.load(path)
    opset = next(o.version for o in model.opset_import if not o.domain)
    assert model.functions
    for function in model.functions:
        assert is_body_of(function, Op(function.name), opset, 1)


@pytest.mark.parametrize("opset", range(11, 25))
@pytest.mark.parametrize("op", list(Op))
def test_what_is_written_now_is_ours_at_its_opset(op, opset):
    body = function_body(op, opset)
    assert is_body_of(body, op, opset, 1)
    assert not is_body_of(body, op, opset + 1, 1)  # its import is another one
    assert not any(is_body_of(body, other, opset, 1) for other in Op if other is not op)


def test_a_body_at_an_opset_for_which_it_is_not_spelled_is_none_of_that_opset():
    body = function_body(Op.RMS_NORM, 17)
    body.opset_import[0].version = 18
    assert spelling_of(body).op is Op.RMS_NORM
    assert not is_body_of(body, Op.RMS_NORM, 18, 1)


def test_names_and_texts_do_not_matter():
    body = function_body(Op.ADD_RMS_NORM, 18)
    names = {o: f"{o}_renamed" for n in body.node for o in n.output} | {i: f"{i}_too" for i in body.input}
    for node in body.node:
        node.name, node.doc_string = "", "other"
        node.input[:] = [names[i] for i in node.input]
        node.output[:] = [names[o] for o in node.output]
    body.input[:] = [names[i] for i in body.input]
    body.output[:] = [names[o] for o in body.output]
    body.name, body.doc_string = "a_AddRMSNorm", ""
    assert is_body_of(body, Op.ADD_RMS_NORM, 18, 1)


def test_what_passes_over_a_model_do_to_functions_does_not_matter():
    body = function_body(Op.GENERAL_RMS_NORM, 18)
    first, second = [n for n in body.node if n.op_type == "Constant" and n.attribute[0].ref_attr_name == "axes"]
    for node in body.node:  # the same constant is kept once
        node.input[:] = [first.output[0] if i == second.output[0] else i for i in node.input]
    body.node.remove(second)
    nodes = list(body.node)
    constants = [n for n in nodes if n.op_type == "Constant"]  # and all of them go to the front
    del body.node[:]
    body.node.extend([*constants, *(n for n in nodes if n.op_type != "Constant")])
    body.node.insert(0, helper.make_node("Identity", ["X"], ["again"]))
    for node in body.node[1:]:
        node.input[:] = ["again" if i == "X" else i for i in node.input]
    body.node.append(helper.make_node("Neg", ["X"], ["dead"]))
    assert is_body_of(body, Op.GENERAL_RMS_NORM, 18, 1)


def _swap_inputs(body):
    body.input[:] = list(body.input)[::-1]


def _other_constant(body):
    constant = next(n for n in body.node if n.op_type == "Constant" and n.attribute[0].HasField("t"))
    constant.attribute[0].t.CopyFrom(helper.make_tensor("three", 1, [], [3.0]))


def _other_operator(body):
    next(n for n in body.node if n.op_type == "Div").op_type = "Mul"


def _other_reference(body):
    node = next(n for n in body.node if n.attribute and n.attribute[0].ref_attr_name == "scale_type")
    node.attribute[0].ref_attr_name = "stash_type"


def _no_reference(body):
    node = next(n for n in body.node if n.attribute and n.attribute[0].ref_attr_name == "stash_type")
    node.attribute[0].CopyFrom(helper.make_attribute("to", 1))


def _other_output(body):
    body.output[0] = body.node[0].output[0]


@pytest.mark.parametrize(
    "change",
    [_swap_inputs, _other_constant, _other_operator, _other_reference, _no_reference, _other_output],
    ids=lambda f: f.__name__,
)
def test_whatever_changes_the_meaning_makes_it_foreign(change):
    body = function_body(Op.RMS_NORM, 18)
    change(body)
    assert spelling_of(body) is None


def test_a_function_of_our_name_and_attributes_is_not_ours_by_that():
    attributes = list(function_body(Op.RMS_NORM, 17).attribute)
    neg = [helper.make_node("Neg", ["X"], ["Y"])]
    foreign = helper.make_function(
        DOMAIN, "RMSNorm", ["X", "scale"], ["Y"], neg, [helper.make_opsetid("", 17)], attributes
    )
    assert spelling_of(foreign) is None
