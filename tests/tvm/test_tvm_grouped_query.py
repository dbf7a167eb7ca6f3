"""GroupQueryAttention as onnxruntime computes it: prompts, later tokens, sequences of several lengths in a batch."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

import onnxruntime
import tvm
from tvm import relax

from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.tvm import import_onnx
from rmsnorm_deploy.tvm.passes import pipeline
from rmsnorm_deploy.tvm.targets.resolve import resolve

HEADS, GROUPS, SIZE = 6, 2, 32
CASES = {
    "plain": {},
    "packed, rotated": {"packed": True, "do_rotary": 1},
    "interleaved, capped, scaled": {"do_rotary": 1, "rotary_interleaved": 1, "softcap": 3.0, "scale": 0.3},
    "window, own positions": {"local_window_size": 3, "do_rotary": 1, "positions": True},
    "bias, part of a head rotated": {"bias": True, "do_rotary": 1, "half": 8},
    "float16": {"do_rotary": 1, "packed": True, "dtype": np.float16},
}
STEPS = [(2, 5, 0, 5, (5, 5)), (2, 5, 0, 5, (5, 3)), (3, 1, 5, 6, (6, 4, 2)), (1, 3, 5, 8, (8,)), (2, 1, 12, 6, (6, 3))]
"""Batch, new tokens, keys in the cache, keys of the longest sequence in the end, and of each; the last one is a buffer
longer than that."""


def model_of(packed=False, positions=False, bias=False, half=SIZE // 2, dtype=np.float32, more=(), **attributes):
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    width = (HEADS + 2 * GROUPS if packed else HEADS) * SIZE
    inputs = {"q": (kind, ("b", "s", width))}
    if not packed:
        inputs |= {name: (kind, ("b", "s", GROUPS * SIZE)) for name in "kv"}
    inputs |= {name: (kind, ("b", GROUPS, "p", SIZE)) for name in ("pk", "pv")}
    inputs["mask"] = (TensorProto.INT64, ("b", "t"))
    if positions:
        inputs["at"] = (TensorProto.INT64, ("b", "s"))
    if bias:
        inputs["bias"] = (kind, ("b", 1, "s", "t"))
    angles = np.outer(np.arange(40), 1 / np.arange(1, half + 1))
    constants = {"one": np.array([1]), "second": np.array(1), "cos": np.cos(angles), "sin": np.sin(angles)}
    constants |= {name: constants[name].astype(dtype) for name in ("cos", "sin")}
    names = ["q", *(["", ""] if packed else "kv"), "pk", "pv", "lengths", "total"]
    names += ["cos", "sin"] if attributes.get("do_rotary") else ["", ""]
    names += ["at" if positions else "", "bias" if bias else "", *more]
    nodes = [
        helper.make_node("ReduceSum", ["mask", "one"], ["sums"], keepdims=0),
        helper.make_node("Sub", ["sums", "one"], ["less"]),
        helper.make_node("Cast", ["less"], ["lengths"], to=TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "second"], ["longest"], axis=0),
        helper.make_node("Cast", ["longest"], ["total"], to=TensorProto.INT32),
        helper.make_node("GroupQueryAttention", names, ["y", "nk", "nv"], name="attention", domain="com.microsoft",
                         num_heads=HEADS, kv_num_heads=GROUPS, **attributes),
    ]  # fmt: skip
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info(name, *said) for name, said in inputs.items()],
        [info(name, kind, None) for name in ("y", "nk", "nv")],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("name", CASES)
def test_steps_are_onnxruntimes(name):
    model, dtype = model_of(**CASES[name]), CASES[name].get("dtype", np.float32)
    target = resolve("llvm")
    built = relax.build(pipeline.run(import_onnx(model), target), target=target, relax_pipeline=None)
    main = relax.VirtualMachine(built, tvm.cpu())["main"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for batch, new, past, total, lengths in STEPS:
        random = np.random.default_rng(new + past)
        sizes = {"b": batch, "s": new, "p": past, "t": total}
        feeds = {
            v.name: random.standard_normal(
                [sizes.get(d.dim_param, d.dim_value) for d in v.type.tensor_type.shape.dim]
            ).astype(dtype)
            for v in model.graph.input
        }
        feeds["mask"] = np.array([[1] * n + [0] * (total - n) for n in lengths])
        if "at" in feeds:
            feeds["at"] = np.array([[max(0, n - new) + i for i in range(new)] for n in lengths])
        if "bias" in feeds and past > total:
            continue  # it has to be as long as the buffer
        wanted = session.run(None, feeds)
        got = [r.numpy() for r in main(*map(tvm.runtime.tensor, feeds.values()))]
        for which, (g, w) in enumerate(zip(got, wanted, strict=True)):
            assert (g.shape, g.dtype) == (w.shape, w.dtype)
            for b, length in enumerate(lengths):  # what is behind a shorter sequence means nothing
                end = (slice(length if new == total else new),) if which == 0 else (slice(None), slice(length))
                bar = 4e-3 if dtype == np.float16 else 2e-6
                np.testing.assert_allclose(g[b][end].astype(float), w[b][end].astype(float), rtol=0, atol=bar)


@pytest.mark.parametrize(
    ("said", "given"),
    [
        ("head_sink", {"more": ["sink"]}),
        ("smooth_softmax", {"smooth_softmax": 1}),
        ("total_sequence_length is not known", {}),
    ],
)
def test_what_is_not_supported_is_named(said, given):
    model = model_of(**given)
    if given.get("more"):
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(HEADS, np.float32), "sink"))
    if not given:
        for node in list(model.graph.node)[3:6]:
            model.graph.node.remove(node)
        model.graph.input.append(helper.make_tensor_value_info("total", TensorProto.INT32, (1,)))
    with pytest.raises(ModelError, match=f"com.microsoft::GroupQueryAttention 'attention'.*{said}"):
        import_onnx(model)
