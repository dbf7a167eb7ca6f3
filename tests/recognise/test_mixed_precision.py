"""Norms of which a tool put some steps into 16 bits and left others in float32: no more roundings than before."""

import itertools
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.transformers.float16 import convert_float_to_float16

import rmsnorm_deploy
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.rounding import kept_rounding
from tests.support.graphs import nodes_of
from tests.support.run import run
from tests.support.spellings.graph import NUMPY, B, F, Graph, H

SIZE = 64
SHAPE = ["n", SIZE]
SCALE = np.linspace(0.5, 2, SIZE)


def x_of(dtype):
    x = np.random.default_rng(0).standard_normal((4, SIZE)) * np.array([3, 1, 2.0**-7, 0])[:, None]
    return x.astype(NUMPY[dtype])


def truth_of(x, scale=SCALE):
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-3) * scale


def judged(fused, x, truth):
    for hook in (None, rmsnorm_deploy.register):
        for optimise in (False, True):
            got = run(fused, {"x": x}, optimise, hook)[0].astype(np.float64)
            np.testing.assert_allclose(got, truth, rtol=2e-2, atol=4e-3)


ENDS = {
    "div": lambda g, x, a: x / g.op("Sqrt", a),
    "reciprocal": lambda g, x, a: x * g.op("Reciprocal", g.op("Sqrt", a)),
    "pow": lambda g, x, a: a**-0.5 * x,
    "clipped": lambda g, x, a: x / g.op("Max", g.op("Sqrt", a), g.constant(1e-2)),
}


@pytest.mark.parametrize("end", ENDS)
def test_any_steps_may_be_left_in_float32(end):
    g = Graph(17)
    x = g.input("x", F, SHAPE)
    mean = g.reduce("ReduceMean", x * x, (-1,))
    g.output(ENDS[end](g, x, mean + 1e-3) * g.weight(SCALE, F), "y", SHAPE)
    model, names = g.model(), [n.name for n in g.nodes]
    before = onnx.shape_inference.infer_shapes(model)
    truth, rounding = truth_of(x_of(H)), set()
    sets = [s for k in range(len(names)) for s in itertools.combinations(names, k)]
    for i, left in enumerate(sets):
        copy = onnx.ModelProto.FromString(before.SerializeToString())
        options = {"keep_io_types": i % 2 == 0, "disable_shape_infer": True}  # else it leaves files behind
        narrow = convert_float_to_float16(copy, op_block_list=[], node_block_list=list(left), **options)
        fused, report = rmsnorm_deploy.fuse(narrow)
        assert len(report.fused) == 1, (left, report.missed)
        rounding.add(report.fused[0].rounding)
        if i % 9 == 0:
            judged(
                fused, x_of(F).astype(NUMPY[H]).astype(NUMPY[fused.graph.input[0].type.tensor_type.elem_type]), truth
            )
    assert rounding == {"fewer"}


def rounded(g, value, dtype):
    return g.cast(value, dtype)


# how x, its root and the scale meet: (graph, x in 16 bits, x in float32, its mean square, scale in 16 bits) -> y
COARSE = {
    "root": lambda g, x, f, m, w: x / rounded(g, g.op("Sqrt", m + 1e-3), x.dtype) * w,
    "root, no scale": lambda g, x, f, m, w: x / rounded(g, g.op("Sqrt", m + 1e-3), x.dtype),
    "root, then inverse": lambda g, x, f, m, w: x * (1.0 / rounded(g, g.op("Sqrt", m + 1e-3), x.dtype)) * w,
    "root, then reciprocal": lambda g, x, f, m, w: (
        w * (x * g.op("Reciprocal", rounded(g, g.op("Sqrt", m + 1e-3), x.dtype)))
    ),
    "inverse mean": lambda g, x, f, m, w: x * g.op("Sqrt", rounded(g, 1.0 / (m + 1e-3), x.dtype)) * w,
    "inverse, widened, no scale": lambda g, x, f, m, w: g.cast(
        f * g.cast(rounded(g, 1.0 / g.op("Sqrt", m + 1e-3), x.dtype), F), x.dtype
    ),
    "inverse, widened": lambda g, x, f, m, w: g.cast(
        f * g.cast(rounded(g, 1.0 / g.op("Sqrt", m + 1e-3), x.dtype), F) * g.cast(w, F), x.dtype
    ),
    "mean": lambda g, x, f, m, w: x / g.op("Sqrt", rounded(g, m, x.dtype) + 1e-3) * w,
    "x times scale": lambda g, x, f, m, w: g.cast(g.cast(x * w, F) / g.op("Sqrt", m + 1e-3), x.dtype),
    "x times scale, rounded root": lambda g, x, f, m, w: (x * w) / rounded(g, g.op("Sqrt", m + 1e-3), x.dtype),
    "scale times inverse": lambda g, x, f, m, w: x * (w * (1.0 / rounded(g, g.op("Sqrt", m + 1e-3), x.dtype))),
}


@pytest.mark.parametrize("dtype", [H, B], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("how", COARSE)
def test_what_was_rounded_before_the_product_is_rounded_less_often(how, dtype):
    g = Graph(17)
    x = g.input("x", dtype, SHAPE)
    f = g.cast(x, F)
    y = COARSE[how](g, x, f, g.reduce("ReduceMean", f * f, (-1,)), g.weight(SCALE, dtype))
    g.output(g.cast(y, F), "y", SHAPE)
    fused, report = rmsnorm_deploy.fuse(g.model())
    assert [(f.rounding, f.type) for f in report.fused] == [("fewer", {H: "FLOAT16", B: "BFLOAT16"}[dtype])]
    assert nodes_of(fused, "") == ["Cast"]
    scale = 1.0 if how.endswith("no scale") else SCALE.astype(NUMPY[dtype]).astype(np.float64)
    judged(fused, x_of(dtype), truth_of(x_of(dtype), scale))


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dtype", [H, B], ids=["float16", "bfloat16"])
def test_an_inverse_that_is_rounded_on_purpose_stays(dtype, scaled):
    g = Graph(17)
    x = g.input("x", dtype, SHAPE)
    f = g.cast(x, F)
    y = x * g.cast(1.0 / g.op("Sqrt", g.reduce("ReduceMean", f * f, (-1,)) + 1e-3), dtype)
    g.output(y * g.weight(SCALE, dtype) if scaled else y, "y", SHAPE)
    report = rmsnorm_deploy.explain(g.model())
    assert not report.fused
    assert "rounds the inverse" in report.near_misses[0].reason


F32, F16, BF16 = (ir.DataType(t) for t in (F, H, B))
# types and marks from x / rms on, type of scale and bias: what the operator rounds to and whether the original rounds
# more often, or words of the refusal
ORDERS = [
    ((F32,), F, (F32, False)),
    ((F32, F16), F, (F32, False)),
    ((F32, F16, F32, F16), F, (F32, False)),
    ((F32, "scale", F32, F16), F, (F32, False)),
    ((F32, F16, "scale", F16), H, (F16, False)),
    ((F32, F16, F32, "scale", F32, F16), H, (F16, False)),
    ((F32, F16, F32, "scale", F32, F16), F, "scale 'p' has more bits"),
    ((F32, "factor", F32, F16, "scale", F16), H, (F16, False)),
    ((F32, F16, "factor", F16), F, "rounded to FLOAT16 where the operator does not round"),
    ((F32, F16, "factor", F16, "scale", F16), H, "rounded to FLOAT16 where the operator does not round"),
    ((F32, F16, "bias", F16), H, (F16, False)),
    ((F32, F16, F32, "bias", F32, F16), F, "bias 'p' has more bits"),
    ((F32, F16, "scale", F16, "bias", F16), H, (F16, False)),
    ((F32, "scale", F32, "bias", F32, F16), F, (F32, False)),
    ((F32, F16, "scale", F16, F32, "bias", F32, F16), F, "bias 'p' has more bits"),
    ((F32, F16, F32, "scale", F32, "bias", F32, F16), H, "rounded to FLOAT16 where the operator does not round"),
    ((F16,), F, (F32, True)),
    ((F16, "scale", F16), H, (F16, True)),
    ((F16, F32, "scale", F32, F16), H, (F32, True)),
    ((F32, BF16, F32, F16), F, "rounded to BFLOAT16 on the way to FLOAT16"),
    ((F32, F16, F32), F, "rounded to 16 bits on the way to a wider type"),
]


@pytest.mark.parametrize(("order", "parameter", "wanted"), ORDERS, ids=str)
def test_an_order_of_roundings_is_kept_or_refused_in_words_that_fit(order, parameter, wanted):
    value = ir.Value(name="p", type=ir.TensorType(ir.DataType(parameter)))
    state = SimpleNamespace(
        roundings=order,
        statistics=(F32, F32),
        casts=((F16, 1),) if order[0] == F16 else (),
        scale=value if "scale" in order else None,
        bias=value if "bias" in order else None,
    )
    facts, out = SimpleNamespace(dtype=lambda v: v.dtype), [t for t in order if not isinstance(t, str)][-1]
    if not isinstance(wanted, str):
        assert kept_rounding(facts, state, out) == wanted
        state.casts = ((F16, 1), (F32, 1))
        assert kept_rounding(facts, state, out)[1]
        return
    with pytest.raises(Refusal, match=wanted) as caught:
        kept_rounding(facts, state, out)
    assert caught.value.expected != caught.value.found
