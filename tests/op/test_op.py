"""The operator's definition: parameters, schemas, and the function body against the NumPy reference."""

import dataclasses
import itertools
import re
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from rmsnorm_deploy import op
from rmsnorm_deploy.op import DOMAIN, NormParameters, Op, definition
from rmsnorm_deploy.op.dtypes import float_type
from rmsnorm_deploy.op.reference import evaluate, rms_norm
from rmsnorm_deploy.run.session import register
from tests.support.judge import rows, units
from tests.support.run import run

NORMS = [op for op in Op if not op.quantises]
F, H, B, D = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE


def model_of(parameters, shape, scale_shape, scale_dtype, opset=18, body=True, gate_dtype=None):
    """One node of the operator alone in a model."""
    T, name = parameters.output_type, parameters.op
    inputs = [helper.make_tensor_value_info("X", T, shape)]
    if "residual" in name.inputs:
        inputs.append(helper.make_tensor_value_info("residual", T, shape))
    if "gate" in name.inputs:
        inputs.append(helper.make_tensor_value_info("gate", T if gate_dtype is None else gate_dtype, shape))
    inputs.append(helper.make_tensor_value_info("scale", scale_dtype, scale_shape))
    if "bias" in name.inputs:
        inputs.append(helper.make_tensor_value_info("bias", scale_dtype, scale_shape))
    node = helper.make_node(
        name.value, list(name.inputs), list(name.outputs), domain=DOMAIN, name="norm", **parameters.to_attributes()
    )
    outputs = [helper.make_tensor_value_info(o, T, shape) for o in name.outputs]
    return helper.make_model(
        helper.make_graph([node], "g", inputs, outputs),
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)],
        functions=[op.function_body(name, opset)] if body else [],
        ir_version=10 if opset >= 21 else 8,
    )


def parameter_grid():
    for name, T in itertools.product(NORMS, op.FLOAT_TYPES):
        stashes = [D] if T == D else [F, D]
        for stash in stashes:
            for scale_type in sorted({T, stash, F}):
                extra = [{}]
                if name is Op.GENERAL_RMS_NORM:
                    extra += [{"epsilon_outside": 1e-3}, {"rms_floor": 0.05}, {"partial_size": 5}]
                if name is Op.GATED_RMS_NORM:
                    extra = [{"activation": a, "gate_at": at} for a, at in itertools.product((0, 1), (0, 1, 2))]
                for more in extra:
                    yield NormParameters(name, T, (-1,), 1e-5, stash, scale_type, **more)


@pytest.mark.parametrize("optimise", [False, True])
@pytest.mark.parametrize("scale_kind", ["own", "float"])
@pytest.mark.parametrize("p", list(parameter_grid()), ids=str)
def test_body_means_what_the_reference_says(p, scale_kind, optimise):
    scale_dtype = p.output_type if scale_kind == "own" else F
    fused_by_onnxruntime = p.op is not Op.GENERAL_RMS_NORM
    if fused_by_onnxruntime and p.stash_type == D and optimise:
        pytest.skip(
            "double statistics are emitted as GeneralRMSNorm: older onnxruntimes fuse these with a wrong epsilon"
        )
    shape = (6, 16)
    rng = np.random.default_rng(1)
    x = rows(shape, float_type(p.output_type).dtype)
    scale = (1 + 0.25 * rng.standard_normal(16)).astype(float_type(scale_dtype).dtype)
    feeds = {"X": x, "residual": rows(shape, x.dtype, seed=2), "scale": scale}
    feeds["bias"] = rng.standard_normal(16).astype(scale.dtype)
    feeds["gate"] = rng.standard_normal(shape).astype(scale.dtype)
    feeds = {name: feeds[name] for name in p.op.inputs}
    got = run(model_of(p, shape, (16,), scale_dtype, gate_dtype=scale_dtype), feeds, optimise)
    truth, *total = evaluate(p, *feeds.values(), exact=True)
    narrow = 1.0 if p.output_type in (H, B) else 4.0  # float arithmetic in six steps against float64
    assert units(got[0], truth) <= narrow
    if total:
        np.testing.assert_array_equal(got[1], total[0])
    if p.output_type in (H, B) and p.scale_type == p.output_type and not optimise:
        # the two orders of rounding differ in a quarter of the elements: the right one is kept nearly everywhere
        assert np.mean(got[0] != truth.astype(x.dtype)) <= 0.02


@pytest.mark.parametrize("opset", [11, 12, 13, 15, 17, 18, 20, 21, 23])
@pytest.mark.parametrize("name", NORMS)
def test_body_is_valid_and_right_at_every_opset(name, opset):
    p = NormParameters(name, F, (-1,), 1e-6)
    model = model_of(p, (2, 3, 8), (8,), F, opset)
    onnx.checker.check_model(model, full_check=True)
    x = rows((2, 3, 8), np.float32)
    feeds = {"X": x, "scale": np.linspace(0.5, 2, 8, dtype=np.float32)}
    given = {}
    if "residual" in name.inputs:
        feeds["residual"] = given["residual"] = x[::-1].copy()
    if name is Op.GENERAL_RMS_NORM:
        feeds["bias"] = given["bias"] = np.linspace(-1, 1, 8, dtype=np.float32)
    if name is Op.GATED_RMS_NORM:
        feeds["gate"] = given["gate"] = x[::-1].copy() * 3
    got = run(model, feeds, optimise=True)[0]
    assert units(got, rms_norm(x, feeds["scale"], epsilon=1e-6, exact=True, **given)[0]) <= 4


@pytest.mark.parametrize("opset", [11, 12, 18])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("activation", [0, 1])
def test_the_body_reads_activation_and_place_of_the_gate(activation, at, opset):
    p = NormParameters(Op.GATED_RMS_NORM, F, (-1,), 1e-6, activation=activation, gate_at=at)
    x = rows((2, 3, 8), np.float32)
    feeds = {"X": x, "gate": x[::-1].copy() * 3, "scale": np.linspace(0.5, 2, 8, dtype=np.float32)}
    got = run(model_of(p, (2, 3, 8), (8,), F, opset), feeds, optimise=True)[0]
    sigmoid = 1 / (1 + np.exp(-feeds["gate"].astype(np.float64)))
    factor = sigmoid * feeds["gate"] if activation else sigmoid
    value = x.astype(np.float64) * (factor if at == 0 else 1)
    value /= np.sqrt((value**2).mean(-1, keepdims=True) + 1e-6)
    assert units(got, value * feeds["scale"] * (factor if at else 1)) <= 4


@pytest.mark.parametrize(
    ("axes", "scale_shape"), [((1,), (6, 1, 1)), ((-2, -1), (3, 5)), ((2,), (3, 1)), ((-1,), (1,)), ((-1,), ())]
)
def test_body_takes_every_place_of_the_axes(axes, scale_shape):
    shape = (2, 6, 3, 5)
    x = rows(shape, np.float32)
    scale = np.random.default_rng(0).standard_normal(scale_shape).astype(np.float32)
    got = run(
        model_of(NormParameters(Op.RMS_NORM, F, axes, 1e-3), shape, scale_shape, F), {"X": x, "scale": scale}, True
    )
    assert units(got[0], rms_norm(x, scale, axes=axes, epsilon=1e-3, exact=True)[0]) <= 4


@pytest.mark.parametrize("kind", [F, H, B])
def test_onnxruntime_fuses_the_body_by_itself(kind, tmp_path):
    """Where the meaning allows, the stock optimizer turns the body into its own fused op."""
    model = model_of(NormParameters(Op.RMS_NORM, kind, (-1,), 1e-5), ("n", 64), (64,), kind)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    ops = [n.op_type for n in onnx.load(tmp_path / "optimised.onnx").graph.node]
    assert "SimplifiedLayerNormalization" in ops
    assert "ReduceMean" not in ops


@pytest.mark.parametrize("opset", [11, 12, 15, 18, 24])
@pytest.mark.parametrize("name", list(Op))
def test_every_node_and_value_of_a_body_has_a_name_of_its_own(name, opset):
    """Tools that inline functions build the names of nodes from those of the body."""
    body = op.function_body(name, opset)
    names = [n.name for n in body.node]
    assert all(names)
    assert len(set(names)) == len(names)
    values = [o for n in body.node for o in n.output]
    assert len(set(values)) == len(values)


@pytest.mark.parametrize("library", [False, True])
@pytest.mark.parametrize(("written", "x_type"), [(F, H), (F, B), (H, F), (F, D)])
@pytest.mark.parametrize("name", NORMS)
def test_the_type_is_that_of_x_where_a_converter_left_the_attribute_behind(name, written, x_type, library):
    if not library and (written, x_type) == (F, D) and name is not Op.GENERAL_RMS_NORM:
        pytest.skip("older onnxruntimes fuse float64 with a wrong epsilon")
    stale = NormParameters(name, written, epsilon=1e-3, scale_type=written)
    model = model_of(
        dataclasses.replace(stale, output_type=x_type, scale_type=F, stash_type=D if x_type == D else F),
        (6, 16),
        (16,),
        x_type,
    )
    for attribute in model.graph.node[0].attribute:
        attribute.CopyFrom(helper.make_attribute(attribute.name, stale.to_attributes()[attribute.name]))
    onnx.checker.check_model(model, full_check=True)
    dtype = float_type(x_type).dtype
    feeds = {
        "X": rows((6, 16), dtype),
        "residual": rows((6, 16), dtype, seed=2),
        "scale": np.linspace(0.5, 2, 16).astype(dtype),
        "bias": np.linspace(-1, 1, 16).astype(dtype),
        "gate": np.linspace(1, 3, 96).reshape(6, 16).astype(dtype),
    }
    feeds = {n: feeds[n] for n in name.inputs}
    got = run(model, feeds, True, register if library else None)
    meant = NormParameters.from_attributes(name, op.following(stale.to_attributes(), x_type), version=1)
    truth = evaluate(meant, *feeds.values(), exact=True)[0]
    assert got[0].dtype == dtype
    # the attribute scale_type stays behind as well, and rounds to the type that X had
    coarse = min(float_type(x_type).mantissa_bits, float_type(written).mantissa_bits)
    slack = 3.0 * 2 ** (float_type(x_type).mantissa_bits - coarse)
    assert units(got[0], truth) <= slack


def test_two_nodes_with_different_attributes_share_one_body():
    nodes = [
        helper.make_node(
            "RMSNorm", ["X", "scale"], [y], domain=DOMAIN, **NormParameters(Op.RMS_NORM, F, (-1,), e).to_attributes()
        )
        for y, e in (("a", 0.5), ("b", 1e-6))
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("X", F, [3, 8]), info("scale", F, [8])], [info("a", F, [3, 8]), info("b", F, [3, 8])]
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)],
        functions=[op.function_body(Op.RMS_NORM, 18)],
        ir_version=8,
    )
    x, scale = rows((3, 8), np.float32), np.ones(8, np.float32)
    for got, epsilon in zip(run(model, {"X": x, "scale": scale}, True), (0.5, 1e-6), strict=True):
        assert units(got, rms_norm(x, scale, epsilon=epsilon, exact=True)[0]) <= 4


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"axes": ()}, "at least one"),
        ({"axes": (-1, -3)}, "contiguous"),
        ({"axes": (-1, 0)}, "contiguous"),
        ({"epsilon": -1e-6}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"stash_type": H}, "stash_type"),
        ({"scale_type": B}, "scale_type"),
        ({"output_type": TensorProto.INT64}, "must be float32"),
        ({"output_type": D}, "stash_type"),
        ({"partial_size": 3}, "has no"),
        ({"op": Op.GENERAL_RMS_NORM, "partial_size": 0}, "partial_size"),
        ({"op": Op.GENERAL_RMS_NORM, "partial_size": 3, "axes": (-2, -1)}, "partial_size"),
    ],
)
def test_parameters_refuse_what_makes_no_sense(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        NormParameters(**{"op": Op.RMS_NORM, "output_type": F, **wrong})


@pytest.mark.parametrize("p", list(parameter_grid()), ids=str)
def test_parameters_survive_a_node(p):
    node = helper.make_node(p.op.value, list(p.op.inputs), list(p.op.outputs), domain=DOMAIN, **p.to_attributes())
    assert NormParameters.from_node(node, version=1) == p
    assert {a.name for a in node.attribute} == set(op.attribute_names(p.op))


@pytest.mark.parametrize("p", list(parameter_grid()), ids=str)
def test_an_absent_attribute_means_its_default(p):
    values = p.to_attributes()
    for a in definition.attributes_of(p.op):
        rest = {name: value for name, value in values.items() if name != a.name}
        try:
            default = p.output_type if a.name == "output_type" else DEFAULTS.get(a.name, a.default)
            if (a.name, p.output_type) == ("stash_type", D):
                default = D  # a float64 norm has no other arithmetic
            wanted = dataclasses.replace(p, **{a.name: default})
        except ValueError as error:  # the default does not go with the other attributes
            with pytest.raises(ValueError, match=re.escape(str(error))):
                NormParameters.from_attributes(p.op, rest, version=1, x_type=p.output_type)
        else:
            assert NormParameters.from_attributes(p.op, rest, version=1, x_type=p.output_type) == wanted


DEFAULTS = {
    "axes": (-1,),
    "epsilon": 0.0,
    "stash_type": F,
    "scale_type": F,
    "epsilon_outside": 0.0,
    "rms_floor": 0.0,
    "partial_size": None,
}
"""Of version 1, for ever. The default of output_type is the type of X."""


def test_the_type_of_x_must_be_known_where_the_node_does_not_say_it():
    with pytest.raises(ValueError, match="output_type is absent"):
        NormParameters.from_attributes(Op.RMS_NORM, {}, version=1)
    assert NormParameters.from_attributes(Op.RMS_NORM, {}, version=1, x_type=H) == NormParameters(Op.RMS_NORM, H)
    double = NormParameters.from_attributes(Op.RMS_NORM, {}, version=1, x_type=D)
    assert double == NormParameters(Op.RMS_NORM, D, stash_type=D)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"epsilon": 1}, "the attribute epsilon must be a float, not 1"),
        ({"stash_type": 1.0}, "the attribute stash_type must be an integer, not 1.0"),
        ({"axes": -1}, "the attribute axes must be a list of integers, not -1"),
        ({"axes": [-1.0]}, "the attribute axes must be a list of integers"),
        ({"axes": [], "partial_size": []}, "axes must name at least one dimension"),
        ({"partial_size": "all"}, "the attribute partial_size must be a list of integers"),
        ({"partial_size": [2, 3], "axes": [1, 2]}, "partial_size must hold one integer for each axis, all the same"),
        ({"partial_size": [3, 3]}, "partial_size must hold one integer for each axis"),
        ({"rms_floor": -1.0}, "rms_floor must be a finite number and not negative"),
        ({"rms_flor": 1.0}, "GeneralRMSNorm has no attribute rms_flor in version 1 of rmsnorm_deploy"),
        ({"version": 1}, "GeneralRMSNorm has no attribute version in version 1"),
    ],
)
def test_a_wrong_attribute_is_refused_with_the_name_of_the_node(wrong, sentence):
    values = NormParameters(Op.GENERAL_RMS_NORM, F).to_attributes() | wrong
    node = helper.make_node("GeneralRMSNorm", ["X", "s", "b"], ["Y"], domain=DOMAIN, name="n")
    for name, value in values.items():
        kind = onnx.AttributeProto.INTS if value == [] else None
        node.attribute.append(helper.make_attribute(name, value, attr_type=kind))
    with pytest.raises(ValueError, match=rf"node 'n' \(GeneralRMSNorm\): {re.escape(sentence)}"):
        NormParameters.from_node(node, version=1)


def test_a_node_of_another_domain_or_version_is_refused():
    node = helper.make_node("RMSNorm", ["X", "s"], ["Y"], name="n", output_type=F)
    with pytest.raises(ValueError, match="node 'n' is of domain '', not 'rmsnorm_deploy'"):
        NormParameters.from_node(node, version=1)
    node.domain = DOMAIN
    with pytest.raises(ValueError, match=r"node 'n' .* version 7 of the domain rmsnorm_deploy is unknown .* knows 1"):
        NormParameters.from_node(node, version=7)


def test_old_opsets_have_no_body():
    with pytest.raises(ValueError, match="11 or newer"):
        op.function_body(Op.RMS_NORM, 10)


def test_schemas_are_registered_once_whoever_asks():
    code = (
        "import threading, rmsnorm_deploy as rd\n"
        "start, failed = threading.Barrier(8), []\n"
        "threading.excepthook = failed.append\n"
        "def ask(): start.wait(); rd.register_schemas()\n"
        "threads = [threading.Thread(target=ask) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "assert not failed, failed\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_schemas_let_the_checker_and_shape_inference_know_the_ops():
    assert not onnx.defs.has("RMSNorm", DOMAIN), "importing the package must register nothing"
    op.register_schemas()
    try:
        op.register_schemas()  # again is harmless
        for name in NORMS:
            p = NormParameters(name, H, (-1,), 1e-5, scale_type=H)
            model = model_of(p, ("n", 5, 64), (64,), F, body=False)
            onnx.checker.check_model(model, full_check=True)
            model.graph.output[0].type.tensor_type.ClearField("shape")
            inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
            kind = inferred.graph.output[0].type.tensor_type
            assert kind.elem_type == H
            assert [d.dim_param or d.dim_value for d in kind.shape.dim] == ["n", 5, 64]
            model = model_of(p, ("n", 5, 64), (64,), F, body=False)
            del model.graph.node[0].attribute[:]  # absent ones have their defaults
            onnx.checker.check_model(model, full_check=True)
            model.graph.node[0].attribute.append(helper.make_attribute("epsilon", 1))
            with pytest.raises(onnx.checker.ValidationError, match="epsilon"):
                onnx.checker.check_model(model)
    finally:
        for name in Op:
            onnx.defs.deregister_schema(name.value, 1, DOMAIN)
