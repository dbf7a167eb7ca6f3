"""Equations of Einsum: onnx's shape inference does not end on many that are malformed."""

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import rmsnorm_deploy
from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.model.equations import malformed_equation
from tests.support.spellings.norms import Spelling, build


def einsum(equation):
    node = helper.make_node("Einsum", ["x", "x"], ["y"], name="product")
    node.attribute.add(name="equation", type=onnx.AttributeProto.STRING, s=equation)
    return node


@pytest.mark.parametrize(
    "equation", [b"", b",", b"->", b"i,i->i", b"b s h, b s h -> b s", b"...i,...i->...", b"I...a,->aI"]
)
def test_equations(equation):
    assert malformed_equation([einsum(equation)]) is None


@pytest.mark.parametrize(
    "equation",
    [b"i,i-...", b"...i,...i-\xb2...", b"\xb2,i->i", b"i.j,i", b"..i", b"....i", b"...i...,i", b"i>j", b"i->j->k"],
)
def test_what_is_none(equation):
    assert malformed_equation([einsum(equation)]) is not None


def test_a_model_with_one_is_refused(tmp_path):
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([einsum(b"...i,...i-...")], "g", [value], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    for given in (path, model):
        with pytest.raises(
            ModelError, match=r"the equation b'\.\.\.i,\.\.\.i-\.\.\.' of Einsum 'product' is malformed"
        ):
            rmsnorm_deploy.fuse(given)


def test_beside_a_norm_in_memory_it_keeps_nobody_waiting():
    model = build(Spelling(shape=(2, 3, 8))).model
    model.graph.node.append(einsum(b"...i,...i-..."))
    model.graph.node[-1].output[0] = "z"
    del model.graph.value_info[:]
    _, report = rmsnorm_deploy.fuse(ir.from_proto(model))
    assert [m.site.node for m in report.missed] == ["product"]
