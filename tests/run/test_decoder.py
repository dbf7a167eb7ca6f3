"""A decoder with a past gets inputs whose sizes agree, whatever its dimensions are called."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from rmsnorm_deploy.check.verify import verify
from rmsnorm_deploy.fusing.fuse import fuse
from rmsnorm_deploy.run.inputs import make_inputs
from rmsnorm_deploy.run.runnable import Runnable
from rmsnorm_deploy.run.runner import Runner


def decoder(dims, mask_rank=2, names=("input_ids", "attention_mask", "position_ids", "past_key_values.0.key")):
    """Tokens, their positions, one attention over a past that is concatenated, a mask over all of it, a norm."""
    ids, mask, positions, past = names
    b, s, m, p = dims
    shape = [b, m] if mask_rank == 2 else [b, 1, s, m]
    rng = np.random.default_rng(0)
    tensors = [
        numpy_helper.from_array(rng.standard_normal((16, 8)).astype(np.float32), "table"),
        numpy_helper.from_array(np.ones(8, np.float32), "norm.weight"),
        numpy_helper.from_array(np.array(1e-6, np.float32), "epsilon"),
        numpy_helper.from_array(np.array(2, np.float32), "two"),
        numpy_helper.from_array(np.array([1], np.int64), "one"),
        numpy_helper.from_array(np.array([1, 2], np.int64), "middle"),
    ]
    nodes = [
        helper.make_node("Gather", ["table", ids], ["embedded"]),
        helper.make_node("Gather", ["table", positions], ["placed"]),
        helper.make_node("Add", ["embedded", "placed"], ["x"]),
        helper.make_node("Pow", ["x", "two"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["mean"], axes=[-1]),
        helper.make_node("Add", ["mean", "epsilon"], ["sum"]),
        helper.make_node("Sqrt", ["sum"], ["rms"]),
        helper.make_node("Div", ["x", "rms"], ["n"]),
        helper.make_node("Mul", ["n", "norm.weight"], ["y"]),
        helper.make_node("Unsqueeze", ["y", "one"], ["key"]),
        helper.make_node("Concat", [past, "key"], ["present"], axis=2),
        helper.make_node("Transpose", ["present"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["key", "turned"], ["scores"]),
        helper.make_node("Cast", [mask], ["mask_float"], to=TensorProto.FLOAT),
        *([helper.make_node("Unsqueeze", ["mask_float", "middle"], ["wide"])] if mask_rank == 2 else []),
        helper.make_node("Add", ["scores", "wide" if mask_rank == 2 else "mask_float"], ["out"]),
    ]
    graph = helper.make_graph(
        nodes,
        "decoder",
        [
            helper.make_tensor_value_info(ids, TensorProto.INT64, [b, s]),
            helper.make_tensor_value_info(mask, TensorProto.INT64 if mask_rank == 2 else TensorProto.FLOAT, shape),
            helper.make_tensor_value_info(positions, TensorProto.INT64, [b, s]),
            helper.make_tensor_value_info(past, TensorProto.FLOAT, [b, 1, p, 8]),
        ],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return model


@pytest.mark.parametrize(
    "dims",
    [
        ("s72", "s70", "s12", "s53"),
        ("batch", "seq", "s12", "s53"),
        ("batch", "sequence_length", "total", "past_len"),
        (1, "s70", "s12", "s53"),
        ("batch", "seq", "past_len + seq", "past_len"),
        ("b", "total_s", "masked", "s"),
    ],
    ids=str,
)
@pytest.mark.parametrize("mask_rank", [2, 4])
def test_a_decoder_runs_on_what_is_made_up(dims, mask_rank):
    pytest.importorskip("onnxruntime")
    model = decoder(dims, mask_rank)
    feeds = make_inputs(model)
    past = feeds["past_key_values.0.key"].shape[2]
    new = feeds["input_ids"].shape[1]
    assert feeds["attention_mask"].shape[-1] == past + new
    assert feeds["position_ids"][0].tolist() == list(range(past, past + new))
    Runner(Runnable.of(model), optimise=False)(feeds)


def test_a_cache_is_known_by_what_it_is_concatenated_with():
    pytest.importorskip("onnxruntime")
    model = decoder(("s72", "s70", "s12", "s53"), names=("a", "the_mask", "position", "c"))
    result = verify(model, fuse(model)[0])
    assert result.passed, result.summary()
    assert result.shapes["c"][2] + result.shapes["a"][1] == result.shapes["the_mask"][1]


def test_given_shapes_lead():
    model = decoder(("s72", "s70", "s12", "s53"))
    feeds = make_inputs(model, {"attention_mask": (2, 11), "past_key_values.0.key": (2, 1, 8, 8)})
    assert {k: v.shape for k, v in feeds.items()} == {
        "input_ids": (2, 3),
        "attention_mask": (2, 11),
        "position_ids": (2, 3),
        "past_key_values.0.key": (2, 1, 8, 8),
    }


def test_a_model_without_a_past_is_left_as_it_is():
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [], "g", [value("x", TensorProto.FLOAT, ["n", 3, "h"]), value("ids", TensorProto.INT64, ["a", "b"])], []
    )
    feeds = make_inputs(helper.make_model(graph))
    assert (feeds["x"].shape, feeds["ids"].shape) == ((4, 3, 4), (4, 4))
