"""The operators that quantise: their bodies, their reference, and what they may not be."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from rmsnorm_deploy import op
from rmsnorm_deploy.op import DOMAIN, NormParameters, Op
from rmsnorm_deploy.op.dtypes import float_type
from rmsnorm_deploy.op.quantising import dynamic_quantize_linear, quantize_linear
from rmsnorm_deploy.op.reference import evaluate
from tests.support.judge import units
from tests.support.run import run

F, H, B, D = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE
I8, U8, F8 = TensorProto.INT8, TensorProto.UINT8, TensorProto.FLOAT8E4M3FN
QUANTISING = [o for o in Op if o.quantises]
GIVEN = [o for o in QUANTISING if not o.is_dynamic]
SHAPE = (2, 3, 8)


def model_of(p, opset, quantised=I8, *, keep=True, scale_type=F):
    o = p.op
    types = {"y_scale": scale_type if not o.is_dynamic else F, "y_zero_point": U8 if o.is_dynamic else quantised}
    types["quantized"] = types["y_zero_point"]
    shapes = {"scale": [8], "y_scale": [], "y_zero_point": []}
    outputs = [name if name != "Y" or keep else "" for name in o.outputs]
    node = helper.make_node(o.value, list(o.inputs), outputs, "norm", domain=DOMAIN, **p.to_attributes())

    def info(name):
        return helper.make_tensor_value_info(name, types.get(name, p.output_type), shapes.get(name, SHAPE))

    graph = helper.make_graph([node], "g", [info(i) for i in o.inputs], [info(name) for name in outputs if name])
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)],
        functions=[op.function_body(o, opset)],
        ir_version=10,
    )


def feeds_of(o, kind=F, quantised=np.int8, scale_type=F):
    rng = np.random.default_rng(1)
    dtype = float_type(kind).dtype
    given = {name: rng.standard_normal(SHAPE).astype(dtype) for name in ("X", "residual")}
    given["scale"] = np.linspace(0.5, 2, 8).astype(dtype)
    given["y_scale"] = np.array(0.03, float_type(scale_type).dtype)
    given["y_zero_point"] = np.array(0 if quantised == ml_dtypes.float8_e4m3fn else 7, quantised)
    return {name: given[name] for name in o.inputs}


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("opset", [11, 12, 13, 15, 18, 19, 21, 23])
@pytest.mark.parametrize("o", QUANTISING)
def test_the_body_means_what_the_reference_says_at_every_opset(o, opset, keep):
    p = NormParameters(o, F, epsilon=1e-3)
    model = model_of(p, opset, keep=keep)
    onnx.checker.check_model(model, full_check=True)
    feeds = feeds_of(o)
    wanted = dict(zip(o.outputs, evaluate(p, *feeds.values()), strict=True))
    names = [output.name for output in model.graph.output]
    assert ("Y" in names) == keep
    for name, got in zip(names, run(model, feeds, optimise=True), strict=True):
        assert (got.dtype, got.shape) == (wanted[name].dtype, wanted[name].shape)
        if got.dtype.kind in "iu":
            assert np.abs(got.astype(int) - wanted[name].astype(int)).max() <= (got.ndim == 0 or 1)
            assert np.mean(got != wanted[name]) <= 0.1
        else:
            assert units(got, wanted[name].astype(np.float64)) <= 4


@pytest.mark.parametrize(("kind", "scale_type", "precision"), [(H, H, H), (H, H, F), (H, F, F), (B, B, F), (F, F, F)])
@pytest.mark.parametrize("quantised", [I8, U8, F8])
def test_types_of_value_scale_and_quotient(kind, scale_type, precision, quantised):
    """onnx's own evaluator has no choice of types: what the body says is what it computes."""
    p = NormParameters(Op.RMS_NORM_QUANTIZE, kind, epsilon=1e-3, precision=precision)
    model = model_of(p, 21, quantised, scale_type=scale_type)
    onnx.checker.check_model(model, full_check=True)
    feeds = feeds_of(p.op, kind, helper.tensor_dtype_to_np_dtype(quantised), scale_type)
    y, got = ReferenceEvaluator(model).run(None, feeds)
    wanted = quantize_linear(y, feeds["y_scale"], feeds["y_zero_point"], precision)
    np.testing.assert_array_equal(np.asarray(got).view(np.uint8), wanted.view(np.uint8))


@pytest.mark.parametrize("zero", [-128, -5, 0, 127])
def test_the_reference_is_quantize_linear_of_onnx(zero):
    edges = np.concatenate([(np.arange(-300, 300) + 0.5) * s for s in (0.25, 0.02, 0.1)]).astype(np.float32)
    values = np.concatenate([np.nextafter(edges, np.float32(d)) for d in (-np.inf, np.inf)] + [edges])
    node = helper.make_node("QuantizeLinear", ["y", "s", "z"], ["q"])
    for scale in (0.25, 0.02, 0.1):
        feeds = {"y": values, "s": np.array(scale, np.float32), "z": np.array(zero, np.int8)}
        (wanted,) = ReferenceEvaluator(node).run(None, feeds)
        np.testing.assert_array_equal(quantize_linear(*feeds.values()), wanted)


@pytest.mark.parametrize("values", [[-1, 0, 2], [1, 2, 3], [-3, -1], [0.5], [-1e-30, 1e-30], [1e38, -1e38]])
def test_the_reference_is_dynamic_quantize_linear_of_onnx(values):
    y = np.array(values, np.float32)
    wanted = ReferenceEvaluator(helper.make_node("DynamicQuantizeLinear", ["y"], ["q", "s", "z"])).run(None, {"y": y})
    for got, due in zip(dynamic_quantize_linear(y), wanted, strict=True):
        np.testing.assert_array_equal(got, due)


def test_what_is_no_number():
    y = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    one = np.array(1, np.float32)
    assert quantize_linear(y, one, np.array(0, np.int8)).tolist() == [-128, 127, -128, 1]
    assert quantize_linear(y, one, np.array(9, np.uint8)).tolist() == [0, 255, 0, 10]
    assert dynamic_quantize_linear(np.array([np.nan, 255], np.float32))[0].tolist() == [0, 255]
    q, scale, zero = dynamic_quantize_linear(np.zeros(3, np.float32))
    assert (q.tolist(), float(scale), int(zero)) == ([0, 0, 0], 1, 0)


@pytest.mark.parametrize(
    ("o", "more", "reason"),
    [
        (Op.RMS_NORM_QUANTIZE, {"stash_type": D}, "stash_type of RMSNormQuantizeLinear must be 1"),
        (Op.RMS_NORM_DYNAMIC_QUANTIZE, {"output_type": H}, "X of RMSNormDynamicQuantizeLinear must be float32"),
        (Op.RMS_NORM_QUANTIZE, {"precision": H}, "precision must be 1"),
        (Op.RMS_NORM, {"output_type": H, "precision": H}, "RMSNorm has no precision"),
        (Op.RMS_NORM_DYNAMIC_QUANTIZE, {"rms_floor": 1.0}, "has no rms_floor"),
    ],
)
def test_parameters_that_mean_nothing(o, more, reason):
    with pytest.raises(ValueError, match=reason):
        NormParameters(**{"op": o, "output_type": F, **more})


@pytest.mark.parametrize("o", GIVEN)
def test_the_precision_follows_the_type_that_x_really_has(o):
    stale = NormParameters(o, H, precision=H).to_attributes()
    assert op.following(stale, F)["precision"] == F
    assert op.following(stale, B)["precision"] == B
    assert op.following(NormParameters(o, F).to_attributes(), H)["precision"] == F


def test_schemas_know_types_and_shapes():
    op.register_schemas()
    try:
        for o in QUANTISING:
            model = model_of(NormParameters(o, F), 18)
            del model.functions[:]
            onnx.checker.check_model(model, full_check=True)
            for output in model.graph.output:
                output.type.tensor_type.ClearField("shape")
            inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, check_type=True)
            shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in inferred.graph.output}
            assert shapes == {n: [] if n in ("y_scale", "y_zero_point") else list(SHAPE) for n in o.outputs}
            kinds = {v.name: v.type.tensor_type.elem_type for v in inferred.graph.output}
            assert kinds["quantized"] == (U8 if o.is_dynamic else I8)
    finally:
        for o in Op:
            onnx.defs.deregister_schema(o.value, 1, DOMAIN)


def test_every_operator_that_quantises_is_a_norm_and_more():
    for o in QUANTISING:
        assert o.norm.quantised(dynamic=o.is_dynamic) is o
        assert set(o.norm.inputs) <= set(o.inputs)
        assert set(o.norm.outputs) <= set(o.outputs)
        assert o.outputs[-1] not in o.optional  # tools drop a last output without a name
    assert Op.GENERAL_RMS_NORM.quantised(dynamic=True) is None
