"""What is neither a norm nor a product on a CPU: chains, moves, masks and rotations, against onnxruntime or NumPy."""

import math

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

import onnxruntime
import tvm
from tvm import tirx

from rmsnorm_deploy.tvm import import_onnx
from rmsnorm_deploy.tvm.passes import pipeline
from rmsnorm_deploy.tvm.schedules.rest import elementwise, functions, legal
from rmsnorm_deploy.tvm.targets.resolve import resolve

KINDS = {
    np.dtype(k): getattr(TensorProto, v) for k, v in (("float32", "FLOAT"), ("float16", "FLOAT16"), ("int64", "INT64"))
}
INT = np.int64


def node(op, read, made="y", **attributes):
    return helper.make_node(op, read.split(), made.split(), **attributes)


def model_of(nodes, inputs, weights, kind, opset=20):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info(name, KINDS[np.dtype(INT if name == "i" else kind)], shape) for name, shape in inputs.items()],
        [info("y", KINDS[np.dtype(kind)], None)],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def built(model):
    """The model's function, and the kernels that have no schedule."""
    target = resolve("llvm")
    with target, tvm.transform.PassContext(opt_level=3):
        module = import_onnx(model)
        for name, step in pipeline.passes(target):
            module = step(module)
            if name == "schedule_elementwise":
                kernels = {v.name_hint: f for v, f in module.functions_items() if isinstance(f, tirx.PrimFunc)}
                left = [name for name, f in kernels.items() if "tirx.is_scheduled" not in f.attrs]
                # with names inside the values of names TVM's own passes take minutes
                assert not any(elementwise._has(f.body, tirx.Let) for name, f in kernels.items() if name not in left)
        machine = tvm.relax.VirtualMachine(
            tvm.relax.build(module, target=target, relax_pipeline=None, exec_mode="compiled"), tvm.cpu()
        )
    return lambda *values: machine["main"](*map(tvm.runtime.tensor, values)).numpy(), left


def random(shape, kind="float32", seed=3):
    return np.asarray(2 * np.random.default_rng(seed).standard_normal(shape), kind)


ROTATED = [
    node("Slice", "x zero half last", "a"),
    node("Slice", "x half whole last", "b"),
    node("Neg", "b", "c"),
    node("Concat", "c a", "r", axis=-1),
    node("Mul", "x v", "p"),
    node("Mul", "r w", "q"),
    node("Add", "p q"),
]
BOUNDS = {"zero": np.array([0]), "half": np.array([17]), "whole": np.array([34]), "last": np.array([-1])}
CASES = {
    "bias, activation, residual": (
        [node("Add", "x w", "a"), node("Sigmoid", "a", "s"), node("Mul", "a s", "b"), node("Add", "b x")],
        {"x": ("n", 37)},
        {"w": random(37)},
    ),
    "columns and scalars": (
        [node("Mul", "x w", "a"), node("Sub", "a v")],
        {"x": ("n", 37)},
        {"w": random((1, 1)), "v": np.float32(0.3)},
    ),
    "gelu, spelled out": (
        [
            node("Div", "x two", "a"),
            node("Erf", "a", "e"),
            node("Add", "e one", "f"),
            node("Mul", "x f", "g"),
            node("Mul", "g half"),
        ],
        {"x": ("n", 5, 33)},
        {"two": np.float32(math.sqrt(2)), "one": np.float32(1), "half": np.float32(0.5)},
    ),
    "gelu with tanh, spelled out": (
        [
            node("Pow", "x three", "c"),
            node("Mul", "c k", "d"),
            node("Add", "x d", "e"),
            node("Tanh", "e", "t"),
            node("Mul", "t x"),
        ],
        {"x": ("n", 33)},
        {"three": np.float32(3), "k": np.float32(0.044715)},
    ),
    "a gate for many rows": (
        [node("Sigmoid", "w", "s"), node("Exp", "z", "e"), node("Mul", "s x", "a"), node("Mul", "a e")],
        {"x": ("n", 21, 33), "z": (1, 1, 33)},
        {"w": random((1, 21, 1))},
    ),
    "one value used in two places": (
        [node("Tanh", "x", "t"), node("Transpose", "t", "u", perm=[1, 0]), node("Add", "t u")],
        {"x": (67, 67)},
        {},
    ),
    "the last axis moves": ([node("Transpose", "x", perm=[0, 2, 1])], {"x": ("n", 35, 19)}, {}),
    "axes before the last move": ([node("Transpose", "x", perm=[0, 2, 1, 3])], {"x": (1, "n", 3, 18)}, {}),
    "joined": (
        [
            node("Concat", "x w", axis=1),
        ],
        {"x": ("n", 37)},
        {"w": random((1, 5))},
    ),
    "parts joined along rows": ([node("Exp", "x", "e"), node("Concat", "x e", axis=1)], {"x": ("n", 7, 33)}, {}),
    "taken": ([node("Gather", "w i", axis=0)], {"i": ("n",)}, {"w": random((11, 35))}),
    "masked": (
        [node("Less", "x w", "m"), node("Where", "m x v")],
        {"x": ("n", 37)},
        {"w": random(37), "v": np.float32(-np.inf)},
    ),
    "rotated": (ROTATED, {"x": (1, 3, "n", 34)}, {**BOUNDS, "v": random((1, 1, 1, 34)), "w": random((1, 1, 1, 34))}),
    "polynomials of polynomials, and a choice": (
        [
            node("Gelu", "x", "a"),
            node("Erf", "a", "b"),
            node("Sigmoid", "b", "c"),
            node("Trilu", "c", "d"),
            node("Gelu", "d"),
        ],
        {"x": ("n", 5, 33)},
        {},
    ),
    "narrow": ([node("Mul", "x x", "a"), node("Exp", "a")], {"x": ("n", 3)}, {}),
    "one row": ([node("Exp", "x")], {"x": (1, 98304)}, {}),
    "no axes": ([node("Exp", "x")], {"x": ()}, {}),
}
CASES["joined"] = (
    [node("Exp", "x", "e"), node("Slice", "e zero half last", "a"), node("Concat", "a x e", axis=1)],
    {"x": ("n", 37)},
    BOUNDS,
)


def sized(shape, n):
    return tuple(n if size == "n" else size for size in shape)


@pytest.mark.parametrize("name", CASES)
def test_results_are_onnxruntimes(name):
    nodes, inputs, weights = CASES[name]
    model = model_of(nodes, inputs, weights, "float32")
    function, left = built(model)
    assert not left or name == "no axes"
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    dynamic = any("n" in shape for shape in inputs.values())
    for n in (1, 2, 5, 2100) if dynamic else (1,):
        feeds = {
            k: np.random.default_rng(n).integers(-11, 11, sized(s, n))
            if k == "i"
            else np.asarray(random(sized(s, n)) / 2, np.float32)
            for k, s in inputs.items()
        }
        wanted = session.run(None, feeds)[0]
        np.testing.assert_allclose(function(*feeds.values()), wanted, rtol=1e-5, atol=1e-6)  # its sigmoid has 5e-6


def test_threads_change_nothing():
    function, _ = built(
        model_of(CASES["bias, activation, residual"][0], {"x": ("n", 37)}, {"w": random(37)}, "float32")
    )
    x = random((4099, 37))
    assert x.size > 2 * elementwise.PARALLEL_FROM
    np.testing.assert_array_equal(
        function(x), np.concatenate([function(part) for part in np.split(x, range(7, 4099, 997))])
    )


def test_an_argument_may_begin_anywhere():
    function, _ = built(model_of([node("Exp", "x")], {"x": ("n", 37)}, {}, "float32"))
    x = random(37 * 5 + 1)[1:].reshape(5, 37)
    np.testing.assert_allclose(function(x), np.exp(x), rtol=1e-6)


@pytest.mark.parametrize("op", ["Sigmoid", "Tanh", "Exp", "Erf", "Gelu"])
def test_sixteen_bits_are_computed_in_float32(op):
    function, left = built(model_of([node(op, "x")], {"x": ("n",)}, {}, "float16"))
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = x[np.isfinite(x)]
    exact = {
        "Sigmoid": lambda v: 1 / (1 + np.exp(-v)),
        "Tanh": np.tanh,
        "Exp": np.exp,
        "Erf": np.vectorize(math.erf),
        "Gelu": np.vectorize(lambda v: 0.5 * v * math.erfc(-v / math.sqrt(2))),
    }[op]
    with np.errstate(all="ignore"):
        wanted = exact(x.astype(float)).astype(np.float16)
    assert not left
    found = function(x)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(found[~finite], wanted[~finite])
    unit = np.maximum(np.abs(wanted[finite].astype(float)), 1e-3) * 2.0**-10
    assert np.max(np.abs(found[finite].astype(float) - wanted[finite]) / unit) <= 1


def test_products_of_many_are_left_to_others():
    _, left = built(model_of([node("ReduceProd", "x", keepdims=1)], {"x": (5, 37)}, {}, "float32"))
    assert len(left) == 1


def test_a_wrong_function_is_seen(monkeypatch):
    monkeypatch.setattr(functions, "sigmoid", lambda x: functions.tanh(x))
    assert legal.functions is functions
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        test_results_are_onnxruntimes("bias, activation, residual")


@pytest.mark.parametrize("name", ["the last axis moves", "rotated"])
def test_a_wrong_order_of_loops_is_seen(name, monkeypatch):
    """A loop too short by one value."""
    monkeypatch.setattr(
        elementwise,
        "_with_kind",
        lambda loop, kind: tirx.For(loop.loop_var, loop.min, loop.extent - 1, kind, loop.body, None, loop.annotations),
    )
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        test_results_are_onnxruntimes(name)
