"""onnx's reference evaluator, with what it leaves out of an operator's definition."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from rmsnorm_deploy.op.reference import rms_norm
from rmsnorm_deploy.run.inputs import Array


class RMSNormalization(OpRun):
    """Of ai.onnx 23. That of onnx computes in the type of X, whatever ``stash_type`` says: float16 rows overflow."""

    op_domain = ""

    def _run(
        self, x: Array, scale: Array, axis: int = -1, epsilon: float = 1e-5, stash_type: int = TensorProto.FLOAT
    ) -> tuple[Any]:
        axes = range(axis % x.ndim, x.ndim)
        kind = helper.np_dtype_to_tensor_dtype(x.dtype)
        ones = np.ones((), x.dtype)
        # normalised in the stash type, rounded to that of X, and multiplied in the type of the scale
        y, _ = rms_norm(x, ones, axes=tuple(axes), epsilon=epsilon, stash_type=stash_type, scale_type=kind)
        return (y.astype(scale.dtype) * scale,)


class LayerNormalization(OpRun):
    """Of ai.onnx 17. That of onnx computes in the type of X, too, and loses what a mean far from zero leaves."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        scale: Array,
        bias: Array | None = None,
        axis: int = -1,
        epsilon: float = 1e-5,
        stash_type: int = TensorProto.FLOAT,
    ) -> tuple[Array, Array, Array]:
        axes = tuple(range(axis % x.ndim, x.ndim))
        wide = x.astype(np.result_type(x.dtype, helper.tensor_dtype_to_np_dtype(stash_type)))
        mean = wide.mean(axis=axes, keepdims=True)
        difference = wide - mean
        deviation = np.sqrt(np.square(difference).mean(axis=axes, keepdims=True) + wide.dtype.type(epsilon))
        # normalised in the stash type, rounded to that of X, then scaled and shifted in that
        y = (difference / deviation).astype(x.dtype) * scale
        return y if bias is None else y + bias, mean, 1 / deviation


def evaluator(model: ModelProto) -> ReferenceEvaluator:
    """An evaluator of ``model``, whose weights are in memory."""
    return ReferenceEvaluator(model, new_ops=[RMSNormalization, LayerNormalization])
