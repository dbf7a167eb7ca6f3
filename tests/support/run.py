"""Models run in onnxruntime."""

import ctypes

import ml_dtypes
import numpy as np
import onnxruntime as ort
from onnx import TensorProto


def run(model, feeds, optimise, register=None):
    """Outputs by onnxruntime, bfloat16 in and out through their bits."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if register is not None:
        register(options)
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return outputs(session, feeds)


def outputs(session, feeds):
    """Outputs of a session, as :func:`run`."""
    values = {}
    for name, value in feeds.items():
        if value.dtype == ml_dtypes.bfloat16:
            values[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(value.view(np.uint16), TensorProto.BFLOAT16)
        else:
            values[name] = ort.OrtValue.ortvalue_from_numpy(value)
    wanted = [o.name for o in session.get_outputs()]
    binding = session.run_with_ort_values(wanted, values)
    types = {o.name: o.type for o in session.get_outputs()}
    results = []
    for name, value in zip(wanted, binding, strict=True):
        if types[name] == "tensor(bfloat16)":
            shape = value.shape()
            count = int(np.prod(shape))
            raw = (ctypes.c_uint16 * count).from_address(value.data_ptr()) if count else []
            results.append(np.array(raw, np.uint16).reshape(shape).view(ml_dtypes.bfloat16))
        else:
            results.append(value.numpy())
    return results
