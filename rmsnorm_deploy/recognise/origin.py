"""Where the shape of a value comes from: the value in front of operators that keep it."""

from __future__ import annotations

import onnx_ir as ir

from rmsnorm_deploy.model.graphs import AI_ONNX

_OF_ONE_SHAPE = frozenset(
    (
        *(
            "Abs",
            "Cast",
            "Clip",
            "DequantizeLinear",
            "Dropout",
            "Elu",
            "Erf",
            "Exp",
            "Gelu",
            "HardSigmoid",
            "HardSwish",
        ),
        *("Identity", "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "LpNormalization", "Neg", "Not"),
        *(
            "QuantizeLinear",
            "RMSNormalization",
            "Reciprocal",
            "Relu",
            "Round",
            "Sigmoid",
            "Sign",
            "Softmax",
            "Softplus",
        ),
        *("Sqrt", "Tanh"),
    )
)
"""Operators whose first output has the shape of their first input."""


def origin(value: ir.Value) -> ir.Value:
    """The first of the values in front of ``value`` that have its shape."""
    for _ in range(64):
        node = value.producer()
        if node is None or node.domain not in AI_ONNX or not node.inputs or node.inputs[0] is None or value.index():
            return value
        squared = node.op_type == "Mul" and node.inputs[0] is node.inputs[1]
        if node.op_type not in _OF_ONE_SHAPE and not squared:
            return value
        value = node.inputs[0]
    return value
