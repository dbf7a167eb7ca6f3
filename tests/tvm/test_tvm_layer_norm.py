"""LayerNormalization in every form that ONNX has: TVM's own converter has some of them."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

from rmsnorm_deploy import tvm
from rmsnorm_deploy.errors import ModelError

STATIC, ROWS = (2, 5, 64), ("b", "n", 64)
TYPES = {
    "float32": (TensorProto.FLOAT, np.float32, 1e-5),
    "float16": (TensorProto.FLOAT16, np.float16, 4e-3),
    "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16, 3e-2),
    "float64": (TensorProto.DOUBLE, np.float64, 1e-9),
}


def model(dims, number, scale, bias, outputs, **attributes):
    """x, and a scale that is an input where it is a tuple of dimensions."""
    value = helper.make_tensor_value_info
    tensors = [
        helper.make_tensor(n, number, a.shape, a.tobytes(), raw=True)
        for n, a in (("s", scale), ("b", bias))
        if a is not None
    ]
    names = ["x", "s", *(["b"] if bias is not None else [])]
    stash = attributes.get("stash_type", TensorProto.FLOAT)
    graph = helper.make_graph(
        [helper.make_node("LayerNormalization", names, ["y", "m", "i"][:outputs], **attributes)],
        "g",
        [value("x", number, dims)],
        [value("y", number, dims), *(value(o, stash, ("p", "q", "r")) for o in ("m", "i")[: outputs - 1])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.parametrize(
    ("dtype", "dims", "scale", "bias", "axis", "outputs"),
    [
        ("float32", STATIC, (), None, -1, 1),
        ("float32", ROWS, (), (), -1, 1),
        ("float32", ROWS, (64,), (64,), -1, 1),
        ("float32", ROWS, (1, 1, 64), (64,), -1, 1),
        ("float32", STATIC, (5, 64), (1, 64), 1, 1),
        ("float32", ("b", 5, "h"), (1,), None, -1, 1),
        ("float32", ROWS, (64,), (64,), -1, 3),
        ("float16", STATIC, (1, 64), (), -1, 1),
        ("float16", ROWS, (), None, 1, 3),
        ("bfloat16", ROWS, (2, 1, 64), None, -1, 2),
        ("bfloat16", STATIC, (2, 5, 64), None, 0, 1),
        ("float64", ROWS, (64,), (5, 1), -2, 3),
    ],
)
def test_the_numbers_are_right(tmp_path, dtype, dims, scale, bias, axis, outputs):
    number, kind, bar = TYPES[dtype]
    rng = np.random.default_rng(0)
    x, s = rng.standard_normal((2, 5, 64)).astype(kind), rng.standard_normal(scale).astype(kind)
    b = None if bias is None else rng.standard_normal(bias).astype(kind)
    stash = TensorProto.DOUBLE if dtype == "float64" else TensorProto.FLOAT
    made = model(dims, number, s, b, outputs, axis=axis, epsilon=1e-5, stash_type=stash)
    tvm.compile(made, output=tmp_path / "c")
    got = tvm.load(tmp_path / "c")({"x": x})
    exact, axes = x.astype(float), tuple(range(axis % 3, 3))
    mean = exact.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(exact.var(axes, keepdims=True) + 1e-5)
    y = (exact - mean) * inverse * s.astype(float) + (0 if b is None else b.astype(float))
    for name, wanted in zip(("y", "m", "i")[:outputs], (y, mean, inverse), strict=False):
        assert got[name].shape == wanted.shape
        assert got[name].dtype == (kind if name == "y" else np.float64 if dtype == "float64" else np.float32)
        np.testing.assert_allclose(got[name].astype(float), wanted, rtol=bar, atol=bar)


@pytest.mark.parametrize(("scale", "axis"), [((3,), -1), ((1, 2, 5, 64), -1), ((64,), 3), ((64,), -4)])
def test_what_is_no_layer_norm_is_refused_by_name(tmp_path, scale, axis):
    made = model(STATIC, TensorProto.FLOAT, np.ones(scale, np.float32), None, 1, axis=axis)
    with pytest.raises(ModelError, match="LayerNormalization") as raised:
        tvm.compile(made, output=tmp_path / "c")
    assert "dynamic" not in raised.value.hint
    assert list(tmp_path.iterdir()) == []
