"""GatedRMSNorm in onnxruntime: every combination of types, by the library and by the body, and what is refused."""

import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_deploy
from rmsnorm_deploy import op
from rmsnorm_deploy.op import DOMAIN, NormParameters, Op
from rmsnorm_deploy.op.dtypes import float_type
from rmsnorm_deploy.op.reference import evaluate
from tests.support.judge import units
from tests.support.run import run

F, H, B, D = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE
TYPES = [t for x in (F, H, B, D) for t in itertools.product((x,), sorted({x, F}), sorted({x, F}))]


def model_of(p, gate_type, scale_type, shape=("n", 40), gate_shape=("n", 40), body=True, constants=(), **changes):
    node = helper.make_node(
        "GatedRMSNorm", ["X", "gate", "scale"], ["Y"], "norm", domain=DOMAIN, **{**p.to_attributes(), **changes}
    )
    inputs = [("X", p.output_type, shape), ("gate", gate_type, gate_shape), ("scale", scale_type, (40,))]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(*i) for i in inputs if i[0] not in dict(constants)],
        [helper.make_tensor_value_info("Y", p.output_type, shape)],
        [numpy_helper.from_array(array, name) for name, array in constants],
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)],
        functions=[op.function_body(Op.GATED_RMS_NORM, 18)] if body else [],
        ir_version=9,
    )


def feeds_of(p, gate_type, scale_type, rows=5):
    rng = np.random.default_rng(1)
    shapes = {"X": ((rows, 40), p.output_type), "gate": ((rows, 40), gate_type), "scale": ((40,), scale_type)}
    return {n: (2 * rng.standard_normal(s)).astype(float_type(t).dtype) for n, (s, t) in shapes.items()}


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(("x_type", "gate_type", "scale_type"), TYPES)
def test_library_and_body_mean_the_same_in_every_type(x_type, gate_type, scale_type, place):
    for rounding in sorted({x_type, F}):
        stash = D if x_type == D else F
        p = NormParameters(
            Op.GATED_RMS_NORM, x_type, (-1,), 1e-5, stash, rounding, activation=place != 1, gate_at=place
        )
        feeds = feeds_of(p, gate_type, scale_type)
        truth = evaluate(p, *feeds.values(), exact=True)[0]
        # the body has no kernels of ours, so that only the library can be called without it
        got = run(model_of(p, gate_type, scale_type, body=False), feeds, True, rmsnorm_deploy.register)[0]
        by_body = run(model_of(p, gate_type, scale_type), feeds, False)[0]
        slack = {F: 4.0, D: 8.0 if rounding == D else 4.0 * 2**29}.get(x_type, 1.0 if rounding == F else 3.0)
        assert units(got, truth) <= slack
        assert units(by_body, truth) <= 4 * slack


def test_a_gate_of_another_shape_is_refused():
    p = NormParameters(Op.GATED_RMS_NORM, F, (-1,), 1e-5)
    feeds = feeds_of(p, F, F)
    feeds["gate"] = feeds["gate"][:1]
    with pytest.raises(Exception, match=r"gate of shape \[1,40\] must have the shape of X, \[5,40\]"):
        run(model_of(p, F, F, gate_shape=("m", 40), body=False), feeds, True, rmsnorm_deploy.register)


@pytest.mark.parametrize(("name", "value"), [("activation", 2), ("gate_at", 3), ("gate_at", -1)])
def test_wrong_attributes_are_refused(name, value):
    p = NormParameters(Op.GATED_RMS_NORM, F, (-1,), 1e-5)
    model = model_of(p, F, F, body=False, **{name: value})
    with pytest.raises(Exception, match=f"{name} must be 0 to [12], not {value}"):
        run(model, feeds_of(p, F, F), True, rmsnorm_deploy.register)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(("x_type", "scale_type"), [(F, F), (H, H), (H, F), (D, F)])
def test_a_scale_that_is_a_constant_gives_the_same_bits(x_type, scale_type, place):
    p = NormParameters(Op.GATED_RMS_NORM, x_type, (-1,), 1e-5, D if x_type == D else F, x_type, gate_at=place)
    feeds = feeds_of(p, F, scale_type)
    wanted = run(model_of(p, F, scale_type, body=False), feeds, True, rmsnorm_deploy.register)[0]
    model = model_of(p, F, scale_type, body=False, constants=[("scale", feeds.pop("scale"))])
    np.testing.assert_array_equal(run(model, feeds, True, rmsnorm_deploy.register)[0], wanted)


def test_many_rows_are_divided_and_no_rows_are_nothing():
    p = NormParameters(Op.GATED_RMS_NORM, F, (-1,), 1e-5)
    model = model_of(p, F, F, body=False)
    for rows in (0, 4000):
        feeds = feeds_of(p, F, F, rows)
        got = run(model, feeds, True, rmsnorm_deploy.register)[0]
        assert got.shape == (rows, 40)
        if rows:
            assert units(got, evaluate(p, *feeds.values(), exact=True)[0]) <= 4
