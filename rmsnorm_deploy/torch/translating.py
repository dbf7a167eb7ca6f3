"""How PyTorch's norms come out of its ONNX exporter: as one node of ours each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18, values

from rmsnorm_deploy.errors import UsageError
from rmsnorm_deploy.op import DOMAIN, FLOAT_TYPES, Op, newest, schemas
from rmsnorm_deploy.torch.naming import OPERATORS
from rmsnorm_deploy.torch.operators import given_by_caller, overload_of, parameters_of

DOUBLE, FLOAT = ir.DataType.DOUBLE, ir.DataType.FLOAT


def translations() -> dict[Any, Callable[..., Any]]:
    """What ``torch.onnx.export(..., dynamo=True, custom_translation_table=translations())`` takes.

    ``torch.nn.RMSNorm`` and ``torch.nn.functional.rms_norm`` become one node of ours each, and so do the operators of
    :mod:`rmsnorm_deploy.torch`. The nodes have no function bodies yet: :func:`rmsnorm_deploy.fuse` puts them into
    ``program.model``, and recognises the norms that the module writes out; :func:`rmsnorm_deploy.torch.export` does
    both, and makes AddRMSNorm of a residual addition and such a node.

    Returns:
        A new dictionary, from PyTorch's operators to functions that write nodes.
    """
    return {torch.ops.aten.rms_norm.default: _rms_norm, **{overload_of(op): _writer(op) for op in OPERATORS.values()}}


def _rms_norm(input: Any, normalized_shape: Sequence[int], weight: Any | None = None, eps: float | None = None) -> Any:
    """``aten::rms_norm``: PyTorch computes 16-bit norms in float32, scale included, and rounds once."""
    x_type = input.dtype
    if x_type not in FLOAT_TYPES:
        raise UsageError(
            f"rms_norm of {x_type.name.lower()} has no operator", "Cast to float32, float16, bfloat16 or float64 first."
        )
    wide = DOUBLE if x_type == DOUBLE else FLOAT
    if eps is None:
        eps = torch.finfo(torch.float64 if wide == DOUBLE else torch.float32).eps
    if weight is None:
        weight = _number(1.0, x_type, _features(normalized_shape))
    elif weight.dtype not in (x_type, wide):
        weight = opset18.Cast(weight, to=int(wide))
    attributes = {"axes": list(range(-len(normalized_shape), 0)), "epsilon": float(eps)}
    if wide != DOUBLE:
        return _node(Op.RMS_NORM, x_type, [input, weight], attributes)
    # as everywhere in this package: onnxruntime before 1.31 takes 1e-5 for any epsilon of a float64 RMSNorm
    if weight.dtype != DOUBLE:
        weight = opset18.Cast(weight, to=int(DOUBLE))
    attributes |= {"stash_type": int(DOUBLE), "scale_type": int(DOUBLE)}
    return _node(Op.GENERAL_RMS_NORM, x_type, [input, weight, _number(-0.0, DOUBLE, [])], attributes)


def _writer(op: Op) -> Callable[..., Any]:
    """What writes the node of one of our own operators."""
    names = [a.name for a in given_by_caller(op)]

    def write(*operands: Any, **attributes: Any) -> Any:
        unknown = sorted(set(attributes) - set(names))
        assert not unknown, unknown
        return _node(op, operands[0].dtype, list(operands), attributes)

    return write


def _node(op: Op, x_type: ir.DataType, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """A node with every attribute."""
    given = parameters_of(op, int(x_type), attributes).to_attributes()
    schema = next(s for s in schemas() if (s.name, s.since_version) == (op.value, newest()))
    return values.Op(values.Opset(DOMAIN, newest()), op.value, schema)(*inputs, **given)


def _features(shape: Sequence[Any]) -> list[int]:
    """The shape of a scale that changes nothing: one for each feature, as the fuser writes it, where that is known."""
    return [int(shape[0])] if len(shape) == 1 and isinstance(shape[0], int) else []


def _number(value: float, dtype: ir.DataType, shape: list[int]) -> Any:
    full = torch.full(shape, value, dtype=torch.float64).numpy().astype(dtype.numpy())
    return opset18.Constant(value=ir.serde.serialize_tensor(ir.Tensor(full, dtype=dtype, name="number")))
