"""Version 2 of the contract on the CPU: what it gives, and what it refuses."""

import ctypes
import itertools

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests.support import output_cases
from tests.support.contract import (
    BAD_POINTER,
    BAD_SHAPE,
    BAD_STRIDE,
    BAD_TYPE,
    BAD_VALUE,
    DTYPES,
    F64,
    Call,
    cases,
    values,
)
from tests.support.output_cases import call_of
from tests.support.outputs import BF16, F16, F32, FLOAT8, INT8, QUANTISED, UINT8, Outputs, quantise_linear

globals().update(cases(output_cases))


@pytest.mark.parametrize("quantised_type", [INT8, UINT8])
@pytest.mark.parametrize("x_type", [F32, F16])
def test_the_reference_is_onnxruntimes_quantise_linear(quantised_type, x_type):
    inputs = [("x", x_type, ["n"]), ("s", x_type, []), ("z", quantised_type, [])]
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])],
        "g",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info("q", quantised_type, ["n"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(62)
    for scale, zero in itertools.product((0.0117, 0.5, 1.0), (-3, 0, 7)):
        s = np.array(scale, DTYPES[x_type])
        z = np.array(zero if quantised_type == INT8 else zero + 100, QUANTISED[quantised_type])
        x = np.concatenate([values(rng, 100_000, x_type), (np.arange(-600, 600) / 2 * s).astype(s.dtype)])
        got = session.run(None, {"x": x, "s": s, "z": z})[0]
        np.testing.assert_array_equal(got, quantise_linear(x, s, z, quantised_type))


def right():
    """A call that uses everything, and its struct."""
    call = call_of(np.random.default_rng(69), (2, 3, 8), F32)
    outputs = Outputs(call, 0, INT8, np.full(6, 0.1, np.float32), zero_point=np.zeros(6, np.int8))
    tensors = {
        "y": np.full_like(call.x, 5),
        "quantised": np.full(call.x.shape, 5, np.int8),
        "least": np.full(6, 5, np.float32),
        "most": np.full(6, 5, np.float32),
    }
    params = outputs.params(**tensors, strided=["x", "y", "quantised"])
    return params, tensors, outputs


REFUSED = [
    ({"y_type": INT8}, BAD_TYPE),
    ({"y_type": F64}, BAD_TYPE),
    ({"y_type": -1}, BAD_TYPE),
    ({"x_type": F16, "scale_type": F16, "y_type": BF16}, BAD_TYPE),
    ({"stash_type": F64}, BAD_TYPE),
    ({"quantised_type": 0}, BAD_TYPE),
    ({"quantised_type": F32}, BAD_TYPE),
    ({"quantised_type": 18}, BAD_TYPE),
    ({"quantised_scale_type": 0}, BAD_TYPE),
    ({"quantised_scale_type": F64}, BAD_TYPE),
    ({"quotient_type": F16}, BAD_TYPE),
    ({"quotient_type": -1}, BAD_TYPE),
    ({"y_type": F16, "quotient_type": F16}, BAD_TYPE),
    ({"quantised_by_row": 2}, BAD_VALUE),
    ({"quantised_by_row": -1}, BAD_VALUE),
    ({"strided": 32}, BAD_STRIDE),
    ({"strided": -1}, BAD_STRIDE),
    ({"axis_begin": 1}, BAD_SHAPE),
    ({"quantised": None}, BAD_POINTER),
    ({"quantised_scale": None}, BAD_POINTER),
    ({"quantised_type": FLOAT8}, BAD_POINTER),
    ({"y": None, "quantised": None, "quantised_type": 0, "least": None, "most": None}, BAD_POINTER),
]
SAME = [("quantised", "x"), ("quantised", "y"), ("quantised", "scale"), ("least", "most"), ("most", "y")]
WRONG_STRIDES = [
    ("x", [24, 8, 2]),
    ("x", [24, -8, 1]),
    ("x", [2**62, 8, 1]),
    ("y", [24, 7, 1]),
    ("y", [8, 8, 1]),
    ("y", [0, 8, 1]),
    ("quantised", [4, 8, 1]),
    ("quantised", [24, 8, 0]),
]


@pytest.mark.parametrize("change", [*REFUSED, *SAME, *WRONG_STRIDES], ids=str)
def test_what_is_refused(library, change):
    params, tensors, outputs = right()
    if change in REFUSED:
        fields, code = change
        for name, value in fields.items():
            setattr(params, name, value)
    elif change in SAME:
        setattr(params, change[0], getattr(params, change[1]))
        code = BAD_POINTER
    else:
        getattr(params, f"{change[0]}_strides")[:3] = change[1]
        code = BAD_STRIDE
    before = outputs.call.x.copy()
    assert library.rmsnorm_deploy_cpu_run(ctypes.byref(params)) == code
    assert len(library.rmsnorm_deploy_error_text(code)) > 20
    assert all((tensor == 5).all() for tensor in tensors.values())
    np.testing.assert_array_equal(outputs.call.x, before)


def test_in_place_with_other_strides_or_another_type_is_refused(library):
    params, _, _ = right()
    assert library.rmsnorm_deploy_cpu_run(ctypes.byref(params)) == 0
    params.y = params.x
    params.y_strides[0] = 48
    assert library.rmsnorm_deploy_cpu_run(ctypes.byref(params)) == BAD_STRIDE
    params.y_strides[0], params.y_type = 24, F16
    assert library.rmsnorm_deploy_cpu_run(ctypes.byref(params)) == BAD_POINTER


def test_columns_have_strides_of_no_kind(library):
    call = Call(np.ones((2, 4, 3), np.float32), np.float32([1]), axes=(1,))
    assert Outputs(call).code(library, y=np.empty_like(call.x), strided=["x"]) == BAD_SHAPE
    assert TensorProto.INT8 == INT8
