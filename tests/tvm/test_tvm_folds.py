"""What is calculated from weights: by the compiler, unless a folder would only get larger by that."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

from rmsnorm_deploy import tvm

node, F32, F16, I64 = helper.make_node, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
W = np.random.default_rng(0).standard_normal((96, 64)).astype(np.float32)
TABLE = W.nbytes
CASES = {
    # a table that is read by token and, transposed, multiplied: tied embeddings
    "tied": (
        [
            node("Gather", ["w", "ids"], ["x"]),
            node("Transpose", ["w"], ["t"], perm=[1, 0]),
            node("MatMul", ["x", "t"], ["y"]),
        ],
        {"w": W},
        TABLE,
    ),
    "wider": (
        [
            node("Cast", ["h"], ["w"], to=F32),
            node("Gather", ["w", "ids"], ["y"]),
        ],
        {"h": W.astype(np.float16)},
        TABLE // 2,
    ),
    "wider twice": (
        [
            node("Transpose", ["h"], ["t"], perm=[1, 0]),
            node("Cast", ["t"], ["w"], to=F32),
            node("Gather", ["w", "ids"], ["y"]),
        ],
        {"h": W[:, :32].T.astype(np.float16)},
        TABLE // 4,
    ),
    "narrower": (
        [
            node("Cast", ["w"], ["h"], to=F16),
            node("Gather", ["h", "ids"], ["g"]),
            node("Cast", ["g"], ["y"], to=F32),
        ],
        {"w": W},
        TABLE // 2,
    ),
    "joined": (
        [
            node("Concat", ["a", "b"], ["w"], axis=0),
            node("Neg", ["w"], ["n"]),
            node("Gather", ["n", "ids"], ["y"]),
        ],
        {"a": W[:40], "b": W[40:]},
        TABLE,
    ),
    "joined and read": (
        [
            node("Concat", ["a", "b"], ["w"], axis=0),
            node("Gather", ["w", "ids"], ["g"]),
            node("Gather", ["a", "ids"], ["h"]),
            node("Add", ["g", "h"], ["y"]),
        ],
        {"a": W[:48], "b": W[48:]},
        TABLE,
    ),
    "a view": (
        [
            node("Reshape", ["w", "shape"], ["v"]),
            node("Gather", ["v", "ids"], ["g"]),
            node("Gather", ["w", "ids"], ["h"]),
            node("Concat", ["g", "h"], ["y"], axis=1),
        ],
        {"w": W.reshape(48, 128), "shape": np.array([96, 64])},
        TABLE,
    ),
    "repeated": (
        [
            node("Expand", ["row", "shape"], ["w"]),
            node("Gather", ["w", "ids"], ["y"]),
        ],
        {"row": np.tile(W[:1], (1, 32)), "shape": np.array([96, 2048])},
        2048 * 4,
    ),
}


@pytest.mark.parametrize("blas", ["openblas", "none"])
@pytest.mark.parametrize("name", CASES)
def test_a_folder_is_no_larger_than_the_weights(name, blas, tmp_path):
    nodes, weights, bytes_kept = CASES[name]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", I64, ["n"])],
        [helper.make_tensor_value_info("y", F32, None)],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    tvm.compile(proto, output=tmp_path / "c", blas=blas)
    feeds = {"ids": np.array([3, 0, 31])}
    (wanted,) = ReferenceEvaluator(proto).run(None, feeds)
    np.testing.assert_allclose(tvm.load(tmp_path / "c")(feeds)["y"], wanted, rtol=0, atol=1e-4)
    kept = (tmp_path / "c" / "model.params").stat().st_size
    assert bytes_kept <= kept <= bytes_kept + 6 * 64
