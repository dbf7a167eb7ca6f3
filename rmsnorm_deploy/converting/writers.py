"""The constants that write into a stream: which of them can be edited, and what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.model.made import OUTSIDE
from rmsnorm_deploy.op import FLOAT_TYPES
from rmsnorm_deploy.recognise.facts import Facts, is_op

_MOVING = ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten")
"""What may stand between a tensor and a vector that is made of it."""


def is_leaf(value: ir.Value) -> bool:
    """Whether a constant is a tensor of the file, or one that is widened, and not computed from others.

    What is stored in 16 bits and read in 32 is edited as it is read: its centred form has no room in 16 bits.
    """
    return value.is_initializer() or is_op(value.producer(), "Constant") or stored(value) is not value


def stored(value: ir.Value) -> ir.Value:
    """The leaf whose tensor is in the file: ``value``, or what it widens."""
    node = value.producer()
    inner = node.inputs[0] if node is not None and is_op(node, "Cast") and node.inputs else None
    if inner is None or not (inner.is_initializer() or is_op(inner.producer(), "Constant")) or inner.is_graph_input():
        return value
    held, to = tensor_of(inner), _cast_to(node)
    narrower = held is not None and to is not None and ir.DataType(held.dtype) in FLOAT_TYPES and to in FLOAT_TYPES
    return inner if narrower and held is not None and to is not None and held.dtype.itemsize < to.itemsize else value


def _cast_to(node: ir.Node | None) -> ir.DataType | None:
    attribute = None if node is None else node.attributes.get("to")
    return None if attribute is None or attribute.is_ref() else ir.DataType(int(attribute.value))


def tensor_of(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of a leaf; None where it is not one, such as a number in an attribute."""
    node = value.producer()
    if node is None:
        return value.const_value
    if is_op(node, "Cast"):
        inner, to = stored(value), _cast_to(node)
        held = None if inner is value else tensor_of(inner)
        return None if held is None or to is None else _widened(held, inner.name, to)
    attribute = node.attributes.get("value")
    return None if attribute is None or attribute.is_ref() else attribute.value


def _widened(held: ir.TensorProtocol, name: str | None, to: ir.DataType) -> ir.LazyTensor:
    """``held`` in a wider type."""

    def wide() -> ir.Tensor[Any]:
        return ir.Tensor(read(held, name).astype(to.numpy()), dtype=to, name=name)

    made = ir.LazyTensor(wide, to, ir.Shape(held.shape.numpy()), name=name)
    if isinstance(held, ir.ExternalTensor):
        made.meta[OUTSIDE] = True
    return made


def uneditable(facts: Facts, value: ir.Value, axis: int, is_scaled: bool) -> str:
    """Why a leaf cannot be centred along ``axis``, in one sentence without a full stop; nothing where it can be.

    Args:
        facts: what is known of the model.
        value: the leaf.
        axis: counted from the end.
        is_scaled: its features are multiplied by different numbers first.
    """
    if value.is_graph_input():
        return f"'{value.name}' is an input of the graph, which a caller can change"
    tensor = tensor_of(value)
    if tensor is None:
        return f"'{value.name}' has no tensor"
    if facts.dtype(value) not in FLOAT_TYPES:
        return f"'{value.name}' is of type {tensor.dtype.name}"
    shape = tuple(tensor.shape)
    if is_scaled and (-axis > len(shape) or shape[axis] == 1):
        return f"'{value.name}' is one number that is scaled for each feature"
    return ""


def vector_behind(value: ir.Value) -> ir.Value | None:
    """The leaf that a constant with one number for each feature is moved from; None where it is made of more."""
    for _ in range(8):
        if is_leaf(value):
            return value if tensor_of(value) is not None and not value.is_graph_input() else None
        node = value.producer()
        if node is None or not is_op(node, *_MOVING) or node.inputs[0] is None:
            return None
        value = node.inputs[0]
    return None


def read(tensor: ir.TensorProtocol, name: str | None) -> NDArray[Any]:
    """What a tensor holds; of external data a view of the file.

    Raises:
        ModelError: it is not there, or not what the model says.
    """
    require_place(tensor, name)
    if isinstance(tensor, ir.ExternalTensor):
        # one of our own: the caller's would keep the file mapped for as long as the model is there
        tensor = ir.ExternalTensor(
            *(tensor.location, tensor.offset, tensor.length, tensor.dtype),
            shape=tensor.shape,
            name=tensor.name or "",
            base_dir=tensor.base_dir,
        )
    try:
        return np.asarray(tensor.numpy())
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"the data of '{name}' cannot be read: {error}", "Export or copy the model again.") from error


def require_place(tensor: ir.TensorProtocol, name: str | None) -> None:
    """Whether it is known where a tensor's data are.

    Raises:
        ModelError: it is not.
    """
    if isinstance(tensor, ir.ExternalTensor) and not str(tensor.base_dir):
        raise ModelError(
            f"the data of '{name}' lie in another file, and it is not known in which folder",
            "Pass the path of the model instead of the object.",
        )
