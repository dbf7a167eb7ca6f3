"""New contents of weights, which are computed when somebody reads or writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_deploy.converting.centring import Array, centred, means
from rmsnorm_deploy.converting.stream import How
from rmsnorm_deploy.converting.writers import read, tensor_of, vector_behind
from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.model.made import OUTSIDE

_LEAST_NORMAL = 2.0**-14
"""Of float16: below it, numbers have fewer digits the smaller they are."""


def edited(tensor: ir.TensorProtocol, name: str | None, how: How) -> Callable[[], Array]:
    """What makes a tensor's new content when it is asked for."""
    scales = []
    for value in how.scales:
        leaf = vector_behind(value)
        held = None if leaf is None else tensor_of(leaf)
        assert held is not None
        scales.append((held, value.name))

    def new() -> Array:
        try:
            return centred(read(tensor, name), how.axis, [read(t, n).reshape(-1) for t, n in scales])
        except FloatingPointError as error:
            raise ModelError(
                f"'{name}' without its mean does not fit into its type, {tensor.dtype.name}",
                "The model is left as it is: its LayerNorms cannot be converted.",
            ) from error

    return new


def spoilt(tensor: ir.TensorProtocol, name: str | None, how: How) -> tuple[str, bool]:
    """Why a tensor of float16 has no room for its new content, in one sentence without a full stop; nothing if it has.

    Other types have it, but for numbers that no model has.

    Returns:
        The reason, and whether the values that it writes have no room either.

    Raises:
        ModelError: the data are not there.
    """
    if tensor.dtype != ir.DataType.FLOAT16:
        return "", False
    try:
        largest = np.abs(edited(tensor, name, how)()).max(initial=0)
    except ModelError as error:
        if isinstance(error.__cause__, FloatingPointError):
            return f"'{name}' without its mean is too large for float16", True
        raise
    if how.scales and largest < _LEAST_NORMAL:
        return f"'{name}' is too small for float16 with its scale", False
    return "", False


def looked_up(tensor: ir.TensorProtocol, name: str | None, new_name: str, dtype: ir.DataType) -> ir.LazyTensor:
    """A column of ``dtype``: what has to be added to each row of a table of rows to take its mean away."""
    shape = ir.Shape([tensor.shape.numpy()[0], 1])
    return lazy(tensor, new_name, lambda: means(read(tensor, name), dtype.numpy()), dtype, shape)


def lazy(
    like: ir.TensorProtocol,
    name: str | None,
    content: Callable[[], Array],
    dtype: ir.DataType | None = None,
    shape: ir.Shape | None = None,
) -> ir.LazyTensor:
    """A tensor whose content is computed each time that somebody reads it.

    Args:
        like: what it is made of: it has the place of that, and its type and shape unless others are given.
        name: its name.
        content: computes what it holds.
        dtype: its type.
        shape: its shape.
    """
    kind = ir.DataType(like.dtype) if dtype is None else dtype

    def evaluate() -> ir.Tensor[Any]:
        return ir.Tensor(content().astype(kind.numpy(), copy=False), dtype=kind, name=name)

    made = ir.LazyTensor(evaluate, kind, ir.Shape(like.shape.numpy()) if shape is None else shape, name=name)
    if isinstance(like, ir.ExternalTensor) or (isinstance(like, ir.LazyTensor) and like.meta.get(OUTSIDE)):
        made.meta[OUTSIDE] = True
    return made
