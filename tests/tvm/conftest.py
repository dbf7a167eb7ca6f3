import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.tvm.cublas import Fake


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """A model with a norm, and something else."""
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"]),
        helper.make_node("RMSNormalization", ["t", "w"], ["n"], epsilon=1e-6),
        helper.make_node("MatMul", ["n", "v"], ["y"]),
    ]
    shapes = {"x": ("rows", 48), "w": (48,), "v": (48, 20)}
    inputs = [info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph(nodes, "g", inputs, [info("y", TensorProto.FLOAT, ("rows", 20))])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11), path)
    return path


@pytest.fixture(scope="session")
def fake(tmp_path_factory):
    """A stand-in for cuBLAS."""
    return Fake(tmp_path_factory.mktemp("cublas"))
