"""New contents of weights, which are computed when somebody reads or writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from rmsnorm_deploy.converting.centring import Array, centred
from rmsnorm_deploy.converting.stream import How
from rmsnorm_deploy.converting.writers import read, tensor_of, vector_behind
from rmsnorm_deploy.model.made import OUTSIDE


def edited(tensor: ir.TensorProtocol, name: str | None, how: How) -> Callable[[], Array]:
    """What makes a tensor's new content when it is asked for."""
    scales = []
    for value in how.scales:
        leaf = vector_behind(value)
        held = None if leaf is None else tensor_of(leaf)
        assert held is not None
        scales.append((held, value.name))

    def new() -> Array:
        return centred(read(tensor, name), how.axis, [read(t, n).reshape(-1) for t, n in scales])

    return new


def lazy(like: ir.TensorProtocol, name: str | None, content: Callable[[], Array]) -> ir.LazyTensor:
    """A tensor of the type and shape of ``like`` whose content is computed each time that somebody reads it."""
    dtype = ir.DataType(like.dtype)

    def evaluate() -> ir.Tensor[Any]:
        return ir.Tensor(content().astype(dtype.numpy(), copy=False), dtype=dtype, name=name)

    made = ir.LazyTensor(evaluate, dtype, ir.Shape(like.shape.numpy()), name=name)
    if isinstance(like, ir.ExternalTensor):
        made.meta[OUTSIDE] = True
    return made
